#include "control/text_link.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "control/proc.hpp"
#include "process_stat.hpp"

namespace curb::control::text_link {
namespace {

std::uint64_t unix_ms(const timespec &at) noexcept {
    return static_cast<std::uint64_t>(at.tv_sec) * 1000 + static_cast<std::uint64_t>(at.tv_nsec) / 1'000'000;
}
std::uint64_t age_ms(const struct stat &file) noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t set = unix_ms(file.st_mtim), then = unix_ms(now);
    constexpr std::uint64_t kSkew = 1000;  // the kernel's clock for files is some ms behind
    return set > then + kSkew ? ~std::uint64_t{0} : then - std::min(then, set);
}

// True if this process is the one that has the pid now, and a process of `owner`.
bool runs_here(const ProcessName &process, uid_t owner) {
    const auto stat = stat_of(process.pid);
    return stat && stat->start == process.start && !stat->has_ended() && owner_of(process.pid) == owner;
}

}  // namespace

std::string write(const std::string &path, const std::string &text) {
    const std::string aside = path + std::string(kUnfinished);
    const auto create = [&] { return ::syscall(SYS_symlinkat, text.c_str(), AT_FDCWD, aside.c_str()) == 0; };
    bool is_written = create();
    if (!is_written && errno == EEXIST) {  // of a process with this pid that was killed here
        ::unlink(aside.c_str());
        is_written = create();
    }
    if (is_written && ::syscall(SYS_renameat2, AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), 0U) == 0) return {};
    const int error = errno;
    if (is_written) ::unlink(aside.c_str());
    return std::strerror(error);
}

void remove_unfinished(const Descriptor &folder) {
    const uid_t owner = ::geteuid();
    const auto is_left = [&](const std::string &name) {
        const auto found = name.ends_with(kUnfinished) ? read(folder, name, owner) : std::nullopt;
        return found && found->age_ms > kDeadMs;
    };
    for (const std::string &name : names_in(folder, is_left)) ::unlinkat(folder.number(), name.c_str(), 0);
}

bool touch(const std::string &path) noexcept {
    return ::syscall(SYS_utimensat, AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
}

std::optional<Found> read(const Descriptor &folder, const std::string &name, uid_t owner) {
    struct stat status {};
    if (::fstatat(folder.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(status.st_mode) ||
        status.st_uid != owner)
        return std::nullopt;
    std::array<char, kLongest + 1> block;
    const long got = ::syscall(SYS_readlinkat, folder.number(), name.c_str(), block.data(), block.size());
    if (got <= 0 || static_cast<std::size_t>(got) > kLongest) return std::nullopt;
    return Found{{block.data(), static_cast<std::size_t>(got)}, age_ms(status)};
}

std::uint64_t own_pid_namespace() noexcept {
    struct stat status {};
    return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Life life_of(const ProcessName &process, std::uint64_t pid_namespace, uid_t owner, std::uint64_t age_ms,
             std::uint64_t own) {
    const bool is_here = own != 0 && pid_namespace == own;
    if (is_here ? !runs_here(process, owner) : age_ms > kDeadMs) return Life::dead;
    return age_ms > kFreshMs ? Life::silent : Life::lives;
}

}  // namespace curb::control::text_link
