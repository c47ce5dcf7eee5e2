// What a policy, a release and others do to a program's requests.
#include "ways.hpp"

using namespace fault;

WAY(the_start, kCapped) {
    p.start();
    p.read_books();
    p.cap_holds(kCap);
}

WAY(growth, R"({"version": 1, "gpu": {"*": {"cap": "2GiB",
    "growth": {"start": "640MiB", "step": "256MiB", "every": "1ms", "wait": "20s", "keep_free": "1GiB"}}}})") {
    p.start();
    std::array<CUdeviceptr, 3> blocks{};
    CUdeviceptr none = 0;
    for (CUdeviceptr &one : blocks) DO(cuMemAlloc_v2, &one, 200 * MiB);
    REFUSED(cuMemAlloc_v2, &none, 3 * GiB);
    p.read_books();
    p.mend();
    for (const CUdeviceptr one : blocks) DO(cuMemFree_v2, one);
    p.release(R"(["pools"])");
    p.read_books();
    p.cap_holds(kCap);
}

WAY(releases, kCapped) {
    p.start();
    CUstream stream = nullptr;
    CUdeviceptr one = 0, two = 0;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    keeping_pool(p);
    DO(cuMemAllocAsync, &one, 400 * MiB, stream);
    DO(cuMemAllocAsync, &two, 100 * MiB, stream);
    DO(cuMemFreeAsync, one, stream);
    p.release(R"(["cache", "pools", "frameworks", "pressure"])");
    p.mend();
    DO(cuMemFreeAsync, two, stream);
    p.release(R"(["pools"])");
    DO(cuStreamDestroy_v2, stream);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(live_caps_and_a_trace, R"({"version": 1, "gpu": {"*": {"cap": "2GiB"}}, "trace": {"file": "%d/trace.json"}})") {
    p.start();
    CUdeviceptr block = 0, pooled = 0, none = 0;
    DO(cuMemAlloc_v2, &block, 300 * MiB);
    keeping_pool(p);
    DO(cuMemAllocAsync, &pooled, 400 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    if (p.set_cap("1GiB")) REFUSED(cuMemAlloc_v2, &none, 500 * MiB);
    p.mend();
    p.set_cap("2GiB");
    DO(cuMemFree_v2, block);
    p.release(R"(["pools"])");
    p.read_books();
    p.cap_holds(kCap);
}
