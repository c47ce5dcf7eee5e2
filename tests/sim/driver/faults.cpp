#include "faults.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "environment.hpp"
#include "fault_file.hpp"
#include "sim.h"

namespace curb::sim {

namespace {

struct Fault {
    std::string name;
    uint64_t call = 0;
    CUresult result = CUDA_SUCCESS;
};

// `text` is name:call:code[,...].
std::vector<Fault> parse(const char *text) {
    std::vector<Fault> faults;
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) {
        char name[64];
        unsigned long long call = 0;
        int code = 0;
        if (std::sscanf(item.c_str(), "%63[^:]:%llu:%d", name, &call, &code) == 3 && call > 0 && code > CUDA_SUCCESS &&
            code <= CUDA_ERROR_UNKNOWN)
            faults.push_back({name, call, static_cast<CUresult>(code)});
        else
            std::fprintf(stderr, "curb sim: CURB_SIM_FAULT: '%s' is not name:call:code\n", item.c_str());
    }
    return faults;
}

constinit std::atomic<uint64_t> all_calls = 0;

// The fault of curb_sim_fail: one at a time, for the planner's thread or for the others.
struct Planned {
    std::atomic<bool> counting = false;
    std::atomic<bool> others = false;
    std::atomic<uint64_t> call = 0;
    std::atomic<int> result = 0;
    std::atomic<uint64_t> calls = 0;
    std::atomic<const char *> failed = nullptr;
};
constinit Planned plan;
constinit thread_local bool is_planner = false;

struct Next {
    std::atomic<const char *> name = nullptr;
    std::atomic<int> result = 0;
    std::atomic<int> times = 0;
};
constinit Next next;           // of curb_sim_fail_next
constinit Next reported_next;  // of curb_sim_report_next

bool is_due(Next &planned, const Entry &entry) {
    return planned.times > 0 && std::strcmp(planned.name, entry.name) == 0 && planned.times-- > 0;
}

void plan_next(Next &planned, const char *name, int result, int times) {
    planned.times = 0;
    planned.name = name;
    planned.result = result;
    planned.times = times;
}

struct HeldUp {
    std::atomic<const char *> name = nullptr;
    std::atomic<uint64_t> call = 0;
    std::atomic<unsigned> milliseconds = 0;
};
constinit HeldUp held_up;

struct HeldReturn {
    std::atomic<const char *> name = nullptr;
    std::atomic<uint64_t> released = 0;
};
constinit HeldReturn held_return;

void hold_up(const Entry &entry) {
    const char *name = held_up.name;
    if (name && !is_planner && std::strcmp(name, entry.name) == 0 && held_up.call.fetch_sub(1) == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(held_up.milliseconds));
}

// The error of curb_sim_break, and whether the primary context was reset since. Once reset, it is not made again.
constinit std::atomic<int> broken = CUDA_SUCCESS;
constinit std::atomic<bool> was_reset = false;

// The calls that the driver still answers after a sticky error (sim.h); '*' matches the rest of a name. Measured on an
// H200 with driver 580 (docs/results/broken-2026-11-23-nvidia-h200.md).
constexpr std::string_view kAnswersBroken[] = {
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress*",
    "cuGetExportTable",
    "cuDeviceGet*",
    "cuDeviceTotalMem*",
    "cuDevicePrimaryCtx*",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent*",
    "cuCtxPopCurrent*",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetApiVersion",
    "cuThreadExchangeStreamCaptureMode",
    "cuPointerGetAttribute",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
};

bool answers_broken(std::string_view name) {
    if (was_reset && name == "cuDevicePrimaryCtxRetain") return false;
    return std::any_of(std::begin(kAnswersBroken), std::end(kAnswersBroken), [=](std::string_view row) {
        return row.ends_with('*') ? name.starts_with(row.substr(0, row.size() - 1)) : name == row;
    });
}

CUresult planned(const Entry &entry) {
    hold_up(entry);
    if (is_due(next, entry)) return static_cast<CUresult>(next.result.load());
    if (!plan.counting || is_planner == plan.others) return CUDA_SUCCESS;
    const int result = plan.result;
    if (++plan.calls != plan.call) return CUDA_SUCCESS;
    if (result == CURB_SIM_KILL) ::kill(::getpid(), SIGKILL);
    plan.failed = entry.name;
    return static_cast<CUresult>(result);
}

}  // namespace

CUresult fault(Entry &entry) {
    static const std::vector<Fault> &faults = *new std::vector<Fault>(parse(environment("CURB_SIM_FAULT")));
    const uint64_t call = ++entry.calls;
    const uint64_t of_all = ++all_calls;
    if (const CUresult result = planned(entry)) return result;
    if (const int result = fault_in_file(entry.name)) return static_cast<CUresult>(result);
    if (broken && !answers_broken(entry.name)) return static_cast<CUresult>(broken.load());
    for (const Fault &planned : faults) {
        const bool any = planned.name == "*";
        if (planned.call == (any ? of_all : call) && (any || planned.name == entry.name)) return planned.result;
    }
    return CUDA_SUCCESS;
}

void hold_return(const Entry &entry) {
    const char *name = held_return.name;
    if (!name || is_planner || std::strcmp(name, entry.name) != 0) return;
    const uint64_t released = held_return.released;
    if (held_return.name.compare_exchange_strong(name, nullptr)) held_return.released.wait(released);
}

CUresult reported(const Entry &entry, CUresult result) {
    return is_due(reported_next, entry) ? static_cast<CUresult>(reported_next.result.load()) : result;
}

void note_reset() { was_reset = broken != CUDA_SUCCESS; }

SIM_EXPORT void curb_sim_fail(uint64_t call, int result, int others) {
    plan.counting = false;
    is_planner = true;
    plan.others = others != 0;
    plan.call = call;
    plan.result = result;
    plan.calls = 0;
    plan.failed = nullptr;
    plan.counting = true;
}

SIM_EXPORT void curb_sim_fail_next(const char *name, int result, int times) { plan_next(next, name, result, times); }

SIM_EXPORT void curb_sim_report_next(const char *name, int result, int times) {
    plan_next(reported_next, name, result, times);
}

SIM_EXPORT void curb_sim_hold_up(const char *name, uint64_t call, unsigned milliseconds) {
    held_up.name = nullptr;
    is_planner = true;
    held_up.call = call;
    held_up.milliseconds = milliseconds;
    held_up.name = name;
}

SIM_EXPORT void curb_sim_hold_return(const char *name) {
    is_planner = true;
    held_return.name = name;
    if (name) return;
    ++held_return.released;
    held_return.released.notify_all();
}

SIM_EXPORT void curb_sim_break(int result) {
    broken = result;
    was_reset = false;
}

SIM_EXPORT void curb_sim_fail_pause(int pause) { plan.counting = pause == 0; }

SIM_EXPORT const char *curb_sim_failed(uint64_t *calls) {
    if (calls) *calls = plan.calls;
    return plan.failed;
}

}  // namespace curb::sim
