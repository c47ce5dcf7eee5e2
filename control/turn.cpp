#include "control/turn.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <vector>

namespace curb::control {
namespace {

constexpr std::size_t kStampDigits = 20;
constexpr std::uint64_t kLongestNs = std::chrono::nanoseconds(Turn::kLongest).count();

// Nanoseconds since boot: the same for all processes.
std::uint64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// "turn-GPU-8f3a…-": the names of all that wait for this GPU begin so.
std::string beginning(const std::string &uuid) {
    std::string out = "turn-" + uuid + "-";
    std::replace(out.begin(), out.end(), '/', '_');
    return out;
}

// "turn-GPU-…-00000000123456789012-4194304-4711-0": when it came, what it needs, and whose it is.
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

struct Entry {
    std::string name;
    policy::Bytes bytes = 0;
    int pid = 0;
};
// Returns those that wait for this GPU, the first first. Some may be dead.
std::vector<Entry> entries(int folder, const std::string &begins) {
    std::vector<Entry> out;
    DIR *files = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!files) return out;
    while (const dirent *file = ::readdir(files)) {
        Entry entry{file->d_name};
        unsigned long long bytes = 0;
        if (!entry.name.starts_with(begins) || out.size() == kMostNames ||
            std::sscanf(entry.name.c_str() + begins.size(), "%*20u-%llu-%d-", &bytes, &entry.pid) != 2)
            continue;
        entry.bytes = bytes;
        out.push_back(std::move(entry));
    }
    ::closedir(files);
    std::sort(out.begin(), out.end(), [](const Entry &a, const Entry &b) { return a.name < b.name; });
    return out;
}

// Deletes the file if nobody holds it.
bool is_held(int folder, const std::string &name) {
    const Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) return false;
    if (::flock(file.number(), LOCK_SH | LOCK_NB) != 0) return true;
    ::unlinkat(folder, name.c_str(), 0);
    return false;
}

}  // namespace

Turn::Turn(const Places &places, const std::string &uuid, policy::Bytes bytes) : folder_(open_runtime(places, true)) {
    if (!folder_) return;
    begins_ = beginning(uuid);
    name_ = name_of(uuid, bytes);
    // Locked before it has its name: others would take it for a dead one's.
    const std::string aside = "." + name_;
    file_ =
        Descriptor(::openat(folder_.number(), aside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file_) return;
    if (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0 ||
        ::renameat(folder_.number(), aside.c_str(), folder_.number(), name_.c_str()) != 0) {
        ::unlinkat(folder_.number(), aside.c_str(), 0);
        file_ = Descriptor();
    }
}

Turn::~Turn() {
    if (file_ && folder_.ours()) ::unlinkat(folder_.number(), name_.c_str(), 0);
}

bool Turn::has_come(policy::Bytes room) {
    if (!file_.ours() || !folder_.ours()) return true;  // the program has closed them
    const std::vector<Entry> all = entries(folder_.number(), begins_);
    const bool held_back = std::any_of(all.begin(), all.end(), [&](const Entry &one) {
        return one.name < name_ && one.bytes <= room && is_held(folder_.number(), one.name);
    });
    const std::uint64_t now = now_ns();
    if (!held_back) held_back_since_ns_ = 0;
    if (held_back && held_back_since_ns_ == 0) held_back_since_ns_ = now;
    return !held_back || now - held_back_since_ns_ >= kLongestNs;
}

bool Turn::others_wait(const Places &places, const std::string &uuid) {
    const Descriptor folder = open_runtime(places, false);
    if (!folder) return false;
    const std::vector<Entry> all = entries(folder.number(), beginning(uuid));
    return std::any_of(all.begin(), all.end(),
                       [&](const Entry &one) { return one.pid != ::getpid() && is_held(folder.number(), one.name); });
}

}  // namespace curb::control
