// Runs on a thread of curb's in a process that is not ours. The program may close any descriptor and open another file
// under its number, so curb checks the descriptor before it reads or closes it, and goes on polling without it.
#include "config/watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

// Not IN_MODIFY: a log in the same directory would wake us with each line. Polling finds a writer that keeps the policy
// open.
constexpr std::uint32_t kEvents =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;

// Waits for an inotify event, `time` at most. `inotify` -1: waits for the whole time. False if there was no event.
bool wait(int inotify, milliseconds time) {
    const Clock::time_point end = Clock::now() + time;
    for (;;) {
        pollfd polled{inotify, POLLIN, 0};
        const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
        const int ready = ::poll(&polled, 1, left > 0 ? static_cast<int>(left) : 0);
        if (ready < 0 && errno == EINTR) continue;
        // poll failed, because there is too little memory: do not spin.
        if (ready < 0) ::usleep(static_cast<useconds_t>(time.count()) * 1000);
        return ready > 0;
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

// Returns an inotify descriptor above 2: a program that was started without 0 to 2 takes these numbers for its own. -1
// if there is none, or if the process may open so few files that it needs each descriptor.
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

// Discards the events: any of them means that the texts must be read.
void drain(int inotify) {
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(inotify, events.data(), events.size()) > 0) {
    }
}

// Follows the symbolic links of the path. Empty if it leads nowhere at the moment.
std::string target_of(const std::string &path) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    return real == nullptr ? std::string() : std::string(real.get());
}

bool is_link(const std::string &path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

}  // namespace

Watch::Watch(std::vector<std::string> paths, Unreadable unreadable)
    : paths_(std::move(paths)),
      unreadable_(std::move(unreadable)),
      trouble_(paths_.size()),
      trouble_before_(paths_.size()),
      reported_(paths_.size()),
      texts_(paths_.size()),
      inotify_(new_inotify()) {}

Watch::~Watch() {
    if (inotify_ >= 0 && is_inotify(inotify_)) ::close(inotify_);
}

// Watches the directories of the paths and their targets, and no others. Cheap enough to do before every read. Polling
// covers a directory that is missing.
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

// Reads the files. Returns the last text of those that cannot be read.
Watch::Texts Watch::read() {
    Texts now = texts_;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        trouble_before_[i] = std::exchange(trouble_[i], {});
        if (auto text = read_file(paths_[i])) {
            now[i] = std::move(text).value();
        } else if (::access(paths_[i].c_str(), F_OK) == 0) {
            trouble_[i] = text.error();
        } else if (texts_[i]) {
            trouble_[i].message = is_link(paths_[i]) ? "it is a link to a file that is gone" : "the file is gone";
        }
    }
    return now;
}

void Watch::report_unreadable() {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        if (trouble_[i].message != trouble_before_[i].message || trouble_[i].message == reported_[i].message) continue;
        reported_[i] = trouble_[i];
        reported_[i].file = paths_[i];
        if (unreadable_) unreadable_(reported_[i]);
    }
}

// Returns the settled texts, and the last ones of files that still change. nullopt if such a file has no text yet,
// because that would mean that there is no such file; or if nothing is new.
std::optional<Watch::Texts> Watch::without_restless(const Texts &before, Texts now) const {
    for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i] == before[i]) continue;
        if (!texts_[i]) return std::nullopt;
        now[i] = texts_[i];
    }
    if (now == texts_) return std::nullopt;
    return now;
}

// Returns the new texts once they have not changed for kSettle. nullopt if nothing is new.
std::optional<Watch::Texts> Watch::settle() {
    const Clock::time_point end = Clock::now() + kPatience;
    for (Texts seen = read(); seen != texts_;) {
        wait(-1, kSettle);
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

std::optional<Watch::Texts> Watch::next() {
    const bool woken = std::exchange(woken_, false);
    try {
        arm();  // before the read: a later change will wake us
        if (auto texts = settle()) {
            Texts known = *texts;  // first: a copy that fails half-way would hide a change
            texts_.swap(known);
            return texts;
        }
        report_unreadable();
    } catch (const std::bad_alloc &) {
        // Reads the texts again later, when there may be memory.
    }
    if (woken) wait(-1, kSettle);  // reads at most once in kSettle if the directory changes all the time
    woken_ = wait(inotify_, kPoll);
    if (woken_ && is_inotify(inotify_))
        drain(inotify_);
    else if (woken_)
        inotify_ = -1;
    return std::nullopt;
}

}  // namespace curb::config
