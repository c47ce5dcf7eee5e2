// What the outside asks a capped process and what it answers, as values. On the wire each is one line of JSON
// (messages.cpp), which names the version of this format.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "control/release_report.hpp"
#include "control/status.hpp"
#include "policy/release_plan.hpp"
#include "policy/result.hpp"
#include "policy/size.hpp"

namespace curb::control {

// Lines that are longer, newline included, are refused.
inline constexpr std::size_t kLongestRequest = std::size_t{64} << 10;
inline constexpr std::size_t kLongestReply = std::size_t{1} << 20;
inline constexpr std::size_t kMostSteps = 64;  // that a request may name, each of them again if it likes

struct StatusRequest {
    bool detail = false;  // also what takes some milliseconds to find out: Status::passed
    friend bool operator==(const StatusRequest &, const StatusRequest &) = default;
};
// A cap in the place of the policy's, until the process ends; the machine's ceiling holds all the same.
struct CapRequest {
    std::optional<policy::Size> cap;  // none: the policy's again
    std::string gpu = "*";            // a key as in policies
    friend bool operator==(const CapRequest &, const CapRequest &) = default;
};
// To read the policy's files again now, and say what comes of it.
struct ReloadRequest {
    friend bool operator==(const ReloadRequest &, const ReloadRequest &) = default;
};
using Request = std::variant<StatusRequest, policy::ReleaseRequest, CapRequest, ReloadRequest>;

struct Failure {
    std::string message;  // what, where, and what to do about it
    friend bool operator==(const Failure &, const Failure &) = default;
};

struct CapChange {
    int ordinal = 0;
    std::string uuid;
    std::optional<policy::Bytes> before, now;  // in force; absent: none
    std::optional<policy::Size> live_cap;      // what `curb cap` has set, by this key or one that is more specific
    bool ceiling = false;                      // the machine's ceiling allows no more than `now`
    policy::Bytes held = 0;
    friend bool operator==(const CapChange &, const CapChange &) = default;
};
struct CapReport {
    std::vector<CapChange> gpus;  // those that the key names
    friend bool operator==(const CapReport &, const CapReport &) = default;
};

struct ReloadReport {
    std::string file;                  // empty: the process has none of its own
    std::string rule;                  // in force now
    std::vector<std::string> changes;  // "/gpu/*/cap: 8GiB -> 6GiB"; none: it says what was in force already
    std::vector<std::string> notes;    // what is right but has no effect
    std::vector<std::string> errors;   // with their places; some: the last good policy stays in force
    friend bool operator==(const ReloadReport &, const ReloadReport &) = default;
};
using Reply = std::variant<Failure, Status, ReleaseReport, CapReport, ReloadReport>;

// As members of the answers of `curb … --json`: every member is there, and null where nothing is known. Of a status all
// but its devices.
std::string json_of(const Status &status);
std::string json_of(const GpuStatus &gpu);
std::string json_of(const StepReport &step);
std::string json_of(const CapChange &change);

// One line each, without the newline. May throw std::bad_alloc.
std::string text(const Request &request);
std::string text(const Reply &reply);
// The error is a sentence that says what is wrong with the line. Fields that are not known are errors in requests, and
// passed over in replies, so that an older command understands a newer library.
policy::Result<Request, std::string> parse_request(std::string_view line);
policy::Result<Reply, std::string> parse_reply(std::string_view line);

}  // namespace curb::control
