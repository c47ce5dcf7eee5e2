// Prints the answers of `curb ps --json` to made-up machines, one a line: for answers_test.py.
#include <cstdio>

#include "ps_text.hpp"
#include "views.hpp"

int main() {
    using namespace views;
    View mig = machine();
    mig.gpus[1].parent = mig.gpus[0].uuid;
    mig.gpus[1].index = std::nullopt;
    mig.gpus[1].used = mig.gpus[1].free = std::nullopt;
    View code = busy();
    code.processes[0].status->refusals[0].bytes = code.processes[0].status->refusals[0].limit = 0;
    code.processes[0].status->releases[0].report.steps[0].freed = -5;
    View blind;
    blind.nvml_fault = "there is no NVML";
    for (const View &view : {machine(), busy(), mig, code, blind, View()})
        std::printf("%s\n", ps_json(view, {{7, "there is no process 7"}}, kNow).c_str());
}
