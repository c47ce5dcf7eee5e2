#include "worker.hpp"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "callers.hpp"
#include "config/load.hpp"
#include "config/watch.hpp"
#include "log.hpp"
#include "periodic.hpp"
#include "policy/names.hpp"
#include "process.hpp"
#include "server.hpp"

namespace curb::shim::worker {
namespace {

// The worker is woken by a semaphore: no descriptor that the program could close, or open as one of its own, and
// sem_post may be called in a signal handler. In static storage it begins at 0.
constinit sem_t woken{};
constinit std::atomic<bool> pending{false};  // it is posted, and the worker has not begun to look yet
constinit std::atomic<bool> signalled{false};
constinit std::atomic<bool> exiting{false};
constinit std::atomic<bool> busy{false};

// Async-signal-safe, but for errno.
void post() noexcept {
    if (!pending.exchange(true, std::memory_order_seq_cst)) sem_post(&woken);
}

// Requests on their way to the worker. Leaked: threads may ask until the process is gone.
struct Asked {
    std::mutex mutex;
    std::vector<release::Request> requests;
};
Asked &asked() {
    static Asked &made = *new Asked;
    return made;
}

// What has been asked for since the last look; signals are one request, however many they were.
std::vector<release::Request> take_requests() {
    std::vector<release::Request> out;
    {
        const std::scoped_lock lock(asked().mutex);
        out.swap(asked().requests);
    }
    if (signalled.exchange(false, std::memory_order_seq_cst))
        out.insert(out.begin(), {policy::signal_name(*process::snapshot().policy.release.signal)});
    return out;
}

// Until the worker is woken, or for so long.
void sleep_for(std::optional<std::uint64_t> milliseconds) noexcept {
    constexpr std::uint64_t kLongest = 86'400'000;
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    const std::uint64_t wait = std::min(milliseconds.value_or(kLongest), kLongest);
    until.tv_sec += static_cast<std::time_t>(wait / 1000);
    until.tv_nsec += static_cast<long>(wait % 1000) * 1'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
        until.tv_nsec -= 1'000'000'000;
        ++until.tv_sec;
    }
    while (sem_clockwait(&woken, CLOCK_MONOTONIC, &until) != 0 && errno == EINTR) {
    }
}

void run_releases() {
    callers::look();  // growth steps go by it before any release has looked
    for (;;) {
        pending.store(false, std::memory_order_seq_cst);
        busy.store(true, std::memory_order_seq_cst);
        if (exiting.load(std::memory_order_seq_cst)) return;
        std::vector<release::Request> waiting = take_requests();
        if (!waiting.empty()) {
            release::run(std::move(waiting), take_requests);
            continue;
        }
        const auto next = periodic::run();
        busy.store(false, std::memory_order_seq_cst);
        sleep_for(next);
    }
}

void say_what_stays() {
    log::write(policy::LogLevel::error, process::snapshot().unusable
                                            ? "still no usable policy: allocations stay refused"
                                            : "the last good policy stays in force");
}

// Reads each new text of the policy file or the ceiling and puts it in force; a bad one is reported and the last good
// one stays.
void follow_policy() {
    const config::Source &source = process::source();
    std::vector<std::string> files{source.ceiling};
    if (!source.file.empty()) files.push_back(source.file);
    config::Watch watch(std::move(files), [](const config::Diagnostic &trouble) {
        log::write(policy::LogLevel::error, trouble.text());
        say_what_stays();
    });
    // What was read at the start may be old already: the first look always returns, and a policy that has not changed
    // changes nothing.
    for (bool first = true;; first = false) {
        const auto texts = watch.next(-1);
        if (!texts) return;
        std::optional<std::string_view> text;
        if (!source.file.empty() && texts->back()) text = *texts->back();
        // Read as at the start, so that CURB_CAP and the ceiling narrow this version too.
        const auto loaded = config::load(source, process::subject, text);
        const Snapshot &now = process::snapshot();
        if (loaded) {
            if (loaded->policy != now.policy || now.unusable) process::enforce(*loaded);
        } else if (!first || !now.unusable) {  // at the start it has been reported
            for (const auto &diagnostic : loaded.error()) log::write(policy::LogLevel::error, diagnostic.text());
            say_what_stays();
        }
    }
}

void watch_policy() try { follow_policy(); } catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: edits of the policy are no longer followed");
}

// Without a policy of its own a process is held by the ceiling alone, if the machine has one or may get one.
bool may_have_ceiling() {
    const std::string &file = process::source().ceiling;
    return access(file.substr(0, file.rfind('/')).c_str(), F_OK) == 0;
}

// Signals are the program's threads' business.
void start_thread(void (*body)(), const char *name) noexcept {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread thread(body);
        pthread_setname_np(thread.native_handle(), name);
        thread.detach();
    } catch (...) {
        log::write(policy::LogLevel::warning, std::string("no thread could be started for ") + name);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// A release must not run into the program's static destructors: at exit no new one begins, and one that is under way is
// given a moment. Not longer: it may be waiting for a lock that the exiting thread holds.
void at_exit() {
    exiting.store(true, std::memory_order_seq_cst);
    // By the clock, and not by sleep_for, which starts again after each signal: a storm of them would keep us here.
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(200);
    while (busy.load(std::memory_order_seq_cst) && Clock::now() < until) {
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);
    }
}

}  // namespace

void start() noexcept {
    atexit(at_exit);
    cache::on_first_kept(look);
    start_thread(run_releases, "curb-worker");
    if (!process::source().file.empty() || may_have_ceiling()) start_thread(watch_policy, "curb-policy");
    server::start(start_thread);
}

void wake() noexcept {
    signalled.store(true, std::memory_order_seq_cst);
    post();
}

void look() noexcept { post(); }

void release(release::Request request) noexcept try {
    {
        const std::scoped_lock lock(asked().mutex);
        asked().requests.push_back(std::move(request));
    }
    post();
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a release that was asked for is not done");
}

}  // namespace curb::shim::worker
