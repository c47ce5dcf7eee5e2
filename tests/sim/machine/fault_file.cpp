#include "fault_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <string>

#include "environment.hpp"

namespace curb::sim {

namespace {

void note(std::string_view name) {
    static const char *const path = environment("CURB_SIM_CALLS");
    if (!*path) return;
    const int file = ::open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return;
    const std::string line = std::string(name) + "\n";
    [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
    ::close(file);
}

// Counts the call in the locked file. Returns the error if it is the one that fails.
int count(int file, const char *path, std::string_view name) {
    char text[128] = {}, planned[96];
    unsigned long long call = 0;
    int code = 0;
    if (::pread(file, text, sizeof text - 1, 0) <= 0 ||
        std::sscanf(text, "%95[^:]:%llu:%d", planned, &call, &code) != 3 || planned != name || call == 0)
        return 0;
    const std::string left =
        call == 1 ? "" : std::string(name) + ":" + std::to_string(call - 1) + ":" + std::to_string(code);
    // Emptied first: another process may have it open.
    if (::ftruncate(file, 0) != 0 || ::pwrite(file, left.data(), left.size(), 0) != static_cast<ssize_t>(left.size()))
        return 0;
    if (call != 1) return 0;
    ::unlink(path);
    return code;
}

// Locks the file against other processes. A fork child does not inherit such a lock, as it would that of flock(); but
// closing any descriptor of the file releases it, so one thread at a time has the file open.
bool lock_file(int file) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    return ::fcntl(file, F_SETLKW, &whole) == 0;
}
std::mutex &threads() {
    static std::mutex &lock = *new std::mutex;
    // A fork child has none of the other threads, one of which might hold it.
    static const int forks = ::pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); });
    static_cast<void>(forks);
    return lock;
}

}  // namespace

int fault_in_file(std::string_view name) {
    note(name);
    static const char *const path = environment("CURB_SIM_FAULT_FILE");
    if (!*path) return 0;
    const std::scoped_lock lock(threads());
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return 0;
    const int code = lock_file(file) ? count(file, path, name) : 0;
    ::close(file);
    return code;
}

}  // namespace curb::sim
