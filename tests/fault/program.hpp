// A CUDA program in which one thing fails in each run: a call of the driver, or an allocation or a system call within
// libcurb.so. It does what programs do (ways.hpp), repeats calls that failed, and records what must not happen: an
// error that it would not see without curb, a driver's error that it does not see, books that do not balance.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "../families/properties.hpp"
#include "abi/cuda_abi.h"
#include "control/messages.hpp"
#include "policy/kinds.hpp"

namespace fault {

using Bytes = std::uint64_t;
inline constexpr Bytes KiB = 1ULL << 10, MiB = 1ULL << 20, GiB = 1ULL << 30;
inline constexpr std::size_t kMostBooks = 4;  // readings of one run

// The fault of one run.
struct Fault {
    std::uint64_t call = 0;  // fails, counted from the start of CUDA; 0: none, calls are only counted
    int code = 0;            // CUresult or errno
    bool others = false;     // a call of threads that are not the program's
    bool lasting =
        false;  // of the host: all later calls fail too, until end_fault() or until a call was refused a few times
    bool blocks = false;  // the policy has light naps, of which none is due, so that curb makes large blocks itself
};

// Makes calls fail.
class Injector {
  public:
    Injector() = default;
    Injector(const Injector &) = delete;
    Injector &operator=(const Injector &) = delete;
    virtual ~Injector() = default;
    virtual void plan(const Fault &fault) = 0;  // counts from here on, on the calling thread
    virtual void pause(bool pause) = 0;         // calls of the test itself neither count nor fail
    virtual const char *failed() = 0;           // the name of the call that failed; null: none yet
    virtual std::uint64_t calls() = 0;          // how many were counted
    // True if calls of the driver fail: the program must see an error of its own call. False for faults of the host:
    // curb may refuse for lack of memory, and may have no control socket.
    virtual bool is_of_driver() const { return false; }
};

// The books of curb and of the driver.
struct Books {
    std::array<Bytes, curb::policy::kKinds> kinds{};
    Bytes held = 0, driver = 0;  // the driver's is NVML's figure, without managed memory
    Bytes shown = 0;             // held, as cuMemGetInfo shows it to the program; 0: not compared
    Bytes cached = 0;
    int contexts = 0;
    bool operator==(const Books &) const = default;
};

// Returns the bytes by which figures may differ: CURB_FAULT_SLACK, in MiB, for a real driver, which takes granules for
// itself; 0 if unset.
Bytes slack();
// True if the figures differ by at most slack().
bool alike(Bytes one, Bytes other);
bool alike(const Books &one, const Books &other);

// The result of a run, in memory shared with the parent process.
struct Report {
    bool complete = false;
    bool reached = false;  // the fault happened
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

    // Calls the driver until it returns `expected`, and records wrong results on the way.
    template <class Call>
    CUresult call(const char *name, CUresult expected, Call call) {
        for (int attempt = 0;; ++attempt) {
            const char *before = injector_.failed();
            const CUresult result = call();
            judge(name, expected, result, before);
            if (result == expected || !again(attempt)) return result;
        }
    }

    // Plans the fault, then initialises CUDA with the primary context of device 0 current.
    CUcontext start();
    // Reads the books, and compares them with the driver's. The fault does not affect these calls.
    Books read_books();
    // Returns the size of device 0 by curb's books.
    Bytes device_size();
    // Checks that the books have `bytes` of this kind.
    void holds(curb::policy::Kind kind, Bytes bytes);
    // Ends a lasting fault: what follows must go as without it.
    void end_fault();
    // Checks that `cap` is in force: a request of its size is refused, and one of a third is granted.
    void cap_holds(Bytes cap);
    // Asks curb over its socket for a release by these steps, and waits for its end.
    void release(const char *steps);
    bool set_cap(const char *size);  // sets a live cap; false if curb does not answer after a fault of the host
    void problem(const std::string &text);

  private:
    template <class Wanted>
    Wanted ask(const curb::control::Request &request);
    // True if the program may try again. Waits first after a fault of the host.
    bool again(int attempt);
    void judge(const char *name, CUresult expected, CUresult result, const char *failed_before);

    Injector &injector_;
    const Fault &fault_;
    Report &report_;
    std::chrono::steady_clock::time_point again_until_{};  // for the present call
};

#define DO(function, ...) p.call(#function, CUDA_SUCCESS, [&] { return function(__VA_ARGS__); })
#define REFUSED(function, ...) p.call(#function, CUDA_ERROR_OUT_OF_MEMORY, [&] { return function(__VA_ARGS__); })

// Returns the default pool, set to keep all freed memory.
inline CUmemoryPool keeping_pool(Program &p) {
    CUmemoryPool pool = nullptr;
    std::uint64_t keep = ~0ULL;
    DO(cuDeviceGetDefaultMemPool, &pool, 0);
    DO(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return pool;
}

}  // namespace fault
