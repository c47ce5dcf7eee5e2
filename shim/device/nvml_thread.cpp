// The thread curb-nvml, and the threads that ask it (meter.hpp).

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

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

enum Stage : std::uint32_t {
    no_thread,
    starting,  // it has not got the loader's lock yet
    ready,
};
constinit std::atomic<std::uint32_t> stage{no_thread};  // a futex
constinit std::atomic<bool> is_late{false};  // the thread could not start, or waits too long for the loader's lock

constinit Meter *meters = nullptr;  // all of them; complete before any is asked
constinit FutexEvent woken;
constinit std::atomic<bool> has_answered{false};
constinit std::atomic<bool> hangs{false};
constinit std::atomic<bool> in_call{false};
constinit std::atomic<bool> ending{false};
constinit std::atomic<bool> has_warned{false};
constinit std::atomic<pid_t> runs_in{0};  // the process with the thread: a fork child has none

// Waits for a change of a futex, at most one slice. Returns the milliseconds to count.
std::uint64_t wait_slice(std::atomic<std::uint32_t> &word, std::uint32_t value) noexcept {
    const std::uint64_t before = now_ms();
    futex_wait(word, value, kSliceMs);  // a signal may end it early
    return std::min(now_ms() - before, kSliceMs);
}

// NVML's exit handlers must not run during a call. Waits up to 200 ms, because NVML may hang.
void at_exit() {
    if (runs_in.load(std::memory_order_relaxed) != getpid()) return;
    own_thread::stop_at_exit();  // what the worker measures must be answered
    ending.store(true, std::memory_order_seq_cst);
    poll_until([] { return !in_call.load(std::memory_order_seq_cst) || hangs.load(std::memory_order_seq_cst); }, 200);
}

// Calls NVML. Returns the milliseconds that the call took.
std::uint64_t answer(Meter &meter, Figure figure) noexcept {
    Question &question = meter.question(figure);
    const std::uint32_t number = question.begun.load(std::memory_order_relaxed) + 1;
    in_call.store(true, std::memory_order_seq_cst);
    while (ending.load(std::memory_order_seq_cst)) {
        in_call.store(false, std::memory_order_seq_cst);
        pause();
    }
    question.begun.store(number, std::memory_order_seq_cst);
    const std::uint64_t began = now_ms();
    const auto value = meter.read(figure, question.argument.load(std::memory_order_relaxed));
    question.answer.store(value.value_or(Question::kNone), std::memory_order_relaxed);
    if (!has_answered.exchange(true, std::memory_order_relaxed)) {
        // Registered after NVML was loaded, so it runs before NVML's own exit handlers; and before the answer is there,
        // so that it runs after those of the work which the answer begins (naps).
        static const int registered = atexit(at_exit);
        static_cast<void>(registered);
    }
    in_call.store(false, std::memory_order_seq_cst);
    question.done.store(number, std::memory_order_seq_cst);
    if (question.asleep.load(std::memory_order_seq_cst) != 0) futex_wake(question.done);
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
    hangs.store(false, std::memory_order_seq_cst);
    log::write(policy::LogLevel::info, "NVML answers again");
}

// False if no thread has asked.
bool answer_all() noexcept {
    bool any = false;
    for (Meter *meter = meters; meter; meter = meter->next()) {
        for (std::size_t i = 0; i < kFigures; ++i) {
            const auto figure = static_cast<Figure>(i);
            if (!meter->question(figure).wanted.exchange(false, std::memory_order_seq_cst)) continue;
            any = true;
            answer(*meter, figure);
            if (hangs.load(std::memory_order_seq_cst)) retry_until_in_time(*meter, figure);
        }
    }
    return any;
}

void serve() {
    constexpr std::uint64_t kLongest = 86'400'000;
    nvml::wait_for_loader();
    stage.store(ready, std::memory_order_seq_cst);
    futex_wake(stage);
    for (int idle = 0;;) {
        if (answer_all()) {
            idle = 0;
        } else if (hangs.load(std::memory_order_seq_cst)) {  // NVML answered just as a thread gave up
            retry_until_in_time(*meters, Figure::held);
        } else if (idle++ < kYieldsOfThread) {
            sched_yield();
        } else {
            woken.wait(kLongest);
            idle = 0;
        }
    }
}

// Starts the thread if needed. False if it cannot answer: if the caller loads a library whose constructor uses CUDA, it
// holds the loader's lock, and NVML's first call may need that lock. Then the caller must call NVML itself.
bool is_ready() noexcept {
    std::uint32_t now = stage.load(std::memory_order_acquire);
    if (now == ready) return true;
    if (now == no_thread && stage.compare_exchange_strong(now, starting, std::memory_order_seq_cst)) {
        runs_in.store(getpid(), std::memory_order_relaxed);
        if (!own_thread::start(serve, "curb-nvml")) is_late.store(true, std::memory_order_relaxed);
    }
    for (std::uint64_t waited_ms = 0; stage.load(std::memory_order_seq_cst) != ready;) {
        if (waited_ms >= kLoaderTimeoutMs || is_late.load(std::memory_order_relaxed)) {
            is_late.store(true, std::memory_order_relaxed);
            return false;
        }
        waited_ms += wait_slice(stage, starting);
    }
    return true;
}

void warn_that_nvml_hangs() noexcept {
    if (has_warned.exchange(true, std::memory_order_relaxed)) return;
    log::write(policy::LogLevel::warning,
               "NVML does not answer; until it does, what the driver takes for code is not measured, and caps hold for "
               "what is known. nvidia-smi and dmesg may say what is wrong with the GPU");
}

// True if an answer exists whose reading began after number `before`.
bool is_answered(const Question &question, std::uint32_t before) noexcept {
    return static_cast<std::int32_t>(question.done.load(std::memory_order_seq_cst) - before) > 0;
}

// False if NVML hangs or the process exits.
bool wait_for_answer(Question &question, std::uint32_t before) noexcept {
    for (int i = 0; i < kYields; ++i) {
        if (is_answered(question, before)) return true;
        sched_yield();
    }
    const std::uint64_t timeout_ms = has_answered.load(std::memory_order_relaxed) ? kTimeoutMs : kFirstTimeoutMs;
    question.asleep.fetch_add(1, std::memory_order_seq_cst);
    bool answered = false;
    for (std::uint64_t waited_ms = 0; waited_ms < timeout_ms;) {
        const std::uint32_t done = question.done.load(std::memory_order_seq_cst);
        answered = is_answered(question, before);
        if (answered || hangs.load(std::memory_order_seq_cst) || ending.load(std::memory_order_seq_cst)) break;
        waited_ms += wait_slice(question.done, done);
    }
    question.asleep.fetch_sub(1, std::memory_order_seq_cst);
    if (answered || is_answered(question, before)) return true;
    if (!ending.load(std::memory_order_seq_cst)) {
        hangs.store(true, std::memory_order_seq_cst);
        woken.post();
        warn_that_nvml_hangs();
    }
    return false;
}

}  // namespace

void Meter::list() noexcept {
    if (is_listed_) return;  // the devices were discovered twice, because host memory was exhausted
    is_listed_ = true;
    next_ = meters;
    meters = this;
}

std::optional<std::uint64_t> Meter::ask(Figure figure, std::uint64_t argument) noexcept {
    const KeepErrno keep_errno;
    // NVML waits while the process is out of its GPUs.
    if (gate::is_closed() && (own_thread::is_own() || !gate::wait())) return std::nullopt;
    // Load NVML on the calling thread: it may hold the loader's lock, and curb-nvml would wait for that.
    if (ending.load(std::memory_order_seq_cst) || hangs.load(std::memory_order_seq_cst) || !nvml::ensure_loaded())
        return std::nullopt;
    if (!is_ready()) return read(figure, argument);
    Question &question = this->question(figure);
    question.argument.store(argument, std::memory_order_relaxed);
    const std::uint32_t before = question.begun.load(std::memory_order_seq_cst);
    question.wanted.store(true, std::memory_order_seq_cst);
    woken.post();  // every thread posts, so that none depends on another one's being scheduled
    if (!wait_for_answer(question, before)) return std::nullopt;
    const std::uint64_t answer = question.answer.load(std::memory_order_relaxed);
    return answer == Question::kNone ? std::nullopt : std::optional(answer);
}

}  // namespace curb::shim
