#include "runtime/posting.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/lifetime.hpp"
#include "control/board.hpp"
#include "control/ticket.hpp"
#include "device/activity.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "host/process_state.hpp"
#include "limits/in_force.hpp"
#include "nap/nap.hpp"
#include "nap/turns.hpp"
#include "policy/names.hpp"
#include "release/idle.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::posting {
namespace {

namespace board = control::board;

constexpr std::uint64_t kPollMs = 1000;
// NVML is asked so often whether an idle program runs a long kernel.
constexpr std::uint64_t kSampleMs = 5000;

// The file, for exit().
struct File {
    std::mutex mutex;
    bool exiting = false;
    std::string path;  // empty: there is none
};
File &file() noexcept { return leaked<File>(); }
constinit process::Home home;  // the file is its own

// The caller holds the lock. Allocates nothing: a program that exits from a signal handler may be within malloc.
void remove(File &file) noexcept {
    if (!file.path.empty()) unlink(file.path.c_str());
    file.path.clear();
}

// Fork children run this too, but the file is their parent's.
void at_exit() {
    if (!home.is_here()) return;
    const std::scoped_lock lock(file().mutex);
    file().exiting = true;
    remove(file());
}

control::UnixMs ends_of(const board::Gpu &gpu) { return gpu.turn && gpu.turn->leaves != 0 ? gpu.turn->ends : 0; }

board::State state_now() {
    const auto nap = nap::status();
    if ((nap && nap->out) || gate::is_closed()) return board::State::napping;
    return wait_queue::any() ? board::State::waiting : board::State::running;
}

// What this process has on the board. Only the worker uses it.
class Poster {
  public:
    void poll() {
        const policy::Share share = in_force::snapshot()->policy.share.value_or(policy::Share::all);
        if (share == policy::Share::none || !devices::any_in_use()) return withdraw();
        board::Entry now = entry(share);
        const bool is_news = now.state != last_.state || !same_waits(now);
        now.since = is_news || last_.since == 0 ? control::unix_now() : last_.since;
        const std::uint64_t age = now_ms() - written_ms_;
        if (is_news || !is_posted_ || (now != last_ && age >= kPollMs)) return write(std::move(now));
        if (now_ms() - touched_ms_ >= control::text_link::kTouchMs) touch();
    }

  private:
    board::Entry entry(policy::Share share);
    [[nodiscard]] bool same_waits(const board::Entry &now) const {
        return std::equal(now.gpus.begin(), now.gpus.end(), last_.gpus.begin(), last_.gpus.end(),
                          [](const board::Gpu &a, const board::Gpu &b) {
                              return a.uuid == b.uuid && a.wants == b.wants && a.since == b.since &&
                                     ends_of(a) == ends_of(b);
                          });
    }
    std::uint64_t last_used_ms();
    void write(board::Entry now);
    void touch();
    void withdraw() {
        const std::scoped_lock lock(file().mutex);
        remove(file());
        is_posted_ = false;
    }
    control::Places places_ = control::places();
    std::optional<control::ProcessName> process_ = control::name_of(getpid());
    board::Entry last_{};
    bool is_posted_ = false;
    std::uint64_t written_ms_ = 0, touched_ms_ = 0, used_ms_ = now_ms(), sampled_ms_ = now_ms();
};

std::uint64_t Poster::last_used_ms() {
    const std::uint64_t now = now_ms();
    used_ms_ = std::max(used_ms_, activity::last_used_ms(now));
    if (now - used_ms_ >= kSampleMs && now - sampled_ms_ >= kSampleMs && !gate::is_closed()) {
        if (const auto when = idle::seen_running(sampled_ms_)) used_ms_ = std::max(used_ms_, *when);
        sampled_ms_ = now;
    }
    return used_ms_;
}

board::Entry Poster::entry(policy::Share share) {
    static const std::uint64_t pid_namespace = control::text_link::own_pid_namespace();
    const auto in_use = in_force::snapshot();
    const control::UnixMs unix_now = control::unix_now();
    const auto unix_of = [&](std::uint64_t ago_ms) { return unix_now - static_cast<control::UnixMs>(ago_ms); };
    board::Entry out{.process = process_.value_or(control::ProcessName{}), .pid_namespace = pid_namespace};
    out.state = state_now();
    // In steps, so that the file of a busy program does not change for this alone.
    constexpr control::UnixMs kStep = 5000;
    out.used = unix_of(now_ms() - last_used_ms()) / kStep * kStep;
    for (const Device &device : devices::all()) {
        if (!devices::in_use(device)) continue;
        board::Gpu gpu{.uuid = device.meter.uuid()};
        if (share == policy::Share::all) {
            gpu.held = device.ledger.held();
            gpu.cap = in_use->of(device.ordinal).terms.cap;
        }
        for (const wait_queue::Waiting &one : wait_queue::waiting()) {
            if (one.request.ordinal != device.ordinal || gpu.wants != 0) continue;
            gpu.wants = std::max<policy::Bytes>(one.request.bytes, 1);  // code has no size before it is loaded
            // The wait's begin, which two readings must give alike.
            const auto before = std::find_if(last_.gpus.begin(), last_.gpus.end(),
                                             [&](const board::Gpu &other) { return other.uuid == gpu.uuid; });
            const control::UnixMs since = unix_of(one.milliseconds);
            const bool goes_on =
                before != last_.gpus.end() && before->wants != 0 && std::abs(before->since - since) < 50;
            gpu.since = goes_on ? before->since : since;
        }
        if (share == policy::Share::all) turns::post(device, gpu);
        out.gpus.push_back(std::move(gpu));
    }
    return out;
}

void Poster::write(board::Entry now) {
    written_ms_ = touched_ms_ = now_ms();
    if (!process_) return;
    const auto folder = control::public_directory(places_, geteuid());
    if (!folder) return;
    if (last_.gpus.empty()) {  // the first time
        constexpr auto kGoesOn = []() noexcept { return !own_thread::stopped(); };
        if (const auto opened = control::open_folder(*folder, false)) {
            control::Ticket::remove_stale(*opened, kGoesOn);
            board::remove_stale(*opened, kGoesOn);
        }
    }
    std::string path = folder->path + "/" + board::name_of(*process_);
    const std::string text = board::text_of(now);
    const std::scoped_lock lock(file().mutex);
    if (file().exiting) return;
    if (home.set()) atexit(at_exit);
    is_posted_ = control::text_link::write(path, text).empty();
    if (!is_posted_) return;
    file().path = std::move(path);
    last_ = std::move(now);
}

void Poster::touch() {
    touched_ms_ = now_ms();
    const std::scoped_lock lock(file().mutex);
    is_posted_ = !file().path.empty() && control::text_link::touch(file().path);
}

}  // namespace

std::uint64_t poll() noexcept try {
    auto &poster = leaked<std::optional<Poster>>();
    if (!poster) poster.emplace();
    poster->poll();
    return kPollMs;
} catch (...) {
    return kPollMs;  // out of host memory: the file stays as it is
}

}  // namespace curb::shim::posting
