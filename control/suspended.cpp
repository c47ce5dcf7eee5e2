#include "control/suspended.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "control/runtime_dir.hpp"
#include "process_stat.hpp"

namespace curb::control::suspended {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargest = 64 << 10;
constexpr const char *kClaim = ".claim";

// While this lives, root reads and writes files with the user's rights. It sets the file system's user of this thread:
// seteuid would change all threads of the process.
class As {
  public:
    explicit As(const Process &process) : root_(::geteuid() == 0 && process.uid != 0), group_(::getegid()) {
        if (root_) is_user_ = set(process.uid, process.gid);
    }
    ~As() {
        if (root_ && !set(0, group_)) std::abort();  // never go on as another user by mistake
    }
    As(const As &) = delete;
    As &operator=(const As &) = delete;
    [[nodiscard]] bool failed() const { return !is_user_; }
    // True if this is root, at work on another user's process.
    [[nodiscard]] bool is_root() const { return root_; }

  private:
    // setfsuid returns the user before the call, and no error. -1 changes nothing.
    static bool set(uid_t user, gid_t group) {
        ::setfsgid(group);
        ::setfsuid(user);
        return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) == user &&
               static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) == group;
    }

    bool root_, is_user_ = true;
    gid_t group_;
};

struct Directory {
    std::string path;
    Descriptor file;
};

std::string why(int error) { return std::strerror(error); }

// Opens the folders of the process's user. Adds the faults of those that cannot be used to `faults`.
std::vector<Directory> directories(const Process &process, bool make, std::string &faults) {
    Places around = places();
    if (process.uid != ::getuid()) around.xdg.clear();
    std::vector<Directory> found;
    bool has_one = false;  // the folder before the spares, or one of them
    for (Folder &folder : folders_of(around, process.uid)) {
        if (!is_spare(folder)) has_one = false;
        auto file = open_folder(folder, make && !has_one);
        if (!file && !has_one) faults.append(faults.empty() ? "" : "; ").append(file.error());
        if (!file) continue;
        has_one = true;
        found.push_back({std::move(folder.path), std::move(file).value()});
    }
    return found;
}

std::string name_of(const Process &process, const char *kind) {
    return std::to_string(process.pid) + "-" + std::to_string(process.start) + kind;
}

bool write_whole(int directory, const std::string &name, const std::string &text) {
    const std::string aside = name + ".new";
    ::unlinkat(directory, aside.c_str(), 0);  // left by a curb that was killed while it wrote
    const Descriptor file(
        ::openat(directory, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    const ssize_t written = file ? ::write(file.number(), text.data(), text.size()) : -1;
    if (written >= 0 && static_cast<std::size_t>(written) != text.size()) errno = ENOSPC;  // write(2) says nothing then
    if (written == static_cast<ssize_t>(text.size()) &&
        ::renameat(directory, aside.c_str(), directory, name.c_str()) == 0)
        return true;
    const int error = errno;
    if (file) ::unlinkat(directory, aside.c_str(), 0);
    errno = error;
    return false;
}

std::optional<std::string> read_whole(int directory, const std::string &name, unsigned owner) {
    const Descriptor file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!file || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != owner)
        return std::nullopt;
    std::string text(kLargest, '\0');
    const ssize_t length = ::read(file.number(), text.data(), text.size());
    if (length < 0) return std::nullopt;
    text.resize(static_cast<std::size_t>(length));
    return text;
}

// Makes and locks the file. The error is errno, EWOULDBLOCK if another process has it locked at `until`. Tries again if
// the file was deleted meanwhile: others would not find it.
policy::Result<Descriptor, int> lock(int directory, const std::string &name, Clock::time_point until) {
    using Result = policy::Result<Descriptor, int>;
    for (;;) {
        // O_NONBLOCK: the owner's lease (fcntl(2), F_SETLEASE) delays an open for 45 s.
        Descriptor file(
            ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
        if (!file && errno != EWOULDBLOCK) return Result(errno);
        if (!file || ::flock(file.number(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK || Clock::now() >= until) return Result(errno);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            continue;
        }
        struct stat status {};
        if (::fstat(file.number(), &status) != 0) return Result(errno);
        if (status.st_nlink != 0) return Result(std::move(file));
    }
}

}  // namespace

std::uint64_t start_of(int pid) {
    const auto stat = stat_of(pid);
    return stat && !stat->has_ended() ? stat->start : 0;
}

bool has_ended(int pid, std::uint64_t start) noexcept {
    errno = 0;
    const auto stat = stat_of(pid);
    return stat ? stat->has_ended() || stat->start != start : errno == ENOENT || errno == ESRCH;
}

std::string text_of(const Process &process, const Record &record) {
    Json gpus = Json::array();
    for (const Gpu &gpu : record) gpus.push_back({{"uuid", gpu.uuid}, {"held", gpu.held}, {"free", gpu.free}});
    return Json{{"version", 1}, {"pid", process.pid}, {"start", process.start}, {"gpus", gpus}}.dump() + "\n";
}

namespace {

std::optional<std::uint64_t> number(const Json &object, const char *name) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<std::uint64_t>();
}

std::optional<Gpu> gpu_in(const Json &value) {
    if (!value.is_object()) return std::nullopt;
    const auto uuid = value.find("uuid");
    const auto held = number(value, "held"), free = number(value, "free");
    if (uuid == value.end() || !uuid->is_string() || !held || !free) return std::nullopt;
    return Gpu{uuid->get<std::string>(), *held, *free};
}

}  // namespace

std::optional<Record> parse(const Process &process, const std::string &text) {
    const Json all = Json::parse(text, nullptr, false);
    if (!all.is_object() || number(all, "version") != 1U || number(all, "start") != process.start ||
        number(all, "pid") != static_cast<std::uint64_t>(process.pid))
        return std::nullopt;
    const auto gpus = all.find("gpus");
    if (gpus == all.end() || !gpus->is_array() || gpus->empty()) return std::nullopt;
    Record record;
    for (const Json &one : *gpus) {
        const auto gpu = gpu_in(one);
        if (!gpu) return std::nullopt;
        record.push_back(*gpu);
    }
    return record;
}

std::optional<std::string> write(const Process &process, const Record &record) {
    const As user(process);
    std::string faults;
    bool written = false;
    const std::string text = text_of(process, record);
    if (!user.failed()) {
        for (const Directory &directory : directories(process, true, faults)) {
            if (write_whole(directory.file.number(), name_of(process, kRecordName), text))
                written = true;
            else
                faults.append(faults.empty() ? "" : "; ").append(directory.path).append(": ").append(why(errno));
        }
    }
    if (written) return std::nullopt;
    return "what has to come back could not be written down (" + faults + ")";
}

std::optional<Record> read(const Process &process) {
    const As user(process);
    std::string faults;
    if (user.failed()) return std::nullopt;
    for (const Directory &directory : directories(process, false, faults)) {
        const auto text = read_whole(directory.file.number(), name_of(process, kRecordName), process.uid);
        if (!text) continue;
        if (auto record = parse(process, *text)) return record;
    }
    return std::nullopt;
}

void remove(const Process &process) {
    const As user(process);
    std::string faults;
    if (user.failed()) return;
    for (const Directory &directory : directories(process, false, faults))
        ::unlinkat(directory.file.number(), name_of(process, kRecordName).c_str(), 0);
}

void remove_stale(const Process &process) {
    const As user(process);
    std::string faults;
    if (user.failed()) return;
    const auto is_stale = [](const std::string &name) {
        int pid = 0;
        unsigned long long start = 0;
        int length = 0;
        if (std::sscanf(name.c_str(), "%d-%llu%n", &pid, &start, &length) != 2) return false;
        const std::string kind = name.substr(static_cast<std::size_t>(length));
        const bool ours = kind == kRecordName || kind == kClaim || kind == std::string(kRecordName) + ".new";
        return ours && start_of(pid) != start;
    };
    for (const Directory &directory : directories(process, false, faults))
        for (const std::string &name : names_in(directory.file, is_stale))
            ::unlinkat(directory.file.number(), name.c_str(), 0);
}

policy::Result<Claim, std::string> Claim::take(const Process &process, std::chrono::milliseconds patience) {
    const As user(process);
    constexpr std::chrono::milliseconds kOfRoot{10'000};
    const auto until = Clock::now() + (user.is_root() ? std::max(patience, kOfRoot) : patience);
    std::string faults;
    std::vector<Descriptor> files;
    bool is_alone = true;
    if (!user.failed()) {
        for (const Directory &directory : directories(process, true, faults)) {
            auto locked = lock(directory.file.number(), name_of(process, kClaim), until);
            const bool is_taken = !locked && locked.error() == EWOULDBLOCK;
            if (is_taken && !user.is_root()) return std::string(kTaken);
            is_alone = is_alone && !is_taken;
            if (locked)
                files.push_back(std::move(locked).value());
            else
                faults.append(faults.empty() ? "" : "; ").append(directory.path + ": " + why(locked.error()));
        }
    }
    if (!files.empty() || !is_alone) return Claim(std::move(files), is_alone);
    return "there is no directory in which to note that it is being worked on (" + faults + ")";
}

}  // namespace curb::control::suspended
