#include "worker.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "config/load.hpp"
#include "config/watch.hpp"
#include "log.hpp"
#include "policy/names.hpp"
#include "process.hpp"
#include "server.hpp"

namespace curb::shim::worker {
namespace {

constinit std::atomic<int> wake_fd{-1};
// The eventfd counts signals, which write 1, below this, and other requests, which write it, above.
constexpr std::uint64_t kRequest = std::uint64_t{1} << 32;
constinit std::atomic<bool> exiting{false};
constinit std::atomic<bool> releasing{false};

// Requests on their way to the worker. Leaked: threads may ask until the process is gone.
struct Asked {
    std::mutex mutex;
    std::vector<release::Request> requests;
};
Asked &asked() {
    static Asked &made = *new Asked;
    return made;
}

// What has been asked for since the last look; signals are one request, however many they were. False: the descriptor
// is gone. (A program that closes every descriptor, as daemons do, has closed this one too.)
bool take_requests(int fd, std::vector<release::Request> &out) {
    std::uint64_t count = 0;
    if (read(fd, &count, sizeof count) != sizeof count) return errno == EAGAIN || errno == EINTR;
    if (count % kRequest != 0) out.push_back({policy::signal_name(*process::snapshot().policy.release.signal)});
    const std::scoped_lock lock(asked().mutex);
    for (release::Request &request : asked().requests) out.push_back(std::move(request));
    asked().requests.clear();
    return true;
}

void run_releases() {
    const int fd = wake_fd.load(std::memory_order_acquire);
    std::vector<release::Request> waiting;
    for (;;) {
        pollfd readable{fd, POLLIN, 0};
        if (waiting.empty() && poll(&readable, 1, -1) < 0 && errno == EINTR) continue;
        if (!take_requests(fd, waiting)) {
            log::write(policy::LogLevel::warning,
                       "the program closed curb's descriptor: this process no longer releases memory on a signal");
            return;
        }
        if (waiting.empty()) continue;
        releasing.store(true, std::memory_order_seq_cst);
        if (exiting.load(std::memory_order_seq_cst)) return;
        release::Request first = std::move(waiting.front());
        waiting.erase(waiting.begin());
        release::run(std::move(first), [&] {
            take_requests(fd, waiting);
            return std::exchange(waiting, {});
        });
        releasing.store(false, std::memory_order_seq_cst);
    }
}

// Async-signal-safe.
void tell(std::uint64_t what) noexcept {
    const int fd = wake_fd.load(std::memory_order_acquire);
    // A full counter or a closed descriptor: the wake-up is there already, or nobody is left to hear it.
    if (fd >= 0 && write(fd, &what, sizeof what) < 0) return;
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
    for (int waited = 0; waited < 200 && releasing.load(std::memory_order_seq_cst); ++waited)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

void start() noexcept {
    server::start(start_thread);
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        log::write(policy::LogLevel::warning, "no eventfd to be had: this process releases no memory on a signal");
        return;
    }
    wake_fd.store(fd, std::memory_order_release);
    atexit(at_exit);
    start_thread(run_releases, "curb-worker");
    if (!process::source().file.empty() || may_have_ceiling()) start_thread(watch_policy, "curb-policy");
}

void wake() noexcept { tell(1); }

void release(release::Request request) noexcept try {
    {
        const std::scoped_lock lock(asked().mutex);
        asked().requests.push_back(std::move(request));
    }
    tell(kRequest);
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a release that was asked for is not done");
}

}  // namespace curb::shim::worker
