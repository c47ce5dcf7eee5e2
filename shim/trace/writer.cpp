#include "trace/writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "device/devices.hpp"
#include "policy/values/words.hpp"
#include "threads/own_thread.hpp"
#include "threads/worker_signal.hpp"
#include "trace/file.hpp"
#include "trace/lines.hpp"
#include "trace/recording.hpp"

namespace curb::shim::trace {

State &state() noexcept { return leaked<State>(); }

namespace writer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPollMs = 20;
constexpr std::size_t kChunk = std::size_t{256} << 10;  // written at once
constexpr std::chrono::seconds kBetweenTries{1};        // retry pause, e.g. for a full disk

// Every end of a program reads `runs_in`. Not 0: so it is initialised data, whose page every start touches anyway.
constexpr pid_t kNowhere = -1;
constinit std::atomic<pid_t> runs_in{kNowhere};  // the process with the thread

// Returns the number of the trace that a mark begins.
std::uint64_t number_of(const Record &begin) noexcept { return static_cast<std::uint64_t>(begin.bytes); }

// Stores a trace's error, unless a newer trace has begun.
void note_trouble(std::uint64_t number, const std::string &error, bool ended) {
    {
        const std::scoped_lock lock(state().mutex);
        if (number != state().begun) return;
        state().unsaid |= state().error.empty();
        state().error = error;
        state().ended = ended;
        if (ended) detail::recording = false;
    }
    worker_signal::wake_up();
}

void count_events(std::uint64_t more) noexcept {
    const std::scoped_lock lock(state().mutex);
    state().events += more;
}

// Returns the number of flushes that were asked for.
std::uint64_t flushes_asked() noexcept {
    const std::scoped_lock lock(state().mutex);
    return state().flushes_asked;
}

void note_flushed(std::uint64_t asked) noexcept {
    const std::scoped_lock lock(state().mutex);
    state().flushes_done = asked;
}

// The trace being written.
class Current {
  public:
    Current(File file, const Record &begin)
        : file_(std::move(file)), number_(number_of(begin)), lines_(getpid(), begin.ns), dropped_seen_(ring.dropped()) {
        const std::scoped_lock lock(state().mutex);
        state().events = state().dropped = 0;
    }

    // False if the trace has ended by an error.
    bool write_header(const Record &begin);
    void take(const Record &record);
    // Writes the pending lines, after the ring was read. True if it put records into the ring itself.
    bool finish_pass();
    void lose() noexcept { ++lost_; }
    [[nodiscard]] bool ended() const noexcept { return ended_; }

  private:
    void write_out();
    void trouble(const std::string &error, bool ended);
    bool record_held() noexcept;

    File file_;
    std::uint64_t number_;  // of State::begun
    Lines lines_;
    std::uint64_t dropped_seen_;  // value of ring.dropped() up to which drops are reported or belong to earlier traces
    std::uint64_t lost_ = 0;      // events that could not be written and are not reported yet
    std::uint64_t reported_ = 0;  // missing events reported in the file
    std::optional<Clock::time_point> retry_;  // set after a failed write: the time of the next attempt
    bool owes_books_ = false;                 // some figures in the file are out of date
    bool unwritten_ = false;                  // lines_.said() has figures that are not in the file
    bool ended_ = false;
};

control::trace::Header header_for(const Record &begin, const std::string &command) {
    timespec wall{};
    clock_gettime(CLOCK_REALTIME, &wall);
    const auto ago = static_cast<std::int64_t>(now_ns() - begin.ns);
    control::trace::Header header;
    header.pid = getpid();
    header.version = CURB_VERSION;
    header.unix_ns = wall.tv_sec * 1'000'000'000 + wall.tv_nsec - ago;
    header.command = policy::one_line(command);
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) == 0) header.host = policy::one_line(host.data());
    for (const Device &device : devices::all()) {
        header.gpus.push_back(
            {device.ordinal, device.meter.uuid(), policy::one_line(device.model.data()), device.total});
    }
    return header;
}

bool Current::write_header(const Record &begin) {
    // The record's text is the path, a NUL and the command.
    const std::string text = control::trace::text(header_for(begin, begin.text->c_str() + begin.text->find('\0') + 1));
    const File::Appended appended = file_.append(text);
    if (appended.bytes == text.size()) return true;
    trouble(appended.error, true);
    return false;
}

void Current::take(const Record &record) {
    if (retry_ && Clock::now() < *retry_) {
        ++lost_;
        return;
    }
    lines_.add(record);
    if (lines_.text().size() >= kChunk) write_out();
}

bool Current::finish_pass() {
    if (ended_) return false;
    if (!retry_ || Clock::now() >= *retry_) {
        lines_.add_counters();
        const std::uint64_t dropped = ring.dropped(), missing = dropped - dropped_seen_ + lost_;
        if (missing != 0) lines_.add_dropped(now_ns(), missing);
        write_out();
        if (missing != 0 && !retry_ && !ended_) {
            reported_ += missing;
            dropped_seen_ = dropped;
            lost_ = 0;
            owes_books_ = true;
        }
    }
    const bool owed = owes_books_ && !ended_;
    if (owed) owes_books_ = !record_held();
    const std::scoped_lock lock(state().mutex);
    state().dropped = reported_ + ring.dropped() - dropped_seen_ + lost_;
    return owed;
}

// Missing events leave figures out of date, so record the held bytes again, as at the start of a trace.
bool Current::record_held() noexcept {
    bool all = true;
    for (const Device &device : devices::all()) {
        // A thread changes the figure of a kind and the sum one after the other: an event in between shows only one
        // change.
        const bool stale = unwritten_ || device.ledger.held() != lines_.said_held(device.ordinal);
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (stale || device.ledger.of(static_cast<Kind>(kind)) != lines_.said(device.ordinal)[kind])
                all = put_held(device, static_cast<Kind>(kind)) && all;
    }
    if (all) unwritten_ = false;
    return all;
}

void Current::write_out() {
    if (lines_.text().empty() || ended_) return;
    const std::string_view text = lines_.text();
    const File::Appended appended = file_.append(text);
    count_events(events_in(text.substr(0, appended.bytes)));
    lost_ += events_in(text.substr(appended.bytes));
    lines_.clear();
    if (!appended.error.empty()) {
        retry_ = Clock::now() + kBetweenTries;
        unwritten_ = true;
        trouble(appended.error, appended.ended);
    } else if (retry_) {
        retry_.reset();
        const std::scoped_lock lock(state().mutex);
        if (number_ == state().begun) state().error.clear();
    }
}

void Current::trouble(const std::string &error, bool ended) {
    ended_ = ended;
    note_trouble(number_, error, ended);
}

// Only the thread uses it. Never destroyed, because the thread is never joined.
constinit std::optional<Current> *writing = nullptr;

void begin(const Record &record) {
    *writing = {};
    auto file = File::make(record.text->c_str());
    if (!file) return note_trouble(number_of(record), file.error(), true);
    writing->emplace(std::move(file).value(), record);
    if (!(*writing)->write_header(record)) *writing = {};
}

void take(const Record &record) {
    const std::unique_ptr<std::string> text(record.text);
    const bool is_mark = record.mark == Record::Mark::begin || record.mark == Record::Mark::end;
    try {
        if (is_mark && *writing) {
            (*writing)->finish_pass();
            *writing = {};
        }
        if (record.mark == Record::Mark::begin)
            begin(record);
        else if (!is_mark && *writing)
            (*writing)->take(record);
    } catch (...) {  // out of host memory
        if (is_mark)
            *writing = {};
        else if (*writing)
            (*writing)->lose();
    }
}

// Processes at most one ring of records; later ones wait for the next call. True if it should run again at once.
bool drain_ring() noexcept {
    for (std::size_t taken = 0; taken < kRecords && ring.take(take); ++taken) {
    }
    if (!*writing) return false;
    try {
        const bool more = (*writing)->finish_pass();
        if ((*writing)->ended()) *writing = {};
        return more;
    } catch (...) {
        return false;  // out of host memory: try again next time
    }
}

// Sleeps 20 ms or until woken; without a trace and with an empty ring, until woken. (A mark may be behind a record that
// its thread has not filled yet, and nothing wakes us when it is filled.)
void sleep() noexcept {
    constexpr std::uint64_t kDayMs = 86'400'000;
    writer_event.wait(*writing || ring.waiting() != 0 ? kPollMs : kDayMs);
}

void run() {
    leave_programs_descriptors();
    for (;;) {
        const std::uint64_t asked = flushes_asked();
        std::uint64_t end = ring.end();
        if (drain_ring()) {
            end = ring.end();
            drain_ring();
        }
        // A record whose thread has not filled it yet holds up those behind it.
        if (ring.taken() >= end) note_flushed(asked);
        sleep();
    }
}

}  // namespace

bool start() noexcept {
    if (runs_in == getpid()) return true;
    if (!writing) writing = new (std::nothrow) std::optional<Current>;
    if (!writing || !own_thread::start(run, "curb-trace")) return false;
    runs_in = getpid();
    return true;
}

void in_fork_child() noexcept { runs_in = kNowhere; }

std::optional<std::uint64_t> flush() noexcept {
    const pid_t runs = runs_in;
    if (runs == kNowhere || runs != getpid()) return std::nullopt;
    std::uint64_t asked = 0;
    {
        const std::scoped_lock lock(state().mutex);
        asked = ++state().flushes_asked;
    }
    writer_event.post();
    const auto done = [=] {
        const std::scoped_lock lock(state().mutex);
        return state().flushes_done >= asked;
    };
    for (int half_seconds = 0; half_seconds < 10; ++half_seconds) {
        const std::uint64_t taken = ring.taken();
        if (poll_until(done, 500, 100)) return 0;
        if (ring.taken() == taken) break;
    }
    return std::max<std::uint64_t>(ring.waiting(), 1);  // or lines that are not written yet
}

}  // namespace writer
}  // namespace curb::shim::trace
