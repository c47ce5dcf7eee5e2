// What the outside asks a capped process and what it answers, as values. On the wire each is one line of JSON
// (messages.cpp), which names the version of this format.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "control/release_report.hpp"
#include "policy/release_plan.hpp"
#include "policy/result.hpp"

namespace curb::control {

// Lines that are longer, newline included, are refused.
inline constexpr std::size_t kLongestRequest = std::size_t{64} << 10;
inline constexpr std::size_t kLongestReply = std::size_t{1} << 20;
inline constexpr std::size_t kMostSteps = 64;  // that a request may name, each of them again if it likes

struct StatusRequest {
    friend bool operator==(const StatusRequest &, const StatusRequest &) = default;
};
using Request = std::variant<StatusRequest, policy::ReleaseRequest>;

// What the process holds of one device, by its own books. Sizes in bytes.
struct GpuStatus {
    int ordinal = 0;            // as this process counts its devices
    std::string uuid;           // "GPU-…", of an instance "MIG-…"
    policy::Bytes held = 0;     // everything
    policy::Bytes managed = 0;  // of it, managed memory
    int contexts = 0;           // live ones that were seen being made
    friend bool operator==(const GpuStatus &, const GpuStatus &) = default;
};

struct Status {
    int pid = 0;
    std::string version;          // of the library in the process
    std::vector<GpuStatus> gpus;  // all that the process sees
    friend bool operator==(const Status &, const Status &) = default;
};

struct Failure {
    std::string message;  // what, where, and what to do about it
    friend bool operator==(const Failure &, const Failure &) = default;
};
using Reply = std::variant<Failure, Status, ReleaseReport>;

// One line each, without the newline. May throw std::bad_alloc.
std::string text(const Request &request);
std::string text(const Reply &reply);
// The error is a sentence that says what is wrong with the line. Fields that are not known are errors in requests, and
// passed over in replies, so that an older command understands a newer library.
policy::Result<Request, std::string> parse_request(std::string_view line);
policy::Result<Reply, std::string> parse_reply(std::string_view line);

}  // namespace curb::control
