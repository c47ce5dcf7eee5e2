// Helpers of the tests of the control socket.
#pragma once

#include <variant>

#include "capped.hpp"
#include "ceiling.hpp"
#include "control/client.hpp"
#include "policy/values/size.hpp"
#include "start.hpp"

namespace steered {

using namespace curb;
using control::ask;
using control::CapChange;
using control::CapReport;
using control::CapRequest;
using control::Failure;
using control::Status;
using control::StatusRequest;
using policy::Bytes;
using policy::GiB;
using policy::MiB;
using Clock = std::chrono::steady_clock;

inline constexpr Bytes kContext = 518 * MiB;

inline Capped::How how(Environment environment) { return {.environment = std::move(environment)}; }
inline Capped::How under(const std::string &policy) { return {.policy = policy}; }
inline std::string capped_at(const std::string &size, const std::string &more = "") {
    return R"({ "version": 1, "log": { "level": "info" }, "gpu": { "*": { "cap": ")" + size + "\"" + more + " } } }";
}

template <class One>
One said(const control::Reply &reply) {
    if (const auto *failure = std::get_if<Failure>(&reply)) FAIL(failure->message);
    REQUIRE(std::holds_alternative<One>(reply));
    return std::get<One>(reply);
}
inline std::string refusal(const control::Reply &reply) {
    REQUIRE(std::holds_alternative<Failure>(reply));
    return std::get<Failure>(reply).message;
}

inline Status status(const Capped &process) { return said<Status>(ask(process.pid(), StatusRequest(), 10s)); }
inline CapRequest cap(const char *size, const char *gpu = "*") {
    return {policy::parse_size(size).value(), gpu, false};
}
inline CapRequest reset(const char *gpu = "*") { return {std::nullopt, gpu, false}; }
inline CapReport set(const Capped &process, const CapRequest &request) {
    return said<CapReport>(ask(process.pid(), request, 10s));
}

// Runs `what` 20 times. Returns the shortest time.
template <class What>
Clock::duration quickest(What what) {
    auto best = Clock::duration::max();
    for (int i = 0; i < 20; ++i) {
        const auto begin = Clock::now();
        what();
        best = std::min(best, Clock::now() - begin);
    }
    return best;
}

// A program that holds Python's lock until its input has another line.
inline constexpr const char *kHoldsTheLock = R"(
import ctypes, sys
cuda = ctypes.CDLL('libcuda.so.1')
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print('ready', flush=True)
sys.stdin.readline()
libc = ctypes.PyDLL(None)    # whose calls keep the lock
sys.setswitchinterval(1000)  # nor is it given away between them
libc.write(1, b'holding\n', 8)
libc.read(0, ctypes.create_string_buffer(1), 1)
sys.setswitchinterval(0.005)
print('free', flush=True)
sys.stdin.readline()
)";
inline Capped::How python(Environment environment = {}) {
    environment.emplace("PYTHONUNBUFFERED", "1");
    return {.command = {tested::kPython, "-c", kHoldsTheLock}, .environment = std::move(environment)};
}

}  // namespace steered
