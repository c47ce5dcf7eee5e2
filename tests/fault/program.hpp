// A CUDA program that something fails under, once in each run: a call of the driver, an allocation or a system call
// within libcurb.so. It does what programs do (ways.hpp), tries again what failed, and notes what must not be: an error
// that it would not see without curb, a driver's error that it does not see, books that do not balance.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "control/messages.hpp"
#include "cuda_abi.h"
#include "policy/kinds.hpp"

namespace fault {

using Bytes = std::uint64_t;
inline constexpr Bytes KiB = 1ULL << 10, MiB = 1ULL << 20, GiB = 1ULL << 30;
inline constexpr std::size_t kMostBooks = 4;  // readings of one run

// What is to fail in one run.
struct Fault {
    std::uint64_t call = 0;  // the k-th from the start of CUDA on; 0: none, they are counted
    int code = 0;            // CUresult or errno
    bool others = false;     // of threads that are not the program's
    bool lasting =
        false;  // of the host: and all that follow, until it is said to be over or a call was refused a few times
};

// How it is brought about.
class Injector {
  public:
    Injector() = default;
    Injector(const Injector &) = delete;
    Injector &operator=(const Injector &) = delete;
    virtual ~Injector() = default;
    virtual void plan(const Fault &fault) = 0;  // counted from here on, on the calling thread
    virtual void pause(bool pause) = 0;         // what the test itself asks is neither counted nor failed
    virtual const char *failed() = 0;           // what was failed; null: nothing yet
    virtual std::uint64_t calls() = 0;          // counted
    // The program is to see it, if it was its own call; else curb may refuse what it has no memory for, and may do
    // without its control socket.
    virtual bool is_of_driver() const { return false; }
};

// What curb says and what the simulated driver says.
struct Books {
    std::array<Bytes, curb::policy::kKinds> kinds{};
    Bytes held = 0, driver = 0;  // the driver's without managed memory, as NVML tells it
    Bytes told = 0;              // held, as cuMemGetInfo tells it the program; 0: not told
    Bytes cached = 0;
    int contexts = 0;
    bool operator==(const Books &) const = default;
};

// By how much figures may differ where the driver is a real one, which takes granules for itself: CURB_FAULT_SLACK, in
// MiB; else nothing.
Bytes slack();
// Within that.
bool alike(Bytes one, Bytes other);
bool alike(const Books &one, const Books &other);

// What came of a run: in memory that the parent of the process shares.
struct Report {
    bool complete = false;
    bool reached = false;  // the fault
    std::uint64_t calls = 0;
    std::size_t books_read = 0;
    std::array<Books, kMostBooks> books{};
    std::array<char, 64> failed{};
    std::array<char, 4000> problem{};  // empty: none
};

class Program {
  public:
    Program(Injector &injector, const Fault &fault, Report &report) noexcept
        : injector_(injector), fault_(fault), report_(report) {}

    // Calls the driver until it returns what it must, and notes what it may not return on the way.
    template <class Call>
    CUresult call(const char *name, CUresult expected, Call call) {
        for (int attempt = 0;; ++attempt) {
            const char *before = injector_.failed();
            const CUresult result = call();
            judge(name, expected, result, before);
            if (result == expected || !again(attempt)) return result;
        }
    }

    // Cuda is there, with the primary context of device 0 current; from here on the fault is planned.
    CUcontext start();
    // Reads the books, and holds them against the driver's. The fault does not reach what the test asks.
    Books read_books();
    // What curb says that device 0 has.
    Bytes device_size();
    // Of the kind there is to be so much.
    void holds(curb::policy::Kind kind, Bytes bytes);
    // The fault is over, if it lasted, and the program has time to be served: what follows must go as without it.
    void mend();
    // A cap of `cap` is in force: more is refused, less is served.
    void cap_holds(Bytes cap);
    // Asks curb through its socket: to release by these steps, and waits until it is done; for a cap.
    void release(const char *steps);
    bool set_cap(const char *size);  // false: it could not be asked, after a fault of the host
    void problem(const std::string &text);

  private:
    template <class Wanted>
    Wanted ask(const curb::control::Request &request);
    // Whether a program would try once more. Where curb lacks what it needs, that may take a while.
    bool again(int attempt);
    void judge(const char *name, CUresult expected, CUresult result, const char *failed_before);

    Injector &injector_;
    const Fault &fault_;
    Report &report_;
};

// Requests for memory of device 0: mapped, of a pool, and by a graph.
inline CUmemAllocationProp on_device() {
    CUmemAllocationProp out;
    std::memset(&out, 0, sizeof out);
    out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return out;
}
inline CUmemPoolProps pool_on_device() {
    CUmemPoolProps out;
    std::memset(&out, 0, sizeof out);
    out.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return out;
}
inline CUDA_MEM_ALLOC_NODE_PARAMS memory_node(Bytes bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS out;
    std::memset(&out, 0, sizeof out);
    out.poolProps = pool_on_device();
    out.bytesize = bytes;
    return out;
}

#define DO(function, ...) p.call(#function, CUDA_SUCCESS, [&] { return function(__VA_ARGS__); })
#define REFUSED(function, ...) p.call(#function, CUDA_ERROR_OUT_OF_MEMORY, [&] { return function(__VA_ARGS__); })

// The default pool, from now on keeping all that is freed in it.
inline CUmemoryPool keeping_pool(Program &p) {
    CUmemoryPool pool = nullptr;
    std::uint64_t keep = ~0ULL;
    DO(cuDeviceGetDefaultMemPool, &pool, 0);
    DO(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return pool;
}

}  // namespace fault
