#include "suspend/gate.hpp"

#include <thread>

#include "control/client.hpp"
#include "machine/target.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLease{3000}, kAskAgain{500}, kPatience{2000};

policy::Result<control::GateReport, std::string> ask(int pid, const control::GateRequest &request) {
    return report_in<control::GateReport>(pid, control::ask(pid, request, kPatience));
}

// Returns the status of a nap in which the driver has moved nothing. nullopt if the process is not in one.
std::optional<control::NapStatus> light_nap(int pid) {
    auto status = report_in<control::Status>(pid, control::ask(pid, control::StatusRequest(), kPatience));
    const bool naps = status && status->nap && status->nap->out && status->nap->is_light;
    return naps ? std::move(status->nap) : std::nullopt;
}

control::GateRequest closing() { return {.close_for = static_cast<std::uint64_t>(kLease.count())}; }

}  // namespace

Gate::~Gate() {
    if (closed_) open_gate(pid_, milliseconds(0));
}

std::optional<std::string> Gate::close(policy::Duration patience, bool force) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
        const auto report = ask(pid_, closing());
        asked_ = std::chrono::steady_clock::now();
        closed_ = report && report->closed;
        if (report && !report->stays.empty()) return report->stays + "; curb release gives back what it caches";
        if (!closed_) {
            if (force) return std::nullopt;
            return fmt::format(
                "its calls of CUDA cannot be made to wait, and a synchronisation would end it: {}; --force "
                "if it makes none until curb resume",
                report ? report->why : report.error());
        }
        if (!report->bypasses.empty() && !force)
            return fmt::format(
                "CUDA calls would bypass curb, and a synchronisation would end it: {}, {}; "
                "--force if it makes none until curb resume",
                report->bypasses.front().library, report->bypasses.front().how);
        if (report->waits_for.empty()) return std::nullopt;
        if (asked_ >= until)
            return fmt::format("a call of {} did not return within {}; try again, or --timeout 1m", report->waits_for,
                               policy::format(patience));
        std::this_thread::sleep_for(milliseconds(2));
    }
}

std::optional<std::string> Gate::deepen_nap(policy::Duration patience) const {
    for (const auto until = std::chrono::steady_clock::now() + patience;;) {
        const auto nap = light_nap(pid_);
        if (!nap) return std::nullopt;
        if (!nap->stays.empty() || std::chrono::steady_clock::now() >= until)
            return "it naps, and the driver has not moved the rest" + (nap->stays.empty() ? "" : ": " + nap->stays);
        static_cast<void>(ask(pid_, closing()));  // it takes that for the wish
        std::this_thread::sleep_for(milliseconds(50));
    }
}

bool Gate::turn_nap_into_suspend() {
    const auto report = ask(pid_, closing());
    return report && report->napped;
}

void Gate::keep_closed() {
    if (!closed_ || std::chrono::steady_clock::now() < asked_ + kAskAgain) return;
    asked_ = std::chrono::steady_clock::now();
    static_cast<void>(ask(pid_, closing()));
}

void Gate::leave_closed() {
    closed_ = false;
    is_left_ = true;
}

void Gate::report(policy::Bytes moved) const {
    if (!is_left_) return;
    control::GateRequest request = closing();
    request.moved = moved;
    static_cast<void>(ask(pid_, request));  // an older libcurb.so does not know this member
}

policy::Result<policy::Bytes, std::string> begin_nap(int pid, policy::Duration patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    const auto status = [&] {
        return report_in<control::Status>(pid, control::ask(pid, control::StatusRequest(), kPatience));
    };
    const auto before = status();
    if (!before) return before.error();
    if (before->nap && before->nap->out) return before->nap->bytes;
    const auto begun =
        report_in<control::GateReport>(pid, control::ask(pid, control::GateRequest{{}, true}, kPatience));
    if (!begun) return begun.error();
    if (!begun->why.empty()) return begun->why + fmt::format("; curb resume {} brings it back", pid);
    for (;;) {
        const auto now = status();
        if (!now) return now.error();
        const std::uint64_t count = before->nap ? before->nap->count : 0;
        if (now->nap && now->nap->count > count) return now->nap->bytes;  // it napped; it may be back already
        if (now->nap && !now->nap->refused.empty()) return now->nap->refused;
        if (std::chrono::steady_clock::now() >= until)
            return fmt::format("it has not left within {}; try again, or --timeout 1m", policy::format(patience));
        std::this_thread::sleep_for(milliseconds(10));
    }
}

std::optional<policy::Result<policy::Bytes, std::string>> end_light_nap(int pid, policy::Duration patience) {
    const auto before = light_nap(pid);
    if (!before) return std::nullopt;
    static_cast<void>(ask(pid, control::GateRequest()));
    for (const auto until = std::chrono::steady_clock::now() + patience; light_nap(pid);) {
        if (std::chrono::steady_clock::now() >= until)
            return std::string("it comes back as soon as there is room on its GPUs");
        std::this_thread::sleep_for(milliseconds(20));
    }
    return before->bytes;
}

void open_gate(int pid, policy::Duration took) {
    control::GateRequest request;
    request.took_ms = static_cast<std::uint64_t>(took.count());
    // An older libcurb.so does not know `took_ms`.
    if (!ask(pid, request) && request.took_ms != 0) static_cast<void>(ask(pid, control::GateRequest()));
}

}  // namespace curb::cli
