// Programs whose libraries export the driver's names as stubs that open libcuda
// (tests/contract/conformance/conformance_stubs.cpp) get the same answers with curb as without.

#include "job.hpp"

namespace {

struct Setting {
    Environment environment;
    bool has_driver = true;  // in the loader's search path
};

std::string answers(bool under_curb, const Setting &setting, const Words &words) {
    Job job;
    job.cap("1280MiB");
    job.with(setting.environment);
    if (!setting.has_driver) job.with("LD_LIBRARY_PATH", "");
    if (!under_curb) job.with("LD_PRELOAD", "");
    const Outcome outcome = job.run_command(joined({tested::kStubHost, tested::kPlugins}, words));
    INFO(outcome.err);
    CHECK(outcome.status == 0);
    return outcome.out;
}

// Returns the answers, which must be the same without curb and with it.
std::string same_answers(const Setting &setting, const Words &words) {
    std::string bare = answers(false, setting, words);
    CHECK(answers(true, setting, words) == bare);
    return bare;
}

}  // namespace

TEST_CASE("a call before libcuda is loaded reaches the driver through the program's stub") {
    const Setting setting;
    CHECK(same_answers(setting, {"stubbed.init", "stubbed.default", "loaded"}) == "0\nthere\nloaded\n");
    CHECK(answers(true, setting, {"stubbed.init", "stubbed.allocate"}) == "0\n0 0 2\n");
    CHECK(answers(false, setting, {"stubbed.init", "stubbed.allocate"}) == "0\n0 0 0\n");
}

TEST_CASE("stubs may be a dependency of the library that opened the caller") {
    CHECK(answers(true, {}, {"beside_stubs.init", "beside_stubs.allocate"}) == "0\n0 0 2\n");
}

TEST_CASE("threads that call first at once all reach the driver") {
    CHECK(same_answers({}, {"stubbed.crowd"}) == "0 0 0 0 0 0 0 0 \n");
    CHECK(answers(true, {}, {"stubbed.crowd", "stubbed.allocate"}) == "0 0 0 0 0 0 0 0 \n0 0 2\n");
}

TEST_CASE("a libcuda that only the stub's run path leads to is found", "[own-runtime]") {
    const Setting setting{.environment = {}, .has_driver = false};
    CHECK(same_answers(setting, {"run_path.init", "loaded"}) == "0\nloaded\n");
    CHECK(answers(true, setting, {"run_path.init", "run_path.allocate"}) == "0\n0 0 2\n");
}

TEST_CASE("each library's call goes to its own stubs", "[own-runtime]") {
    const Setting setting{.environment = {}, .has_driver = false};
    // The loader finds libcuda by its name only after the other library has loaded it by its run path.
    CHECK(same_answers(setting, {"stubbed.init", "run_path.init", "stubbed.init"}) == "7777\n0\n0\n");
}

TEST_CASE("without libcuda the program gets its stub's own error") {
    const Setting setting{.environment = {{"CONFORMANCE_STUBS", "absent"}}};
    CHECK(same_answers(setting, {"stubbed.init", "stubbed.allocate", "stubbed.nvml", "stubbed.default", "loaded"}) ==
          "7777\n7777 7777 7777\n7777\nthere\nnot loaded\n");
}

TEST_CASE("without libcuda the program gets its stub's own error however often it asks") {
    const Setting setting{.environment = {{"CONFORMANCE_STUBS", "absent"}}};
    CHECK(same_answers(setting, {"stubbed.repeat", "loaded"}) == "7777 \nnot loaded\n");
}

TEST_CASE("a stub that calls curb instead of the driver ends, and curb loads libcuda") {
    for (const char *how : {"calls", "jumps"}) {
        CAPTURE(how);
        const Setting setting{.environment = {{"CONFORMANCE_STUBS", how}}};
        CHECK(answers(true, setting, {"stubbed.repeat", "loaded"}) == "3 \nloaded\n");  // CUDA_ERROR_NOT_INITIALIZED
    }
}

TEST_CASE("a call of NVML before it is loaded reaches NVML through the program's stub") {
    CHECK(same_answers({}, {"stubbed.nvml"}) == "1\n");  // NVML_ERROR_UNINITIALIZED, NVML's own answer
}

TEST_CASE("a program that calls none of the driver's functions stays without libcuda") {
    CHECK(same_answers({}, {"stubbed.nothing", "stubbed.default", "loaded"}) == "nothing asked\nthere\nnot loaded\n");
}

TEST_CASE("a call for which the program has no stub loads libcuda") {
    CHECK(answers(true, {}, {"alone.default", "loaded", "alone.init", "loaded"}) == "none\nnot loaded\n0\nloaded\n");
    const Setting without{.environment = {}, .has_driver = false};
    CHECK(answers(true, without, {"alone.init", "loaded"}) == "100\nnot loaded\n");  // CUDA_ERROR_NO_DEVICE
}
