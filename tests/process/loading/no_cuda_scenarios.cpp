// A program that is not linked with CUDA and never loads it, under curb.

#include <csignal>

#include "scenario.hpp"

using namespace scenario;

SCENARIO_NAMED(a_program_without_cuda_stays_one) {
    EXPECT(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == nullptr);
    EXPECT(dlsym(RTLD_DEFAULT, "cuInit") == nullptr);
    EXPECT(dlerror() != nullptr);
    EXPECT_EQ(entries("/proc/self/task"), 1U);
    EXPECT_EQ(entries("/proc/self/fd"), 4U);  // 0, 1, 2 and the one that reads the folder
    struct sigaction action {};
    EXPECT_EQ(sigaction(SIGUSR1, nullptr, &action), 0);
    EXPECT(action.sa_handler == SIG_DFL);
}
