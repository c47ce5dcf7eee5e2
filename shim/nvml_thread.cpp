#include "nvml_thread.hpp"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <ctime>

#include "devices.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "nvml.hpp"
#include "own_thread.hpp"
#include "wakeup.hpp"

namespace curb::shim::nvml_thread {
namespace {

// NVML takes 11 us for an answer and 9 ms to be loaded; seconds where it has to wake a GPU, or where 300 processes
// start at once on two cores. One that hangs is waited for so long once.
constexpr std::uint64_t kPatienceMs = 5000;
// For the loader's lock, which a library that uses CUDA as it is loaded holds all the while.
constexpr std::uint64_t kLoaderPatienceMs = 200;

// The one question. A futex: those who ask wait on it for their turn and for their answer, the thread for a question.
enum State : std::uint32_t {
    without_thread,
    starting,  // the thread has not had the loader's lock yet
    idle,
    taken,      // by somebody who is about to ask
    asked,      // the thread calls NVML
    answered,   // who has asked may read the answer
    abandoned,  // nobody waits for the answer any more; idle once the call has returned
};
constinit std::atomic<std::uint32_t> state{without_thread};

// What is asked and answered. Whose turn it is may use it.
constinit Meter *subject = nullptr;
constinit Meter::Figure what{};
constinit std::uint64_t with = 0;
constinit std::optional<std::uint64_t> answer;

constinit std::atomic<bool> is_late{false};  // the thread does not get the loader's lock, or there is no thread
constinit std::atomic<bool> ending{false};
constinit std::atomic<bool> said{false};

void wake_all() noexcept { futex_wake(state, INT_MAX); }

void become(State next) noexcept {
    state.store(next, std::memory_order_seq_cst);
    wake_all();
}

bool becomes(std::uint32_t from, State next) noexcept {
    return state.compare_exchange_strong(from, next, std::memory_order_seq_cst);
}

// Waits until `done(state)`. False: the time is up.
template <class Done>
bool wait_until(std::uint64_t until_ms, Done done) noexcept {
    for (;;) {
        const std::uint32_t now = state.load(std::memory_order_seq_cst);
        if (done(now)) return true;
        const std::uint64_t time = devices::now_ms();
        if (time >= until_ms) return false;
        futex_wait(state, now, until_ms - time);
    }
}

// NVML's own exit handlers must not run beside a call. Bounded: one that hangs is left alone.
void at_exit() {
    ending.store(true, std::memory_order_seq_cst);
    wait_until(devices::now_ms() + 200, [](std::uint32_t now) { return now != asked; });
}

void serve() {
    constexpr std::uint64_t kLongest = 86'400'000;
    nvml::wait_for_loader();
    become(idle);
    for (;;) {
        if (!wait_until(devices::now_ms() + kLongest, [](std::uint32_t now) { return now == asked; })) continue;
        answer = subject->read(what, with);
        // Registered after NVML has been loaded, so run before what NVML itself does at exit.
        static const int registered = atexit(at_exit);
        static_cast<void>(registered);
        if (!becomes(asked, answered)) state.store(idle, std::memory_order_seq_cst);
        wake_all();
    }
}

// Whether the thread is there to be asked. A thread that loads a library which uses CUDA as it is loaded holds the
// loader's lock all the while, and NVML's first call may need that lock.
bool is_there() noexcept {
    if (becomes(without_thread, starting) && !own_thread::start(serve, "curb-nvml"))
        is_late.store(true, std::memory_order_relaxed);
    const std::uint64_t patience = is_late.load(std::memory_order_relaxed) ? 0 : kLoaderPatienceMs;
    if (wait_until(devices::now_ms() + patience, [](std::uint32_t now) { return now != starting; })) return true;
    is_late.store(true, std::memory_order_relaxed);
    return false;
}

void say_that_it_hangs() noexcept {
    if (said.exchange(true, std::memory_order_relaxed)) return;
    log::write(policy::LogLevel::warning,
               "NVML does not answer; until it does, what the driver takes for code is not measured, and caps hold for "
               "what is known. nvidia-smi and dmesg may say what is wrong with the GPU");
}

}  // namespace

std::optional<std::uint64_t> ask(Meter &meter, Meter::Figure figure, std::uint64_t argument) noexcept {
    const KeepErrno keep_errno;
    // Loaded on the thread that asks: it may hold the loader's lock, for which ours would wait.
    if (ending.load(std::memory_order_seq_cst) || !nvml::can_be_asked()) return std::nullopt;
    if (!is_there()) return meter.read(figure, argument);
    bool has_turn = false;
    const auto is_free_or_hangs = [&](std::uint32_t now) {
        has_turn = now == idle && becomes(idle, taken);
        return has_turn || now == abandoned;
    };
    wait_until(devices::now_ms() + kPatienceMs, is_free_or_hangs);
    if (!has_turn) return std::nullopt;
    subject = &meter;
    what = figure;
    with = argument;
    become(asked);
    const std::uint64_t until = devices::now_ms() + kPatienceMs;
    while (!wait_until(until, [](std::uint32_t now) { return now == answered; })) {
        if (!becomes(asked, abandoned)) continue;  // it has just answered
        wake_all();
        say_that_it_hangs();
        return std::nullopt;
    }
    const auto out = answer;
    become(idle);
    return out;
}

}  // namespace curb::shim::nvml_thread
