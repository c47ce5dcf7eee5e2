#include "server/socket_file.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "host/process_state.hpp"

namespace curb::shim::socket_file {
namespace {

constexpr int kBacklog = 128;  // clients waiting for accept

struct File {
    std::mutex mutex;
    bool exiting = false;
    std::string path;  // empty: there is none
    dev_t device = 0;
    ino_t inode = 0;
};
File &file() noexcept { return leaked<File>(); }

constinit process::Home home;  // the file is its own

// The callers of these two hold the lock.
bool exists(const File &file) noexcept {
    struct stat status {};
    return lstat(file.path.c_str(), &status) == 0 && status.st_dev == file.device && status.st_ino == file.inode;
}
// Allocates nothing: a program that exits from a signal handler may be within malloc.
void remove(File &file) noexcept {
    if (file.path.empty()) return;
    if (exists(file)) unlink(file.path.c_str());
    file.path.clear();
}

// Fork children run this too, but the file is their parent's.
void at_exit() {
    if (!home.is_here()) return;
    const std::scoped_lock lock(file().mutex);
    file().exiting = true;
    remove(file());
}

}  // namespace

void until_exit() {
    file();
    home.set();
    atexit(at_exit);
}

OwnSocket listen(const control::Folder &folder, std::string &why) {
    const auto process = control::name_of(getpid());
    if (!process) {
        why = "/proc cannot be read";
        return {};
    }
    const std::string name = control::socket_name(*process);
    std::string path = folder.path + "/" + name;
    const std::string fresh = folder.path + "/" + control::unfinished(name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    fresh.copy(address.sun_path, sizeof address.sun_path - 1);
    OwnSocket out(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const std::scoped_lock lock(file().mutex);
    if (file().exiting) return {};
    unlink(fresh.c_str());
    // chmod, so that the same user can connect under any umask. Rename it only once it listens: clients take a socket
    // that refuses them for that of a dead process.
    struct stat status {};
    if (!out || bind(out.number(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0 ||
        ::listen(out.number(), kBacklog) != 0 || chmod(fresh.c_str(), 0600) != 0 ||
        lstat(fresh.c_str(), &status) != 0 || rename(fresh.c_str(), path.c_str()) != 0) {
        why = path + ": " + std::strerror(errno);
        unlink(fresh.c_str());
        return {};
    }
    file().path = std::move(path);
    file().device = status.st_dev;
    file().inode = status.st_ino;
    return out;
}

bool is_there() noexcept {
    const std::scoped_lock lock(file().mutex);
    return file().exiting || exists(file());
}

void withdraw() noexcept {
    const std::scoped_lock lock(file().mutex);
    remove(file());
}

}  // namespace curb::shim::socket_file
