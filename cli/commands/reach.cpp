#include "reach.hpp"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <string_view>

#include "libraries.hpp"
#include "policy/words.hpp"

namespace curb::cli {
namespace {

constexpr const char *kUncapped = ", so it runs without curb";

bool is_mounted(const std::string &path, unsigned long how) {
    struct statvfs system {};
    return ::statvfs(path.c_str(), &system) == 0 && (system.f_flag & how) != 0;
}

// True if the kernel gives the program rights that this process does not have. The loader then ignores LD_PRELOAD
// (AT_SECURE, ld.so(8)).
bool gains_rights(const std::string &file) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0 || is_mounted(file, ST_NOSUID) ||
        ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return false;
    if ((status.st_mode & S_ISUID) != 0 && status.st_uid != ::getuid()) return true;
    constexpr mode_t kSetGroup = S_ISGID | S_IXGRP;
    if ((status.st_mode & kSetGroup) == kSetGroup && status.st_gid != ::getgid()) return true;
    return ::getuid() != 0 && ::getxattr(file.c_str(), "security.capability", nullptr, 0) > 0;
}

// The loader itself, started as a program, loads preloads although it names no interpreter.
bool is_loader(const std::string &file) {
    const std::string_view name = std::string_view(file).substr(file.rfind('/') + 1);
    return name.starts_with("ld-") || name == "ld.so";
}

}  // namespace

std::optional<std::string> why_out_of_reach(const std::string &file, const std::filesystem::path &library) {
    const std::string name = policy::quote(file);
    const auto program = read_elf(file), ours = read_elf(library.string());
    if (!program) return std::nullopt;
    if (is_mounted(library.string(), ST_NOEXEC))
        return library.string() + " lies on a file system that is mounted noexec, so the loader cannot load it, and " +
               name + " runs without curb; install curb on another one";
    if (program->interpreter.empty() && !is_loader(file))
        return name + " is statically linked" + kUncapped +
               "; of what it starts, programs that are linked dynamically "
               "are under curb";
    if (program->interpreter.find("/ld-musl-") != std::string::npos)
        return name + " uses musl as its libc, and libcurb.so needs glibc" + kUncapped;
    if (ours && (ours->machine != program->machine || ours->bits != program->bits))
        return name + " is for " + architecture_of(*program) + ", and libcurb.so for " + architecture_of(*ours) +
               kUncapped;
    if (gains_rights(file))
        return name +
               " has rights of its own (set-user-ID, set-group-ID or capabilities), so the loader does not load "
               "libcurb.so into it: it and what it starts run without curb; put curb run behind it, as in sudo curb "
               "run "
               "-- COMMAND";
    return std::nullopt;
}

}  // namespace curb::cli
