// Runs on curb's worker inside somebody else's process, which may close any descriptor it finds and open another under
// the same number: the descriptor is looked at before it is read or closed, and without it the polling goes on.
#include "config/watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "config/load.hpp"
#include "file.hpp"

namespace curb::config {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Not IN_MODIFY: a log in the same directory would wake us with each line. A writer that keeps the policy open without
// closing it is found by polling.
constexpr std::uint32_t kEvents =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;

enum class Woken { by_time, by_event, by_stop };

// Waits on either descriptor; -1 waits on none. A stop_fd that is no descriptor any more counts as readable, lest its
// owner wait for us for ever.
Woken wait(int inotify, int stop_fd, milliseconds time) {
    const Clock::time_point end = Clock::now() + time;
    for (;;) {
        std::array<pollfd, 2> fds{{{inotify, POLLIN, 0}, {stop_fd, POLLIN, 0}}};
        const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
        const int ready = ::poll(fds.data(), fds.size(), left > 0 ? static_cast<int>(left) : 0);
        if (ready < 0 && errno == EINTR) continue;
        if (fds[1].revents != 0) return Woken::by_stop;
        if (fds[0].revents != 0) return Woken::by_event;
        if (ready == 0) return Woken::by_time;
        // poll itself failed, for want of memory: do not turn that into a loop.
        if (ready < 0) ::usleep(static_cast<useconds_t>(time.count()) * 1000);
        return Woken::by_time;
    }
}

bool is_inotify(int fd) {
    constexpr std::string_view kInotify = "anon_inode:inotify";
    std::array<char, 32> link{};
    std::snprintf(link.data(), link.size(), "/proc/thread-self/fd/%d", fd);
    std::array<char, kInotify.size() + 1> target{};
    const ssize_t length = ::readlink(link.data(), target.data(), target.size());
    return length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) == kInotify;
}

// -1: none. Not under a number that the program, started without it, takes for its own stdin, stdout or stderr; and not
// where the process may have so few descriptors that it may need each.
int new_inotify() {
    constexpr rlim_t kEnough = 64;
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kEnough) return -1;
    const int fd = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    ::close(fd);
    return moved;
}

// What it says does not matter, only that it spoke.
void drain(int inotify) {
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(inotify, events.data(), events.size()) > 0) {
    }
}

// The path with its symbolic links followed; empty: it leads nowhere at the moment.
std::string target_of(const std::string &path) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    return real == nullptr ? std::string() : std::string(real.get());
}

}  // namespace

Watch::Watch(std::vector<std::string> paths, Unreadable unreadable)
    : paths_(std::move(paths)),
      unreadable_(std::move(unreadable)),
      trouble_(paths_.size()),
      trouble_before_(paths_.size()),
      told_(paths_.size()),
      texts_(paths_.size()),
      inotify_(new_inotify()) {}

Watch::~Watch() {
    if (inotify_ >= 0 && is_inotify(inotify_)) ::close(inotify_);
}

// Watches the directories that the paths lead through now, and no others. Cheap enough to do before every look. One
// that is not there is left to the polling.
void Watch::arm() {
    if (inotify_ < 0) return;
    std::vector<int> now;
    for (const std::string &path : paths_) {
        for (const std::string &file : {path, target_of(path)}) {
            if (file.empty()) continue;
            const int watch = ::inotify_add_watch(inotify_, directory_of(file).c_str(), kEvents | IN_ONLYDIR);
            if (watch < 0 && (errno == EBADF || errno == EINVAL)) {
                inotify_ = -1;
                return;
            }
            if (watch >= 0) now.push_back(watch);
        }
    }
    for (const int old : watched_) {
        if (std::find(now.begin(), now.end(), old) == now.end()) ::inotify_rm_watch(inotify_, old);
    }
    watched_ = std::move(now);
}

// What the files say now; the last text of those that say nothing.
Watch::Texts Watch::read() {
    Texts now = texts_;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        trouble_before_[i] = std::exchange(trouble_[i], {});
        if (auto text = read_file(paths_[i])) {
            now[i] = std::move(text).value();
        } else if (::access(paths_[i].c_str(), F_OK) == 0) {
            trouble_[i] = text.error();
        }
    }
    return now;
}

void Watch::tell_of_unreadable() {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        if (trouble_[i].message != trouble_before_[i].message || trouble_[i].message == told_[i].message) continue;
        told_[i] = trouble_[i];
        told_[i].file = paths_[i];
        if (unreadable_) unreadable_(told_[i]);
    }
}

// The texts that stood still, beside the last ones of the files that did not; none: one of those has none yet, or
// nothing is new. That first text is waited for, since none would say that there is no such file.
std::optional<Watch::Texts> Watch::without_restless(const Texts &before, Texts now) const {
    for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i] == before[i]) continue;
        if (!texts_[i]) return std::nullopt;
        now[i] = texts_[i];
    }
    if (now == texts_) return std::nullopt;
    return now;
}

// The new texts, once they have stood still for kSettle; none: nothing is new, or the wait for it was stopped.
std::optional<Watch::Texts> Watch::settle(int stop_fd, const std::function<bool()> &stopped) {
    const Clock::time_point end = Clock::now() + kPatience;
    for (Texts seen = read(); seen != texts_;) {
        if (wait(-1, stop_fd, kSettle) == Woken::by_stop || (stopped && stopped())) return std::nullopt;
        Texts now = read();
        if (now == seen) return now;
        if (Clock::now() >= end) {
            if (auto some = without_restless(seen, now)) return some;
        }
        seen = std::move(now);
    }
    return std::nullopt;
}

void Watch::catch_up() {
    arm();
    texts_ = read();
}

std::optional<Watch::Texts> Watch::next(int stop_fd, const std::function<bool()> &stopped) {
    bool spoke = false;
    for (;;) {
        if (stopped && stopped()) return std::nullopt;
        try {
            arm();  // before the look: what changes after it will wake us
            if (auto texts = settle(stop_fd, stopped)) {
                Texts known = *texts;  // all or nothing: a copy that fails half-way would hide a change
                texts_.swap(known);
                return texts;
            }
            tell_of_unreadable();
        } catch (const std::bad_alloc &) {
            // The texts are looked at again when there may be memory for them.
        }
        // A directory in which something happens all the time costs one look in kSettle.
        if (spoke && wait(-1, stop_fd, kSettle) == Woken::by_stop) return std::nullopt;
        const Woken woken = wait(inotify_, stop_fd, kPoll);
        if (woken == Woken::by_stop) return std::nullopt;
        spoke = woken == Woken::by_event;
        if (!spoke) continue;
        if (is_inotify(inotify_)) {
            drain(inotify_);
        } else {
            inotify_ = -1;
        }
    }
}

}  // namespace curb::config
