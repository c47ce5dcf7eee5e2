#include "control/turn.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <vector>

#include "control/suspended.hpp"

namespace curb::control {
namespace {

// By number: each function of libc that curb names costs a look-up at the start of every process.
int open_in(int folder, const std::string &name, int flags) noexcept {
    constexpr unsigned kOwn = 0600;
    return above_standard(
        static_cast<int>(::syscall(SYS_openat, folder, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kOwn)));
}
bool rename_in(int folder, const std::string &from, const std::string &to) noexcept {
    return ::syscall(SYS_renameat2, folder, from.c_str(), folder, to.c_str(), 0U) == 0;
}
bool lock(int file, int how) noexcept { return ::syscall(SYS_flock, file, how | LOCK_NB) == 0; }

constexpr std::size_t kStampDigits = 20;
constexpr char kReserved = '+';  // ends the name of a request that has reserved its bytes
constexpr std::uint64_t kLongestNs = std::chrono::nanoseconds(Turn::kLongest).count();

// Nanoseconds since boot: the same for all processes.
std::uint64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// "turn-GPU-8f3a…-": how the names of all requests for this GPU begin.
std::string beginning(const std::string &uuid) {
    std::string out = "turn-" + uuid + "-";
    std::replace(out.begin(), out.end(), '/', '_');
    return out;
}

// "turn-GPU-…-00000000123456789012-4194304-4711-0": time, bytes, pid, number.
std::string name_of(const std::string &uuid, policy::Bytes bytes) {
    static std::atomic<unsigned> number{0};
    std::string stamp = std::to_string(now_ns());
    stamp.insert(0, kStampDigits - std::min(kStampDigits, stamp.size()), '0');
    return beginning(uuid) + stamp + "-" + std::to_string(bytes) + "-" + std::to_string(::getpid()) + "-" +
           std::to_string(number++);
}

Descriptor open_runtime(const Places &places, bool make) {
    if (make) {
        const auto folder = runtime_directory(places, ::geteuid());
        if (!folder) return {};
        auto opened = open_folder(*folder, false);
        return opened ? std::move(opened).value() : Descriptor();
    }
    for (const Folder &folder : folders_of(places, ::geteuid()))
        if (auto opened = open_folder(folder, false)) return std::move(opened).value();
    return {};
}

// True if a process holds the file locked. If none does, deletes it.
bool is_held(int folder, const std::string &name) {
    const Descriptor file(open_in(folder, name, O_RDONLY | O_NONBLOCK));
    if (!file) return false;
    if (!lock(file.number(), LOCK_SH)) return true;
    ::unlinkat(folder, name.c_str(), 0);
    return false;
}

// The request behind one file.
struct Entry {
    std::string name;
    policy::Bytes bytes = 0;
    int pid = 0;

    [[nodiscard]] bool has_reserved() const { return name.back() == kReserved; }
};

// Deletes a file ".turn-…" that its process has not renamed for kLongest: it was killed before. Leaves a younger file:
// its process may be about to lock it.
void remove_if_left(int folder, const std::string &name, const std::string &begins) {
    std::uint64_t stamp = 0;
    const char *first = name.c_str() + begins.size() + 1;
    std::from_chars(first, name.c_str() + name.size(), stamp);
    if (now_ns() - stamp > kLongestNs) static_cast<void>(is_held(folder, name));
}

// Returns the requests for this GPU, the oldest first. Their processes may be dead. Leaves out those of suspended
// processes, which cannot take memory: each request behind one of theirs would wait for kLongest.
std::vector<Entry> entries(const Descriptor &folder, const std::string &begins) {
    std::vector<Entry> out;
    std::vector<int> suspended;
    const auto is_turn = [&](const std::string &name) {
        if (name.ends_with(suspended::kRecordName)) {
            int pid = 0;
            std::from_chars(name.data(), name.data() + name.size(), pid);
            suspended.push_back(pid);
        }
        if (name.starts_with("." + begins)) remove_if_left(folder.number(), name, begins);
        return name.starts_with(begins);
    };
    for (std::string &name : names_in(folder, is_turn)) {
        Entry entry{std::move(name)};
        const char *end = entry.name.c_str() + entry.name.size();
        const char *bytes = std::find(entry.name.c_str() + begins.size(), end, '-');
        const auto number = std::from_chars(std::min(bytes + 1, end), end, entry.bytes);
        if (std::from_chars(std::min(number.ptr + 1, end), end, entry.pid).ec != std::errc()) continue;
        out.push_back(std::move(entry));
    }
    std::erase_if(out, [&](const Entry &one) {
        return std::find(suspended.begin(), suspended.end(), one.pid) != suspended.end();
    });
    std::sort(out.begin(), out.end(), [](const Entry &a, const Entry &b) { return a.name < b.name; });
    return out;
}

// Returns `room` less the bytes that other requests than `own` have reserved.
policy::Bytes unreserved(int folder, const std::vector<Entry> &all, const std::string &own, policy::Bytes room) {
    for (const Entry &one : all)
        if (one.has_reserved() && one.name != own && is_held(folder, one.name)) room -= std::min(room, one.bytes);
    return room;
}

}  // namespace

Turn::Turn(const Places &places, const std::string &uuid, policy::Bytes bytes)
    : folder_(open_runtime(places, true)), bytes_(bytes) {
    if (!folder_) return;
    begins_ = beginning(uuid);
    name_ = name_of(uuid, bytes);
    // Locks the file before it has its name: else others would take it for a dead process's.
    const std::string aside = "." + name_;
    file_ = Descriptor(open_in(folder_.number(), aside, O_RDWR | O_CREAT | O_EXCL));
    if (!file_) return;
    if (!lock(file_.number(), LOCK_EX) || !rename_in(folder_.number(), aside, name_)) {
        ::unlinkat(folder_.number(), aside.c_str(), 0);
        file_ = Descriptor();
    }
}

Turn::~Turn() {
    if (file_.ours() && folder_.ours()) ::unlinkat(folder_.number(), name_.c_str(), 0);
}

bool Turn::has_come(policy::Bytes room) {
    if (!file_.ours() || !folder_.ours()) return true;  // the program has closed them
    const std::vector<Entry> all = entries(folder_, begins_);
    if (unreserved(folder_.number(), all, name_, room) < std::min(room, bytes_)) return false;
    const bool held_back = std::any_of(all.begin(), all.end(), [&](const Entry &one) {
        return one.name < name_ && one.bytes <= room && is_held(folder_.number(), one.name);
    });
    const std::uint64_t now = now_ns();
    if (!held_back) held_back_since_ns_ = 0;
    if (held_back && held_back_since_ns_ == 0) held_back_since_ns_ = now;
    return !held_back || now - held_back_since_ns_ >= kLongestNs;
}

bool Turn::reserve(policy::Bytes room) {
    if (!file_.ours() || !folder_.ours()) return true;
    rename(name_ + kReserved);
    // Checked only now: of two that reserve at once, at least one finds the other here.
    const bool fits = bytes_ <= unreserved(folder_.number(), entries(folder_, begins_), name_, room);
    if (!fits) give_up_reservation();
    return fits;
}

void Turn::give_up_reservation() {
    if (name_.back() == kReserved) rename(name_.substr(0, name_.size() - 1));
}

void Turn::close_in_fork_child() const noexcept {
    if (file_.ours()) ::close(file_.number());
}

void Turn::rename(const std::string &name) {
    if (file_.ours() && folder_.ours() && rename_in(folder_.number(), name_, name)) name_ = name;
}

bool Turn::others_wait(const Places &places, const std::string &uuid) {
    const Descriptor folder = open_runtime(places, false);
    if (!folder) return false;
    const std::vector<Entry> all = entries(folder, beginning(uuid));
    return std::any_of(all.begin(), all.end(),
                       [&](const Entry &one) { return one.pid != ::getpid() && is_held(folder.number(), one.name); });
}

}  // namespace curb::control
