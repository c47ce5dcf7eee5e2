#include "interposed.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <semaphore.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

namespace fault {
namespace {

constinit std::atomic<std::uintptr_t> library_begin{0}, library_end{0};

struct Planned {
    std::atomic<bool> counting{false};
    std::atomic<int> kind{0};
    std::atomic<int> number{0};
    std::atomic<bool> lasting{false};
    std::atomic<bool> of_planner{false};  // calls of other threads neither count nor fail
    std::atomic<std::uint64_t> call{0}, calls{0};
    std::atomic<const char *> failed{nullptr};
};
constinit Planned planned;
constinit thread_local bool is_planner = false;

bool is_librarys(const void *caller) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(caller);
    return address >= library_begin.load(std::memory_order_relaxed) &&
           address < library_end.load(std::memory_order_relaxed);
}

// True if this call of `name` must fail.
bool strikes(Kind kind, const char *name, const void *caller) noexcept {
    if (!planned.counting.load(std::memory_order_relaxed) || planned.kind != static_cast<int>(kind) ||
        !is_librarys(caller) || (planned.of_planner && !is_planner))
        return false;
    const std::uint64_t call = ++planned.calls, first = planned.call;
    if (first == 0 || call < first || (call > first && !planned.lasting)) return false;
    if (call == first) planned.failed = name;
    return true;
}

template <class... Errors>
int error_of(Errors... errors) noexcept {
    const int all[] = {errors...};
    return all[static_cast<std::size_t>(planned.number.load()) % sizeof...(errors)];
}

template <class Function>
Function *real(Function * /*like*/, const char *name) noexcept {
    return reinterpret_cast<Function *>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

bool find_library() {
    const auto look = [](dl_phdr_info *object, std::size_t /*size*/, void * /*data*/) {
        const std::string_view path = object->dlpi_name;
        if (!path.ends_with("/libcurb.so")) return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
            const auto &segment = object->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
            library_begin = object->dlpi_addr + segment.p_vaddr;
            library_end = object->dlpi_addr + segment.p_vaddr + segment.p_memsz;
        }
        return 1;
    };
    return ::dl_iterate_phdr(look, nullptr) != 0 && library_end != 0;
}

void HostCalls::plan(const Fault &fault) { plan(fault, false); }
void HostCalls::plan_next_of_this_thread() {
    is_planner = true;
    plan({1, 0, false, false}, true);
}
void HostCalls::plan(const Fault &fault, bool of_planner) {
    planned.counting = false;
    planned.kind = static_cast<int>(kind_);
    planned.number = fault.code;
    planned.lasting = fault.lasting;
    planned.of_planner = of_planner;
    planned.call = fault.call;
    planned.calls = 0;
    planned.failed = nullptr;
    planned.counting = true;
}
void HostCalls::pause(bool pause) { planned.counting = !pause; }
const char *HostCalls::failed() { return planned.failed; }
std::uint64_t HostCalls::calls() { return planned.calls; }

}  // namespace fault

using fault::error_of;
using fault::Kind;
using fault::real;
using fault::strikes;

#define CURB_EXPORT extern "C" __attribute__((visibility("default")))

// The allocating functions of glibc under its own names, which are not interposed.
extern "C" {
void *__libc_malloc(std::size_t bytes);
void *__libc_calloc(std::size_t count, std::size_t bytes);
void *__libc_realloc(void *pointer, std::size_t bytes);
void *__libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace {

void *none() noexcept {
    errno = ENOMEM;
    return nullptr;
}

}  // namespace

#define FAILS_TO_ALLOCATE(name) strikes(Kind::allocation, name, __builtin_return_address(0))

CURB_EXPORT void *malloc(std::size_t bytes) { return FAILS_TO_ALLOCATE("malloc") ? none() : __libc_malloc(bytes); }
CURB_EXPORT void *calloc(std::size_t count, std::size_t bytes) {
    return FAILS_TO_ALLOCATE("calloc") ? none() : __libc_calloc(count, bytes);
}
CURB_EXPORT void *realloc(void *pointer, std::size_t bytes) {
    return FAILS_TO_ALLOCATE("realloc") ? none() : __libc_realloc(pointer, bytes);
}
CURB_EXPORT void *aligned_alloc(std::size_t alignment, std::size_t bytes) {
    return FAILS_TO_ALLOCATE("aligned_alloc") ? none() : __libc_memalign(alignment, bytes);
}

// System calls, and functions of libc that make some, with what they return on failure and their errors.
#define SYSTEM_CALL(type, name, parameters, arguments, failure, ...)                    \
    CURB_EXPORT type name parameters {                                                  \
        if (strikes(Kind::system_call, #name, __builtin_return_address(0))) {           \
            errno = error_of(__VA_ARGS__);                                              \
            return failure;                                                             \
        }                                                                               \
        static const auto next = real(static_cast<type(*) parameters>(nullptr), #name); \
        return next arguments;                                                          \
    }
#define RETURNS_ERROR(name, parameters, arguments, ...)                                                   \
    CURB_EXPORT int name parameters {                                                                     \
        if (strikes(Kind::system_call, #name, __builtin_return_address(0))) return error_of(__VA_ARGS__); \
        static const auto next = real(static_cast<int(*) parameters>(nullptr), #name);                    \
        return next arguments;                                                                            \
    }

CURB_EXPORT int open(const char *path, int flags, ...) {
    if (strikes(Kind::system_call, "open", __builtin_return_address(0))) {
        errno = error_of(EMFILE, EACCES, ENOMEM, ENOSPC, EINTR);
        return -1;
    }
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    static const auto next = real(static_cast<int (*)(const char *, int, ...)>(nullptr), "open");
    return next(path, flags, mode);
}
CURB_EXPORT int fcntl(int fd, int command, ...) {
    if (strikes(Kind::system_call, "fcntl", __builtin_return_address(0))) {
        errno = error_of(EMFILE, EBADF);
        return -1;
    }
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    static const auto next = real(static_cast<int (*)(int, int, ...)>(nullptr), "fcntl");
    return next(fd, command, argument);
}
SYSTEM_CALL(ssize_t, read, (int fd, void *out, std::size_t bytes), (fd, out, bytes), -1, EINTR, EIO, ENOMEM)
SYSTEM_CALL(ssize_t, pread, (int fd, void *out, std::size_t bytes, off_t at), (fd, out, bytes, at), -1, EINTR, EIO)
SYSTEM_CALL(ssize_t, write, (int fd, const void *from, std::size_t bytes), (fd, from, bytes), -1, ENOSPC, EINTR, EIO,
            EDQUOT)
SYSTEM_CALL(int, fstat, (int fd, struct stat *out), (fd, out), -1, ENOMEM, EOVERFLOW)
SYSTEM_CALL(int, stat, (const char *path, struct stat *out), (path, out), -1, EACCES, ENOMEM)
SYSTEM_CALL(int, lstat, (const char *path, struct stat *out), (path, out), -1, EACCES, ENOMEM)
SYSTEM_CALL(int, fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags), -1, EACCES,
            ENOMEM)
SYSTEM_CALL(int, access, (const char *path, int mode), (path, mode), -1, EACCES, ENOMEM)
SYSTEM_CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, EACCES, ENOSPC, EROFS)
SYSTEM_CALL(int, rename, (const char *from, const char *to), (from, to), -1, EACCES, ENOSPC)
SYSTEM_CALL(int, unlink, (const char *path), (path), -1, EACCES, EROFS)
SYSTEM_CALL(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), -1, EACCES, EROFS)
SYSTEM_CALL(int, ftruncate, (int fd, off_t bytes), (fd, bytes), -1, EIO, EINTR)
SYSTEM_CALL(ssize_t, readlink, (const char *path, char *out, std::size_t bytes), (path, out, bytes), -1, EACCES, ENOMEM)
SYSTEM_CALL(char *, realpath, (const char *path, char *out), (path, out), nullptr, EACCES, ENOMEM)
SYSTEM_CALL(char *, getcwd, (char *out, std::size_t bytes), (out, bytes), nullptr, EACCES, ENOENT, ENOMEM)
SYSTEM_CALL(DIR *, opendir, (const char *path), (path), nullptr, EMFILE, EACCES, ENOMEM)
SYSTEM_CALL(struct dirent *, readdir, (DIR * folder), (folder), nullptr, EBADF, ENOENT)
SYSTEM_CALL(std::FILE *, fopen, (const char *path, const char *mode), (path, mode), nullptr, EMFILE, EACCES, ENOSPC)
SYSTEM_CALL(std::size_t, fwrite, (const void *from, std::size_t size, std::size_t count, std::FILE *file),
            (from, size, count, file), 0, ENOSPC, EIO)
SYSTEM_CALL(int, fflush, (std::FILE * file), (file), EOF, ENOSPC, EIO)
SYSTEM_CALL(int, socket, (int family, int type, int protocol), (family, type, protocol), -1, EMFILE, ENFILE, ENOMEM,
            EACCES)
SYSTEM_CALL(int, socketpair, (int family, int type, int protocol, int *pair), (family, type, protocol, pair), -1,
            EMFILE, ENFILE, ENOMEM)
SYSTEM_CALL(int, bind, (int fd, const sockaddr *address, socklen_t size), (fd, address, size), -1, EACCES, ENOSPC,
            EADDRINUSE)
SYSTEM_CALL(int, listen, (int fd, int backlog), (fd, backlog), -1, EADDRINUSE, ENOMEM)
SYSTEM_CALL(int, accept4, (int fd, sockaddr *address, socklen_t *size, int flags), (fd, address, size, flags), -1,
            EMFILE, ENFILE, ENOMEM, EINTR, ECONNABORTED)
SYSTEM_CALL(int, getsockopt, (int fd, int level, int option, void *out, socklen_t *size),
            (fd, level, option, out, size), -1, ENOMEM, ENOBUFS)
SYSTEM_CALL(ssize_t, recv, (int fd, void *out, std::size_t bytes, int flags), (fd, out, bytes, flags), -1, EINTR,
            ECONNRESET, ENOMEM)
SYSTEM_CALL(ssize_t, send, (int fd, const void *from, std::size_t bytes, int flags), (fd, from, bytes, flags), -1,
            EINTR, ECONNRESET, ENOBUFS, EPIPE)
SYSTEM_CALL(int, poll, (pollfd * polled, nfds_t count, int timeout), (polled, count, timeout), -1, EINTR, ENOMEM)
SYSTEM_CALL(int, inotify_init1, (int flags), (flags), -1, EMFILE, ENFILE, ENOMEM)
SYSTEM_CALL(int, inotify_add_watch, (int fd, const char *path, std::uint32_t mask), (fd, path, mask), -1, ENOSPC,
            ENOMEM, EACCES)
SYSTEM_CALL(int, inotify_rm_watch, (int fd, int watch), (fd, watch), -1, EINVAL)
SYSTEM_CALL(int, close_range, (unsigned first, unsigned last, int flags), (first, last, flags), -1, ENOSYS, EPERM,
            ENOMEM)
SYSTEM_CALL(int, unshare, (int flags), (flags), -1, EPERM, ENOMEM)
SYSTEM_CALL(int, sem_clockwait, (sem_t * semaphore, clockid_t clock, const timespec *until), (semaphore, clock, until),
            -1, EINTR)
SYSTEM_CALL(int, nanosleep, (const timespec *how_long, timespec *left), (how_long, left), -1, EINTR)
SYSTEM_CALL(int, setenv, (const char *name, const char *value, int replace), (name, value, replace), -1, ENOMEM)
SYSTEM_CALL(void *, dlopen, (const char *file, int mode), (file, mode), nullptr, ENOMEM)
RETURNS_ERROR(pthread_create, (pthread_t * thread, const pthread_attr_t *attributes, void *(*body)(void *), void *data),
              (thread, attributes, body, data), EAGAIN)
RETURNS_ERROR(getpwuid_r, (uid_t user, passwd *out, char *room, std::size_t bytes, passwd **found),
              (user, out, room, bytes, found), EMFILE, ENOMEM, EIO)
// Closes the descriptor before it fails, as Linux does.
CURB_EXPORT int close(int fd) {
    static const auto next = real(static_cast<int (*)(int)>(nullptr), "close");
    if (!strikes(Kind::system_call, "close", __builtin_return_address(0))) return next(fd);
    next(fd);
    errno = error_of(EINTR, EIO, ENOSPC);
    return -1;
}
