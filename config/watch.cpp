// Runs on curb's worker inside somebody else's process, which may close any descriptor it finds and open another under
// the same number: the descriptor is looked at before it is read or closed, and without it the polling goes on.
#include "config/watch.hpp"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

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

namespace curb::config {
namespace {

using std::chrono::milliseconds;

// Not IN_MODIFY: a log in the same directory would wake us with each line. A writer that keeps the policy open without
// closing it is found by polling.
constexpr std::uint32_t kEvents =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;

enum class Woken { by_time, by_event, by_stop };

// Waits on either descriptor; -1 waits on none. A stop_fd that is no descriptor any more counts as readable, lest its
// owner wait for us for ever.
Woken wait(int inotify, int stop_fd, milliseconds time) {
    using Clock = std::chrono::steady_clock;
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
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
    std::array<char, kInotify.size() + 1> target{};
    const ssize_t length = ::readlink(link.data(), target.data(), target.size());
    return length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) == kInotify;
}

// What it says does not matter, only that it spoke.
void drain(int inotify) {
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(inotify, events.data(), events.size()) > 0) {
    }
}

std::string directory_of(const std::string &path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

// The path with its symbolic links followed; empty: it leads nowhere at the moment.
std::string target_of(const std::string &path) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    return real == nullptr ? std::string() : std::string(real.get());
}

}  // namespace

Watch::Watch(std::string path, std::string known_text)
    : path_(std::move(path)), text_(std::move(known_text)), inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

Watch::~Watch() {
    if (inotify_ >= 0 && is_inotify(inotify_)) ::close(inotify_);
}

// Watches the directories that the path leads through now, and no others. Cheap enough to do before every look.
void Watch::arm() {
    if (inotify_ < 0) return;
    const std::string target = target_of(path_);
    std::array<int, 2> now{-1, -1};
    now[0] = ::inotify_add_watch(inotify_, directory_of(path_).c_str(), kEvents | IN_ONLYDIR);
    if (now[0] < 0 && (errno == EBADF || errno == EINVAL)) {
        inotify_ = -1;
        return;
    }
    if (!target.empty()) now[1] = ::inotify_add_watch(inotify_, directory_of(target).c_str(), kEvents | IN_ONLYDIR);
    for (const int old : watched_) {
        if (old >= 0 && old != now[0] && old != now[1]) ::inotify_rm_watch(inotify_, old);
    }
    watched_ = now;
}

// The new text, once it has stood still for kSettle; none: there is none, or the wait for it was stopped.
std::optional<std::string> Watch::look(int stop_fd) {
    std::optional<std::string> seen;
    for (;;) {
        auto now = read_file(path_);
        if (!now || now.value() == text_) return std::nullopt;
        if (seen == now.value()) return seen;
        seen = std::move(now).value();
        if (wait(-1, stop_fd, kSettle) == Woken::by_stop) return std::nullopt;
    }
}

std::optional<std::string> Watch::next(int stop_fd) {
    bool spoke = false;
    for (;;) {
        try {
            arm();  // before the look: what changes after it will wake us
            if (auto text = look(stop_fd)) {
                text_ = *text;
                return text;
            }
        } catch (const std::bad_alloc &) {
            // The text is looked at again when there may be memory for it.
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
