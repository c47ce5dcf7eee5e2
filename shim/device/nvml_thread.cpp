// The thread curb-nvml, and the threads that ask it (meter.hpp).

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "device/meter.hpp"
#include "driver/gate.hpp"
#include "driver/nvml.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim {
namespace {

// NVML answers within 11 us on an H200. The first answer takes longer: more than a second when 300 processes start at
// once on two cores.
constexpr std::uint64_t kTimeoutMs = 2000, kFirstTimeoutMs = 5000;
// For the loader's lock: a library whose constructor uses CUDA holds it all the time.
constexpr std::uint64_t kLoaderTimeoutMs = 200;
// Waits are counted in slices, so that a process that was stopped meanwhile counts one slice.
constexpr std::uint64_t kSliceMs = 100;
// Number of sched_yield calls before a thread sleeps. On an idle machine they take 30 us, in which NVML answers; on a
// busy one other threads use the time. With 32 threads near the cap, sleeping at once took twice as long.
constexpr int kYields = 100, kYieldsOfThread = 50;
// Pauses between the background attempts after NVML has hung and returned.
constexpr std::uint64_t kFirstPauseMs = 1000, kLongestPauseMs = 60'000;

// The thread curb-nvml as those that ask it see it. The lock guards the questions too.
struct Reader {
    std::mutex lock;
    enum class Stage : std::uint8_t {
        no_thread,
        starting,  // it has not got the loader's lock yet
        ready,
    } stage = Stage::no_thread;
    bool is_late = false;  // the thread could not start, or waits too long for the loader's lock
    bool has_answered = false;
    bool hangs = false;
    bool in_call = false;
    bool ending = false;  // the process exits
    bool has_warned = false;
    std::atomic<std::uint32_t> changes{0};  // of what threads wait for; a futex

    FutexEvent woken;
    std::atomic<pid_t> runs_in{0};  // the process with the thread: a fork child has none
    Meter *meters = nullptr;        // all of them; complete before any is asked
};
constinit Reader reader;

template <class Do>
auto locked(Do what) noexcept {
    const std::scoped_lock lock(reader.lock);
    return what();
}

// Calls `change` under the lock, and wakes the threads that wait.
template <class Change>
void change_and_wake(Change change) noexcept {
    locked(change);
    ++reader.changes;
    futex_wake(reader.changes);
}

// Waits until `done`, which is called under the lock, returns true; at most `milliseconds`.
template <class Done>
void wait_until(Done done, std::uint64_t milliseconds) noexcept {
    for (std::uint64_t waited_ms = 0; waited_ms < milliseconds;) {
        const std::uint32_t seen = reader.changes;
        if (locked(done)) return;
        const std::uint64_t before = now_ms();
        futex_wait(reader.changes, seen, kSliceMs);  // a signal may end it early
        waited_ms += std::min(now_ms() - before, kSliceMs);
    }
}

// NVML's exit handlers must not run during a call. Waits up to 200 ms, because NVML may hang.
void at_exit() {
    if (reader.runs_in != getpid()) return;
    own_thread::stop_at_exit();  // what the worker measures must be answered
    locked([] { reader.ending = true; });
    poll_until([] { return locked([] { return !reader.in_call || reader.hangs; }); }, 200);
}

// Begins a reading, and returns its number and argument. Never returns while the process exits.
std::pair<std::uint32_t, std::uint64_t> begin(Question &question) noexcept {
    {
        const std::scoped_lock lock(reader.lock);
        if (!reader.ending) {
            reader.in_call = true;
            return {++question.begun, question.argument};
        }
    }
    for (;;) pause();
}

// Calls NVML. Returns the milliseconds that the call took.
std::uint64_t answer(Meter &meter, Figure figure) noexcept {
    Question &question = meter.question(figure);
    const auto [begun, argument] = begin(question);
    const std::uint64_t began = now_ms();
    const auto value = meter.read(figure, argument);
    // Registered after NVML was loaded, so it runs before NVML's own exit handlers; and before the answer is there, so
    // that it runs after those of the work which the answer begins (naps).
    static const int registered = atexit(at_exit);
    static_cast<void>(registered);
    change_and_wake([&, number = begun] {
        question.answer = value;
        question.done = number;
        reader.has_answered = true;
        reader.in_call = false;
    });
    return now_ms() - began;
}

// A call took too long. Repeats it until NVML answers in time; until then no other thread waits for NVML.
void retry_until_in_time(Meter &meter, Figure figure) noexcept {
    std::uint64_t pause_ms = kFirstPauseMs, took_ms = 0;
    do {
        sleep_ms(pause_ms);
        pause_ms = std::min(2 * pause_ms, kLongestPauseMs);
        took_ms = answer(meter, figure);
    } while (took_ms >= kTimeoutMs);
    locked([] { reader.hangs = false; });
    log::write(policy::LogLevel::info, "NVML answers again");
}

bool hangs() noexcept {
    return locked([] { return reader.hangs; });
}

// Returns a question that a thread has asked. nullopt if there is none.
std::optional<std::pair<Meter *, Figure>> next_question() noexcept {
    const std::scoped_lock lock(reader.lock);
    for (Meter *meter = reader.meters; meter; meter = meter->next()) {
        for (std::size_t i = 0; i < kFigures; ++i) {
            const auto figure = static_cast<Figure>(i);
            if (std::exchange(meter->question(figure).wanted, false)) return std::pair(meter, figure);
        }
    }
    return std::nullopt;
}

void serve() {
    constexpr std::uint64_t kLongest = 86'400'000;
    nvml::wait_for_loader();
    change_and_wake([] { reader.stage = Reader::Stage::ready; });
    for (int idle = 0;;) {
        if (const auto next = next_question()) {
            idle = 0;
            answer(*next->first, next->second);
            if (hangs()) retry_until_in_time(*next->first, next->second);
        } else if (hangs()) {  // NVML answered just as a thread gave up
            retry_until_in_time(*reader.meters, Figure::held);
        } else if (idle++ < kYieldsOfThread) {
            sched_yield();
        } else {
            reader.woken.wait(kLongest);
            idle = 0;
        }
    }
}

// Starts the thread if needed. False if it cannot answer: if the caller loads a library whose constructor uses CUDA, it
// holds the loader's lock, and NVML's first call may need that lock. Then the caller must call NVML itself.
bool is_ready() noexcept {
    bool starts = false;
    {
        const std::scoped_lock lock(reader.lock);
        if (reader.stage == Reader::Stage::ready) return true;
        starts = reader.stage == Reader::Stage::no_thread;
        reader.stage = Reader::Stage::starting;
    }
    if (starts) {
        reader.runs_in = getpid();
        if (!own_thread::start(serve, "curb-nvml")) change_and_wake([] { reader.is_late = true; });
    }
    wait_until([] { return reader.stage == Reader::Stage::ready || reader.is_late; }, kLoaderTimeoutMs);
    const std::scoped_lock lock(reader.lock);
    if (reader.stage == Reader::Stage::ready) return true;
    reader.is_late = true;
    return false;
}

// True if an answer exists whose reading began after number `before`.
bool is_answered(const Question &question, std::uint32_t before) noexcept {
    return static_cast<std::int32_t>(question.done - before) > 0;
}

// False if NVML hangs or the process exits.
bool wait_for_answer(const Question &question, std::uint32_t before) noexcept {
    for (int i = 0; i < kYields; ++i) {
        if (is_answered(question, before)) return true;
        sched_yield();
    }
    const std::uint64_t timeout_ms = locked([] { return reader.has_answered ? kTimeoutMs : kFirstTimeoutMs; });
    wait_until([&] { return is_answered(question, before) || reader.hangs || reader.ending; }, timeout_ms);
    bool warns = false;
    {
        const std::scoped_lock lock(reader.lock);
        if (is_answered(question, before)) return true;
        if (reader.ending) return false;
        reader.hangs = true;
        warns = !std::exchange(reader.has_warned, true);
    }
    reader.woken.post();
    if (warns)
        log::write(policy::LogLevel::warning,
                   "NVML does not answer; until it does, what the driver takes for code is not measured, and caps hold "
                   "for what is known. nvidia-smi and dmesg may say what is wrong with the GPU");
    return false;
}

}  // namespace

void Meter::list() noexcept {
    if (is_listed_) return;  // the devices were discovered twice, because host memory was exhausted
    is_listed_ = true;
    next_ = reader.meters;
    reader.meters = this;
}

std::optional<std::uint64_t> Meter::ask(Figure figure, std::uint64_t argument) noexcept {
    const KeepErrno keep_errno;
    // NVML waits while the process is out of its GPUs.
    if (gate::is_closed() && (own_thread::is_own() || !gate::wait())) return std::nullopt;
    const auto is_vain = [] { return locked([] { return reader.ending || reader.hangs; }); };
    // Load NVML on the calling thread: it may hold the loader's lock, and curb-nvml would wait for that.
    if (is_vain() || !nvml::ensure_loaded()) return std::nullopt;
    if (!is_ready()) return read(figure, argument);
    Question &question = this->question(figure);
    const std::uint32_t before = locked([&] {
        question.argument = argument;
        question.wanted = true;
        return question.begun;
    });
    reader.woken.post();  // every thread posts, so that none depends on another one's being scheduled
    if (!wait_for_answer(question, before)) return std::nullopt;
    return locked([&] { return question.answer; });
}

}  // namespace curb::shim
