// A program that is not linked with CUDA and never loads it, under curb.

#include <csignal>

#include "scenario.hpp"

using namespace scenario;

// A preload behind us asks RTLD_NEXT for what stands behind *it*: the answer hangs on the caller's return address.
SCENARIO_NAMED(rtld_next_means_next_after_the_caller) {
    void *next = dlsym(RTLD_NEXT, "lrand48");
    EXPECT(object_of(next) == "libc.so.6");
    using Ask = void *();
    auto *ask = reinterpret_cast<Ask *>(dlsym(RTLD_DEFAULT, "second_preload_next_marker"));
    EXPECT(ask != nullptr);
    // second_preload defines marker() and asks for the next one, which only the program below it does not have.
    if (ask) EXPECT(ask() == nullptr);
}

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
