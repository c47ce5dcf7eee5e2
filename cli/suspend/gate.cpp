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

// Returns the status of the process's naps. nullopt if it has none, or does not answer.
std::optional<control::NapStatus> nap_of(int pid) {
    auto status = report_in<control::Status>(pid, control::ask(pid, control::StatusRequest(), kPatience));
    return status ? std::move(status->nap) : std::nullopt;
}
// True if a part is out that only the process itself brings back.
bool has_light_part(const std::optional<control::NapStatus> &nap) {
    return nap && nap->out && (nap->is_light || nap->stays_out);
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

std::optional<control::NapStatus> Gate::move_lightly(policy::Duration patience) {
    control::GateRequest request;
    request.nap = true;
    request.close_for = static_cast<std::uint64_t>((patience + kLease).count());
    const auto before = nap_of(pid_);
    if (!before || (before->out && !before->is_light)) return std::nullopt;
    for (const auto until = std::chrono::steady_clock::now() + patience;;) {
        // Asked again, because a nap of its own may be on its way out or back.
        const auto begun = ask(pid_, request);
        if (!begun || !begun->why.empty()) return std::nullopt;
        auto nap = nap_of(pid_);
        if (nap && begun->closed) {
            closed_ = is_light_ = true;
            return nap;
        }
        if (!nap || !nap->refused.empty() || std::chrono::steady_clock::now() >= until) break;
        std::this_thread::sleep_for(milliseconds(10));
    }
    open_gate(pid_, milliseconds(0));
    return std::nullopt;
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
    request.stays = is_light_;
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

bool is_kept_out(int pid) {
    const auto nap = nap_of(pid);
    return nap && nap->stays_out;
}

std::optional<policy::Result<control::NapStatus, std::string>> end_light_nap(int pid, policy::Duration patience,
                                                                             policy::Duration took) {
    auto nap = nap_of(pid);
    if (!has_light_part(nap)) return std::nullopt;
    open_gate(pid, took);
    auto now = nap;
    for (const auto until = std::chrono::steady_clock::now() + patience; has_light_part(now); now = nap_of(pid)) {
        if (now->count != nap->count) break;  // it naps again
        if (std::chrono::steady_clock::now() >= until)
            return std::string("what curb moved of it comes back as soon as there is room on its GPUs");
        std::this_thread::sleep_for(milliseconds(10));
    }
    if (!now) return std::string("it does not answer");
    nap->light.back_ms = now->light.back_ms;
    return *nap;
}

void open_gate(int pid, policy::Duration took) {
    control::GateRequest request;
    request.took_ms = static_cast<std::uint64_t>(took.count());
    // An older libcurb.so does not know `took_ms`.
    if (!ask(pid, request) && request.took_ms != 0) static_cast<void>(ask(pid, control::GateRequest()));
}

}  // namespace curb::cli
