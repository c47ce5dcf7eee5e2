#include "nvml_thread.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <ctime>

#include "clock.hpp"
#include "devices.hpp"
#include "futex_event.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "nvml.hpp"
#include "own_thread.hpp"

namespace curb::shim::nvml_thread {
namespace {

// NVML answers within 11 us on an H200. The first answer takes longer: 300 processes that start at once on two cores
// waited over a second for it.
constexpr std::uint64_t kPatienceMs = 2000, kFirstPatienceMs = 5000;
// For the loader's lock, which a library that uses CUDA as it is loaded holds all the while.
constexpr std::uint64_t kLoaderPatienceMs = 200;
// Time is counted in such pieces: a process that was stopped meanwhile has waited for one piece.
constexpr std::uint64_t kPieceMs = 100;
// How often threads that ask, and curb-nvml, let other threads run before they sleep. That is 30 us on an idle machine,
// in which NVML answers; on a busy one the others use the time. 32 threads near the cap that slept at once took twice
// as long.
constexpr int kYields = 100, kYieldsOfThread = 50;
// How often NVML is tried in the background after it has hung, and returned.
constexpr std::uint64_t kSoonestMs = 1000, kLatestMs = 60'000;

enum Stage : std::uint32_t {
    no_thread,
    starting,  // the thread has not had the loader's lock yet
    ready,
};
constinit std::atomic<std::uint32_t> stage{no_thread};  // a futex
constinit std::atomic<bool> is_late{false};  // the thread does not get the loader's lock, or there is no thread

constinit FutexEvent woken;
constinit std::atomic<bool> has_answered{false};
constinit std::atomic<bool> hangs{false};
constinit std::atomic<bool> in_call{false};
constinit std::atomic<bool> ending{false};
constinit std::atomic<bool> said{false};
constinit std::atomic<pid_t> runs_in{0};  // a child that was forked has no such thread

void sleep_for(std::uint64_t milliseconds) noexcept {
    const timespec time{static_cast<std::time_t>(milliseconds / 1000),
                        static_cast<long>(milliseconds % 1000) * 1'000'000};
    nanosleep(&time, nullptr);
}

// Waits for a change of a futex, a piece of time at the most. Returns the milliseconds to count.
std::uint64_t wait_a_piece(std::atomic<std::uint32_t> &word, std::uint32_t value) noexcept {
    const std::uint64_t before = now_ms();
    futex_wait(word, value, kPieceMs);  // a signal may end it early
    return std::min(now_ms() - before, kPieceMs);
}

// NVML's own exit handlers must not run beside a call. Bounded: NVML may hang.
void at_exit() {
    if (runs_in.load(std::memory_order_relaxed) != getpid()) return;
    const KeepErrno keep_errno;
    ending.store(true, std::memory_order_seq_cst);
    for (int looks = 0; looks < 200; ++looks) {
        if (!in_call.load(std::memory_order_seq_cst) || hangs.load(std::memory_order_seq_cst)) return;
        sleep_for(1);
    }
}

// Calls NVML. Returns the milliseconds that it took.
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
    const auto figures = meter.read(figure, question.argument.load(std::memory_order_relaxed));
    question.answer.store(figures.value_or(Question::kNone), std::memory_order_relaxed);
    in_call.store(false, std::memory_order_seq_cst);
    question.done.store(number, std::memory_order_seq_cst);
    if (question.asleep.load(std::memory_order_seq_cst) != 0) futex_wake(question.done, INT_MAX);
    if (!has_answered.exchange(true, std::memory_order_relaxed)) {
        // Registered after NVML has been loaded, so run before what NVML itself does at exit.
        static const int registered = atexit(at_exit);
        static_cast<void>(registered);
    }
    return now_ms() - began;
}

// NVML has returned after a call that was too long: no thread asks it until it has answered in time here.
void try_until_well(Meter &meter, Figure figure) noexcept {
    std::uint64_t pause_ms = kSoonestMs, took_ms = 0;
    do {
        sleep_for(pause_ms);
        pause_ms = std::min(2 * pause_ms, kLatestMs);
        took_ms = answer(meter, figure);
    } while (took_ms >= kPatienceMs);
    hangs.store(false, std::memory_order_seq_cst);
    log::write(policy::LogLevel::info, "NVML answers again");
}

// False if no thread has asked.
bool answer_all() noexcept {
    bool any = false;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Meter &meter = devices::at(ordinal).meter;
        for (std::size_t i = 0; i < kFigures; ++i) {
            const auto figure = static_cast<Figure>(i);
            if (!meter.question(figure).wanted.exchange(false, std::memory_order_seq_cst)) continue;
            any = true;
            answer(meter, figure);
            if (hangs.load(std::memory_order_seq_cst)) try_until_well(meter, figure);
        }
    }
    return any;
}

void serve() {
    constexpr std::uint64_t kLongest = 86'400'000;
    nvml::wait_for_loader();
    stage.store(ready, std::memory_order_seq_cst);
    futex_wake(stage, INT_MAX);
    for (int idle = 0;;) {
        if (answer_all()) {
            idle = 0;
        } else if (hangs.load(std::memory_order_seq_cst)) {  // it answered as a thread stopped waiting
            try_until_well(devices::at(0).meter, Figure::held);
        } else if (idle++ < kYieldsOfThread) {
            sched_yield();
        } else {
            woken.wait(kLongest);
            idle = 0;
        }
    }
}

// True if the thread can be asked. A thread that loads a library which uses CUDA as it is loaded holds the loader's
// lock all the while, and NVML's first call may need that lock: false, and the caller asks NVML itself.
bool is_there() noexcept {
    std::uint32_t now = stage.load(std::memory_order_acquire);
    if (now == ready) return true;
    if (now == no_thread && stage.compare_exchange_strong(now, starting, std::memory_order_seq_cst)) {
        runs_in.store(getpid(), std::memory_order_relaxed);
        if (!own_thread::start(serve, "curb-nvml")) is_late.store(true, std::memory_order_relaxed);
    }
    for (std::uint64_t waited_ms = 0; stage.load(std::memory_order_seq_cst) != ready;) {
        if (waited_ms >= kLoaderPatienceMs || is_late.load(std::memory_order_relaxed)) {
            is_late.store(true, std::memory_order_relaxed);
            return false;
        }
        waited_ms += wait_a_piece(stage, starting);
    }
    return true;
}

void say_that_it_hangs() noexcept {
    if (said.exchange(true, std::memory_order_relaxed)) return;
    log::write(policy::LogLevel::warning,
               "NVML does not answer; until it does, what the driver takes for code is not measured, and caps hold for "
               "what is known. nvidia-smi and dmesg may say what is wrong with the GPU");
}

// True if there is an answer that was begun after number `before`.
bool is_answered(const Question &question, std::uint32_t before) noexcept {
    return static_cast<std::int32_t>(question.done.load(std::memory_order_seq_cst) - before) > 0;
}

// False: NVML hangs, or the process ends.
bool wait_for_answer(Question &question, std::uint32_t before) noexcept {
    for (int i = 0; i < kYields; ++i) {
        if (is_answered(question, before)) return true;
        sched_yield();
    }
    const std::uint64_t patience_ms = has_answered.load(std::memory_order_relaxed) ? kPatienceMs : kFirstPatienceMs;
    question.asleep.fetch_add(1, std::memory_order_seq_cst);
    bool answered = false;
    for (std::uint64_t waited_ms = 0; waited_ms < patience_ms;) {
        const std::uint32_t done = question.done.load(std::memory_order_seq_cst);
        answered = is_answered(question, before);
        if (answered || hangs.load(std::memory_order_seq_cst) || ending.load(std::memory_order_seq_cst)) break;
        waited_ms += wait_a_piece(question.done, done);
    }
    question.asleep.fetch_sub(1, std::memory_order_seq_cst);
    if (answered || is_answered(question, before)) return true;
    if (!ending.load(std::memory_order_seq_cst)) {
        hangs.store(true, std::memory_order_seq_cst);
        woken.post();
        say_that_it_hangs();
    }
    return false;
}

}  // namespace

std::optional<std::uint64_t> ask(Meter &meter, Figure figure, std::uint64_t argument) noexcept {
    const KeepErrno keep_errno;
    // Loaded on the thread that asks: it may hold the loader's lock, for which ours would wait.
    if (ending.load(std::memory_order_seq_cst) || hangs.load(std::memory_order_seq_cst) || !nvml::ensure_loaded())
        return std::nullopt;
    if (!is_there()) return meter.read(figure, argument);
    Question &question = meter.question(figure);
    question.argument.store(argument, std::memory_order_relaxed);
    const std::uint32_t before = question.begun.load(std::memory_order_seq_cst);
    question.wanted.store(true, std::memory_order_seq_cst);
    woken.post();  // each who asks, lest one depends on another's being scheduled
    if (!wait_for_answer(question, before)) return std::nullopt;
    const std::uint64_t answer = question.answer.load(std::memory_order_relaxed);
    return answer == Question::kNone ? std::nullopt : std::optional(answer);
}

}  // namespace curb::shim::nvml_thread
