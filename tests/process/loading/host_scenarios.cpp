// How a program sees curb: look-ups, live policies, refusals, errno, forks, NVML that does not list the process.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "live.hpp"

using namespace scenario;

// Run by tests/neighbours and tests/memcheck. tests/contract/conformance proves every way for every entry point.
SCENARIO_NAMED(every_way_of_looking_up_leads_to_the_wrapper) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(libcuda != nullptr);
    for (const char *name : {"cuMemAllocAsync_ptsz", "cuMemFree_v2", "cuGetProcAddress_v2"}) {
        EXPECT(object_of(dlsym(libcuda, name)) == "libcurb.so");
        EXPECT(dlsym(libcuda, name) == dlsym(RTLD_DEFAULT, name));
    }
    void *function = nullptr;
    CUdriverProcAddressQueryResult status{};
    MUST(cuGetProcAddress_v2("cuMemAllocAsync", &function, 11020, 2, &status));
    EXPECT(function == dlsym(libcuda, "cuMemAllocAsync_ptsz"));
    MUST(cuGetProcAddress("cuMemAlloc", &function, 12000, 0));
    EXPECT(function == dlsym(libcuda, "cuMemAlloc_v2"));
    // Not in the table of entry points: a thunk leads through the gate to the driver's own.
    MUST(cuGetProcAddress_v2("cuMemcpyHtoD", &function, 12000, 0, nullptr));
    EXPECT(function == dlsym(libcuda, "cuMemcpyHtoD_v2"));
    EXPECT(object_of(function) == "libcurb.so");
    EXPECT(object_of(dlsym(libcuda, "cuDriverGetVersion")) == "libcuda.so.1");
    EXPECT(dlsym(libcuda, "cuNoSuchFunction") == nullptr);
    const char *error = dlerror();
    EXPECT(error && std::string_view(error).find("libcuda.so.1: ") != std::string_view::npos);

    using Dlvsym = void *(void *, const char *, const char *);
    auto *look_up_version = reinterpret_cast<Dlvsym *>(dlsym(RTLD_DEFAULT, "dlvsym"));
    EXPECT(object_of(look_up_version(RTLD_DEFAULT, "qsort", "GLIBC_2.2.5")) == "libc.so.6");
}

SCENARIO_NAMED(nothing_starts_before_the_first_cuinit) {
    EXPECT_EQ(entries("/proc/self/task"), 1U);
    int count = 0;
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(entries("/proc/self/task"), 1U);
    MUST(cuInit(0));
    EXPECT(entries("/proc/self/task") > 1);
}

SCENARIO_NAMED(a_release_that_is_delayed_refuses_no_request) {
    start();
    // The releasing thread is held up at its n-th query, when the memory is already free on the device. Books that
    // still count that memory must not make curb refuse.
    constexpr std::uint64_t kMost = 20;
    for (std::uint64_t call = 1; call <= kMost; ++call) {
        leave_memory_in_the_pool();
        curb_sim_hold_up("cuMemPoolGetAttribute", call, 100);
        kill(getpid(), SIGUSR1);
        EXPECT(pool_came_back());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it gets to the query that is held up
        CUdeviceptr block = 0;
        MUST(cuMemAlloc_v2(&block, 256 * MiB));
        MUST(cuMemFree_v2(block));
    }
}

SCENARIO_NAMED(an_edit_is_in_force_within_a_second) {
    const auto comes_into_force = [](std::uint64_t cap) {
        return within(std::chrono::milliseconds(1000), [cap] { return shown_total() == cap; });
    };
    start();
    EXPECT(comes_into_force(1 * GiB));
    edit(policy_with_cap("2GiB"));
    EXPECT(comes_into_force(2 * GiB));
    // An invalid policy never replaces a valid one; the next valid one does.
    write_in_place(policy_file(), R"({ "version": 1, "gpu": { "*": { "cap": "7Gib" } } })");
    edit("{");
    EXPECT(!within(std::chrono::milliseconds(700), [] { return shown_total() != 2 * GiB; }));
    edit(policy_with_cap("50%"));
    EXPECT(comes_into_force(40 * GiB));
    // A lowered cap releases at once.
    leave_memory_in_the_pool();
    edit(policy_with_cap("704MiB"));
    EXPECT(pool_came_back());
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 100 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&pointer, 64 * MiB));
}

SCENARIO_NAMED(a_policy_that_cannot_be_used_refuses_every_allocation) {
    start();
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocAsync(&pointer, 4096, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAllocManaged(&pointer, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    // An edit fixes it while the program runs.
    if (policy_file()) {
        edit(policy_with_cap("2GiB"));
        EXPECT(within(std::chrono::milliseconds(1000), [&] { return cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS; }));
    }
}

SCENARIO_NAMED(a_relative_policy_is_the_one_beside_the_start) {  // CURB_POLICY=job.json, cap 1 GiB
    EXPECT_EQ(chdir("/"), 0);
    start();
    EXPECT_EQ(shown_total(), 1 * GiB);
}

SCENARIO_NAMED(a_mended_policy_is_still_narrowed) {  // CURB_CAP=1GiB beside a policy that cannot be used
    start();
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    edit(policy_with_cap("2GiB"));
    EXPECT(within(std::chrono::milliseconds(1000), [&] { return cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS; }));
    EXPECT_EQ(shown_total(), 1 * GiB);
}

SCENARIO_NAMED(one_refusal_is_said_once) {
    start();
    CUdeviceptr pointer = 0;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(cuMemAlloc_v2(&pointer, 900 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
}

SCENARIO_NAMED(ends_after_refusals) {  // END: how
    start();
    CUdeviceptr pointer = 0;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(cuMemAlloc_v2(&pointer, 900 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    const std::string end = std::getenv("END");
    if (end == "_exit") _exit(0);
    if (end == "fork") {
        const pid_t child = fork();
        if (child == 0) std::exit(0);
        EXPECT_EQ(waitpid(child, nullptr, 0), child);
    }
    if (end == "signal") {
        std::signal(SIGALRM, [](int) { std::exit(0); });
        raise(SIGALRM);
    }
}

SCENARIO_NAMED(a_quiet_run) {
    start();
    CUdeviceptr pointer = 0;
    MUST(cuMemAlloc_v2(&pointer, 4 * MiB));
    EXPECT_EQ(cuMemAlloc_v2(&pointer, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);  // a probe, not a refusal
}

SCENARIO_NAMED(errno_is_the_programs_own) {
    start();
    CUdeviceptr pointer = 0;
    std::size_t free_bytes = 0, total = 0;
    errno = 4711;
    cuMemAlloc_v2(&pointer, 64 * MiB);
    cuMemAlloc_v2(&pointer, 900 * MiB);
    cuMemGetInfo_v2(&free_bytes, &total);
    cuMemFree_v2(pointer);
    EXPECT_EQ(errno, 4711);
}

// tests/neighbours and tests/memcheck run this too.
SCENARIO_NAMED(a_fork_child_passes_and_the_parent_goes_on) {
    start();
    CUdeviceptr block = 0;
    MUST(cuMemAlloc_v2(&block, 64 * MiB));
    const int status = status_of_child([=] {
        struct sigaction action {};
        CUdeviceptr pointer = 0;
        if (cuMemAlloc_v2(&pointer, 4096) != CUDA_ERROR_NOT_INITIALIZED) _exit(10);
        if (cuMemFree_v2(block) == CUDA_SUCCESS) _exit(11);
        sigaction(SIGUSR1, nullptr, &action);
        if (action.sa_handler != SIG_DFL) _exit(12);
        raise(SIGUSR1);  // ends the child, as it would without curb
    });
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
    MUST(cuMemFree_v2(block));
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(where_nvml_cannot_see_the_process_the_context_still_counts) {  // CURB_SIM_NVML=nopids, cap 1 GiB
    start();
    EXPECT_EQ(shown_held(), kContext);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 512 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&pointer, 256 * MiB));
    EXPECT_EQ(shown_held(), kContext + 256 * MiB);
}

SCENARIO_NAMED(where_nvml_cannot_see_the_process_the_first_free_in_a_stream_is_credited) {  // CURB_SIM_NVML=nopids
    start();
    CUdeviceptr block = 0;
    MUST(cuMemAlloc_v2(&block, 64 * MiB));
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    EXPECT_EQ(shown_held(), kContext);
}
