// Parts of libcurb.so that it does not export, linked into this program in front of the simulated driver. Where needed,
// the test replaces functions of the driver, or the worker.

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "../../families/properties.hpp"
#include "accounting/allocations.hpp"
#include "accounting/graphs.hpp"
#include "accounting/shared.hpp"
#include "cache/cache.hpp"
#include "catch.hpp"
#include "driver/gate.hpp"
#include "driver/thunks/thunks.hpp"
#include "policy/values/granule.hpp"
#include "pools/pools.hpp"
#include "sim.h"
#include "temp_dir.hpp"
#include "trace/record.hpp"
#include "trace/trace.hpp"

using namespace curb::shim;
using namespace std::chrono_literals;
using curb::policy::MiB;

namespace {

constinit thread_local int until_no_memory = 0;  // this allocation from now on fails; 0: none

constexpr std::uint64_t kContext = 518 * MiB;
constexpr std::uint64_t kIdleMs = 300;
std::atomic<int> wakes{0};  // of curb's timer, which the test replaces

// Initialises CUDA on two devices with a cache, and makes the primary context of the first one current.
CUcontext start() {
    static CUcontext context = [] {
        const TempDir dir;
        CUcontext primary = nullptr;
        setenv("CURB_SIM_GPUS", "2", 1);
        const std::string policy =
            R"({ "version": 1, "gpu": { "*": { "cache": { "max": "1GiB", "idle": "300ms" } } } })";
        setenv("CURB_POLICY", dir.write("job.json", policy).c_str(), 1);
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
        cache::on_first_kept([] { ++wakes; });
        return primary;
    }();
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    return context;
}

// Sweeps the cache until it is empty.
void sweep_all() {
    while (const auto next = cache::sweep()) std::this_thread::sleep_for(std::chrono::milliseconds(*next));
}

CUdeviceptr take(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, bytes) == CUDA_SUCCESS);
    return block;
}
void keep(std::uint64_t bytes) { REQUIRE(cuMemFree_v2(take(bytes)) == CUDA_SUCCESS); }

// Replaces the driver's function during its lifetime.
template <class F>
class InPlaceOf {
  public:
    InPlaceOf(Slot<F> &slot, F *function) : slot_(slot), before_(slot.address.exchange(function)) {}
    ~InPlaceOf() { slot_.address.store(before_); }
    InPlaceOf(const InPlaceOf &) = delete;
    InPlaceOf &operator=(const InPlaceOf &) = delete;

  private:
    Slot<F> &slot_;
    F *before_;
};

}  // namespace

#ifndef CURB_SANITIZED  // a sanitizer's runtime has these
void *operator new(std::size_t bytes) {
    if (until_no_memory != 0 && --until_no_memory == 0) throw std::bad_alloc();
    if (void *memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
#endif

TEST_CASE("A call that waits at the closed gate says so again and again: a nap may begin meanwhile") {
    start();
    REQUIRE(gate::close(gate::For::client, 1min) == gate::Closing::closed);
    CHECK(gate::waiting_since() == 0);
    std::thread call([] { gate::wait(); });
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) gate::sleep_until_called(60'000);
    CHECK(std::chrono::steady_clock::now() - begun < 50s);
    CHECK(gate::waiting_since() != 0);
    gate::open(gate::For::client);
    call.join();
}

TEST_CASE("A call that finds the lease over does not open a gate whose lease is renewed before it has opened it",
          "[patience]") {
    start();
    std::atomic<bool> done{false};
    std::vector<std::thread> calls;
    for (int i = 0; i < 4; ++i)
        calls.emplace_back([&] {
            while (!done) gate::wait();
        });
    const auto pass = [](std::chrono::microseconds time, auto each) {
        for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) each();
    };
    int opened = 0, opened_in_lease = 0;
    const auto begun = std::chrono::steady_clock::now();
    const auto goes_on = [&](int round) {  // on a busy machine no call may come in time
        return round < 5000 || (opened == 0 && std::chrono::steady_clock::now() - begun < 60s);
    };
    for (int round = 0; goes_on(round); ++round) {
        gate::close(gate::For::client, 0ms);
        pass(20us, [] {});
        opened += !gate::is_closed();  // by a call, as it may
        gate::close(gate::For::client, 1min);
        pass(100us, [&] { opened_in_lease += !gate::is_closed(); });
    }
    CHECK(opened > 0);
    CHECK(opened_in_lease == 0);
    done = true;
    gate::open(gate::For::client);
    for (std::thread &call : calls) call.join();
}

TEST_CASE("A nap and a client leave each other's gate as it is") {
    using gate::Closing, gate::For;
    start();
    REQUIRE(gate::close(For::nap, 1min) == Closing::closed);
    CHECK(gate::close(For::client, 1min) == Closing::taken);
    gate::open(For::client);
    CHECK(gate::is_closed());
    SECTION("the nap opens its own") {
        gate::open(For::nap);
        CHECK_FALSE(gate::is_closed());
    }
    SECTION("a client takes over a gate whose lease is over") {
        REQUIRE(gate::close(For::nap, 0ms) == Closing::closed);
        CHECK(gate::close(For::client, 0ms) == Closing::closed);
        CHECK(gate::close(For::nap, 1min) == Closing::taken);
        gate::open(For::nap);
        CHECK(gate::is_closed());
        gate::open(For::client);
        CHECK_FALSE(gate::is_closed());
    }
}

TEST_CASE("a program reads back its own release threshold, also when curb lowers or restores it meanwhile") {
    start();
    const bool lowered_before = GENERATE(true, false);
    CUmemoryPool pool = nullptr;
    std::uint64_t own = 64 * MiB, reported = 0;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &own) == CUDA_SUCCESS);
    pools::Threshold threshold;
    if (lowered_before) threshold.lower(pool);
    bool first = true;
    const CUresult result = threshold.get(reported, [&] {
        if (!lowered_before && std::exchange(first, false)) threshold.lower(pool);
        const CUresult answer = driver().cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &reported);
        if (lowered_before && std::exchange(first, false)) {
            CHECK(reported == 0);
            threshold.restore(pool);
        }
        return answer;
    });
    CHECK(result == CUDA_SUCCESS);
    CHECK(reported == own);
    threshold.restore(pool);
}

// Returns the exit value of a thread that is cancelled and makes this call.
template <auto Call>
void *end_of_cancelled() {
    const auto body = [](void *context) -> void * {
        cuCtxSetCurrent(static_cast<CUcontext>(context));
        pthread_cancel(pthread_self());
        Call();
        return nullptr;
    };
    pthread_t thread{};
    void *end = nullptr;
    REQUIRE(pthread_create(&thread, nullptr, body, start()) == 0);
    REQUIRE(pthread_join(thread, &end) == 0);
    return end;
}

TEST_CASE("a thread that is cancelled in the driver ends as without curb, and its request goes back") {
    start();
    const Bytes before = devices::at(0).ledger.held();
    const InPlaceOf<decltype(::cuMemAlloc_v2)> in_place(detail::the_driver.cuMemAlloc_v2, [](CUdeviceptr *, size_t) {
        pthread_testcancel();
        return CUDA_ERROR_UNKNOWN;
    });
    constexpr auto kAllocate = [] {
        CUdeviceptr block = 0;
        cuMemAlloc_v2(&block, 64 * MiB);
    };
    CHECK(end_of_cancelled<kAllocate>() == PTHREAD_CANCELED);
    CHECK(devices::at(0).ledger.held() == before);
}

TEST_CASE("a thread that is cancelled while the driver maps an array's memory ends as without curb") {
    start();
    const InPlaceOf<decltype(::cuMemMapArrayAsync)> in_place(detail::the_driver.cuMemMapArrayAsync,
                                                             [](CUarrayMapInfo *, unsigned, CUstream) {
                                                                 pthread_testcancel();
                                                                 return CUDA_ERROR_UNKNOWN;
                                                             });
    constexpr auto kMap = [] {
        CUarrayMapInfo one{};
        cuMemMapArrayAsync(&one, 1, nullptr);
    };
    CHECK(end_of_cancelled<kMap>() == PTHREAD_CANCELED);
}

namespace {

// The arguments of the driver's function of the next case.
std::vector<double> had;
bool was_under_way = false;
template <class... Number>
CUresult note(Number... number) {
    had = {static_cast<double>(number)...};
    was_under_way = gate::call_under_way() != nullptr;
    pthread_testcancel();
    return CUDA_ERROR_UNKNOWN;
}

}  // namespace

TEST_CASE("a counted call has all its arguments, and is under way until it returns or its thread is cancelled") {
    start();
    using Function = CUresult(long, long, long, long, long, long, long, long, long, long, long,  // some on the stack
                              double, double, double, double, double, double, double, double);
    Function *const own = note;
    auto *const function = reinterpret_cast<Function *>(thunks::counting(reinterpret_cast<void *>(own)));
    const auto call = [=] { return function(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19); };
    const std::vector<double> given{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    REQUIRE(call() == CUDA_ERROR_UNKNOWN);
    CHECK(had == given);
    CHECK_FALSE(was_under_way);
    had.clear();
    gate::count_all(true);
    CHECK(call() == CUDA_ERROR_UNKNOWN);
    CHECK(had == given);
    CHECK(was_under_way);
    CHECK(gate::call_under_way() == nullptr);
    std::atomic<bool> returned{false};
    std::thread([&] {
        pthread_cancel(pthread_self());
        call();
        returned = true;
    }).join();
    CHECK_FALSE(returned);
    CHECK(gate::call_under_way() == nullptr);
    curb_gate &= ~gate::kCounts;
}

TEST_CASE("a block that curb has no host memory to record counts in none of its granules", "[own-runtime]") {
    allocations::Allocation block{&devices::at(0), start(), MiB}, small = block;
    small.bytes = 4096;
    constexpr CUdeviceptr kBorder = 1008 * curb::policy::kGranule;  // also of two tables
    const CUdeviceptr across = kBorder - MiB / 2, before = kBorder - MiB;
    const auto add_and_credit = [](CUdeviceptr pointer, const allocations::Allocation &one, Bytes expected) {
        const auto taken = allocations::add(pointer, one);
        until_no_memory = 0;
        if (!taken) return false;
        CHECK(*taken == expected);
        CHECK(allocations::remove(pointer).commit() == one);
        devices::at(0).ledger.charge(Kind::plain, *taken);
        CHECK(allocations::credit(pointer, one) == *taken);
        return true;
    };
    // Each leaves a spare record: then the record of the second granule is the first that needs memory.
    CHECK(add_and_credit(across + curb::policy::kGranule, small, curb::policy::kGranule));
    CHECK(add_and_credit(before, small, curb::policy::kGranule));
    until_no_memory = 1;
    CHECK_FALSE(add_and_credit(across, block, 0));
    CHECK(add_and_credit(before, small, curb::policy::kGranule));
    CHECK(add_and_credit(across, block, 2 * curb::policy::kGranule));
}

namespace {

Bytes overheads[2];  // of the devices, after a measurement during an unmapping

}  // namespace

TEST_CASE("unmapping memory of several devices is an operation on each") {
    start();
    constexpr std::size_t kEach = 2 * MiB;
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, 2 * kEach, 0, 0, 0) == CUDA_SUCCESS);
    for (int device = 0; device < 2; ++device) {
        const CUmemAllocationProp properties = families::on_device(device);
        CUmemGenericAllocationHandle handle = 0;
        REQUIRE(cuMemCreate(&handle, kEach, &properties, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemMap(address + static_cast<std::size_t>(device) * kEach, kEach, 0, handle, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    }
    {
        static auto *const unmap = detail::the_driver.cuMemUnmap.address.load();
        const InPlaceOf<decltype(::cuMemUnmap)> in_place(
            detail::the_driver.cuMemUnmap, [](CUdeviceptr from, size_t bytes) {
                for (int device = 0; device < 2; ++device) {
                    Ledger &ledger = devices::at(device).ledger;
                    ledger.set_overhead(100 * MiB);
                    // During an operation a reconcile may raise the overhead, but not lower it.
                    ledger.reconcile([] { return std::optional<Bytes>(0); }, [](std::int64_t) {});
                    overheads[device] = ledger.overhead();
                    ledger.set_overhead(0);
                }
                return unmap(from, bytes);
            });
        REQUIRE(cuMemUnmap(address, 2 * kEach) == CUDA_SUCCESS);
    }
    CHECK(overheads[0] == 100 * MiB);
    CHECK(overheads[1] == 100 * MiB);
    CHECK(devices::at(1).ledger.of(Kind::vmm) == 0);
}

// ---- the cache and its timer ----

TEST_CASE("a kept block is freed after the policy's idle time, and not before") {
    start();
    sweep_all();
    const auto freed = std::chrono::steady_clock::now();
    keep(2 * MiB);
    const auto due = cache::sweep();
    REQUIRE(due);
    CHECK(*due <= kIdleMs);
    CHECK(curb_sim_held(0) == kContext + 2 * MiB);
    sweep_all();
    CHECK(curb_sim_held(0) == kContext);
    // curb reads a clock that ticks every 4 ms.
    CHECK(std::chrono::steady_clock::now() - freed >= std::chrono::milliseconds(kIdleMs - 5));
}

TEST_CASE("the idle time of a kept block begins anew when it is used, and another block's does not") {
    start();
    sweep_all();
    keep(2 * MiB);
    keep(64 * MiB);
    const auto begun = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::steady_clock::now() - begun; };
    while (passed() < std::chrono::milliseconds(2 * kIdleMs)) {
        keep(2 * MiB);
        REQUIRE(cache::sweep());
    }
    CHECK(curb_sim_held(0) == kContext + 2 * MiB);
}

TEST_CASE("an alloc and free loop wakes the timer once, until that has found nothing") {
    start();
    // curb's worker sweeps now and then too, and may find nothing just while the block is in use.
    for (int tries = 0; tries < 20 && (tries == 0 || wakes != 1); ++tries) {
        sweep_all();
        wakes = 0;
        for (int i = 0; i < 1000; ++i) keep(2 * MiB);
    }
    CHECK(wakes == 1);
    sweep_all();
    CHECK(wakes == 1);
    keep(2 * MiB);
    CHECK(wakes == 2);
    // A new callback is not called for a block that was kept before.
    cache::on_first_kept([] { wakes += 100; });
    CHECK(wakes == 2);
    const CUdeviceptr block = take(2 * MiB);
    CHECK_FALSE(cache::sweep());
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(wakes == 102);
}

TEST_CASE("what belongs to a context is forgotten when it ends") {
    start();
    Device &device = devices::at(1);
    CUcontext context = nullptr;
    CUevent event = nullptr;
    CUipcEventHandle handle{};
    CUdeviceptr block = 0;
    REQUIRE(cuCtxCreate_v2(&context, 0, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MiB) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuIpcGetEventHandle(&handle, event) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&block, MiB, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
    shared::opened(block, {}, context);  // as if another process had made it
    CHECK(device.contexts.heap != 0);
    CHECK(shared::any_event());
    CHECK(shared::any());
    CHECK(pools::current_on(device));
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
    CHECK(device.contexts.heap == 0);
    CHECK_FALSE(shared::any_event());
    CHECK_FALSE(shared::any());
    CHECK_FALSE(pools::current_on(device));
    start();
}

TEST_CASE("a graph is recorded while another thread destroys the only other one") {
    start();
    std::atomic<int> missed{0}, left{0};
    const auto make_and_destroy = [&](std::uintptr_t number) {
        const auto executable = reinterpret_cast<CUgraphExec>(number);
        for (int i = 0; i < 300'000; ++i) {
            graphs::Memory memory;
            memory.needs.push_back({&devices::at(0), 64 * MiB});
            const bool made = graphs::made(executable, std::move(memory));
            const auto needs = graphs::missing(executable);
            if (!made || !needs || needs->empty()) ++missed;
            graphs::Destroying destroying(executable);
            if (!destroying) ++left;
            destroying.done();
        }
    };
    std::thread other([&] { make_and_destroy(0x1000); });
    make_and_destroy(0x2000);
    other.join();
    CHECK(missed == 0);
    CHECK(left == 0);
}

TEST_CASE("a trace begins although a thread stands still within an event before it") {
    start();
    const TempDir dir;
    const std::string file = dir.write("trace.json", "");
    REQUIRE(trace::ring.make());
    std::atomic<bool> taken{false}, may_fill{false};
    std::thread stands_still([&] {
        trace::ring.put([&](trace::Record &place) {
            taken = true;
            while (!may_fill) std::this_thread::sleep_for(1ms);
            place = trace::books_event(Kind::plain, 0);
        });
    });
    while (!taken) std::this_thread::sleep_for(1ms);
    curb::policy::TracePolicy policy;
    policy.file = file;
    trace::apply(policy, "test");
    std::this_thread::sleep_for(100ms);
    may_fill = true;
    stands_still.join();
    bool begun = false;
    for (int i = 0; i < 500 && !begun; ++i) {
        std::this_thread::sleep_for(10ms);
        std::error_code gone;
        const auto size = std::filesystem::file_size(file, gone);
        begun = !gone && size != 0;
    }
    trace::apply({}, "test");
    CHECK(begun);
}
