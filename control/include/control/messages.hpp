// Requests to a capped process and its replies, as values. On the wire each is one line of JSON (messages.cpp) with the
// version of the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "control/release_report.hpp"
#include "control/status.hpp"
#include "policy/decisions/release_plan.hpp"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::control {

// Longer lines, newline included, are refused.
inline constexpr std::size_t kLongestRequest = std::size_t{64} << 10;
inline constexpr std::size_t kLongestReply = std::size_t{1} << 20;
inline constexpr std::size_t kMostSteps = 64;  // of a request; a step may stand there several times

struct StatusRequest {
    bool detail = false;  // with Status::bypasses and returns_nothing, which take some milliseconds
    friend bool operator==(const StatusRequest &, const StatusRequest &) = default;
};
// Replaces the policy's cap until the process ends. The machine's ceiling still holds.
struct CapRequest {
    std::optional<policy::Size> cap;  // nullopt: back to the policy's
    std::string gpu = "*";            // a key as in policies
    bool job = false;                 // the cap of its job, in all processes of the job, until the last one ends
    friend bool operator==(const CapRequest &, const CapRequest &) = default;
};
// Makes the process's calls of the driver wait, or go on (shim/driver/gate.hpp).
struct GateRequest {
    // Milliseconds for which the calls wait, unless another request comes first. Then the process asks the driver if it
    // is out of its GPUs. nullopt: the calls go on.
    std::optional<std::uint64_t> close_for;
    // Instead: the process begins a nap now; Status::nap shows the result. With `close_for` only curb's own moves, and
    // no call ends the nap for that long, nor while further requests come in time.
    bool nap = false;
    bool stays = false;  // such a nap is a suspend from now on
    // For the trace.
    policy::Bytes moved = 0;    // the process is out, and the client has moved these bytes to host memory
    std::uint64_t took_ms = 0;  // the process is back, and this is how long the move took
    friend bool operator==(const GateRequest &, const GateRequest &) = default;
};
// Asks for memory that the process shares by CUDA IPC. The answer comes with a descriptor of it.
struct MemoryRequest {
    std::string handle;                   // the bytes of the CUipcMemHandle, in hexadecimal digits
    std::optional<std::uint64_t> closed;  // instead: the memory of this MemoryReport::opening is no longer open
    friend bool operator==(const MemoryRequest &, const MemoryRequest &) = default;
};
using Request = std::variant<StatusRequest, policy::ReleaseRequest, CapRequest, GateRequest, MemoryRequest>;

struct Failure {
    std::string message;  // what is wrong, where, and the remedy
    friend bool operator==(const Failure &, const Failure &) = default;
};

struct CapChange {
    int ordinal = 0;
    std::string uuid;
    std::optional<policy::Bytes> before, now;  // in force; nullopt: none
    std::optional<policy::Size> live_cap;      // set by `curb cap`, for this key or a more specific one
    bool ceiling = false;                      // the machine's ceiling allows no more than `now`
    policy::Bytes held = 0;                    // by the process, or by the job if that is capped
    friend bool operator==(const CapChange &, const CapChange &) = default;
};
struct CapReport {
    std::vector<CapChange> gpus;  // that the key names
    friend bool operator==(const CapReport &, const CapReport &) = default;
};
struct GateReport {
    bool closed = false;           // new calls wait
    bool napped = false;           // the process was out by a nap; now it stays out
    std::string why;               // why the gate is not closed, or no nap begins
    std::string stays;             // why the process cannot leave its GPUs now; the gate is not closed either
    std::string waits_for;         // a function that a thread is in and that must return before the process is moved
    std::vector<Bypass> bypasses;  // libraries whose calls do not wait; only when the gate was open before
    friend bool operator==(const GateReport &, const GateReport &) = default;
};
struct MemoryReport {
    std::uint64_t opening = 0;  // its number in the process that shares the memory; 0: none was opened
    friend bool operator==(const MemoryReport &, const MemoryReport &) = default;
};
using Reply = std::variant<Failure, Status, ReleaseReport, CapReport, GateReport, MemoryReport>;
// The Failure of a process that serves as many clients as it can.
inline constexpr const char *kTooManyClients = "too many others wait for an answer of this process; try again";

// Return parts of the answers of `curb … --json`. Every member is there; an unknown one is null. json_of(status) leaves
// out the devices.
std::string json_of(const Status &status);
std::string json_of(const GpuStatus &gpu);
std::string json_of(const StepReport &step);
std::string json_of(const CapChange &change);

// Return one line, without the newline. May throw std::bad_alloc.
std::string text(const Request &request);
std::string text(const Reply &reply);
// The error is a sentence. A field that is not known is an error in a request. It is ignored in a reply, so that an
// older command understands a newer library.
policy::Result<Request, std::string> parse_request(std::string_view line);
policy::Result<Reply, std::string> parse_reply(std::string_view line);

}  // namespace curb::control
