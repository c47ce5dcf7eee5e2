// Gives a process its own /etc with the test's ceiling, or another file of its own. No variable can name another
// ceiling, so this needs a mount namespace: directly as root, else within a user namespace.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "catch.hpp"
#include "temp_dir.hpp"

// Gives the caller mounts of its own. Call it in a child, before exec. False if that fails.
inline bool own_mounts() {
    const bool is_root = ::geteuid() == 0;
    const std::string uid = "0 " + std::to_string(::geteuid()) + " 1";
    if (::unshare(CLONE_NEWNS | (is_root ? 0 : CLONE_NEWUSER)) != 0) return false;
    if (!is_root) {
        std::ofstream map("/proc/self/uid_map");
        map << uid << std::flush;
        if (!map) return false;
    }
    return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}
// The same, and mounts `from` over `over` there.
inline bool mount_over(const std::filesystem::path &from, const char *over) {
    return own_mounts() && ::mount(from.c_str(), over, nullptr, MS_BIND, nullptr) == 0;
}
// False if this machine does not allow it, which it reports as a skip.
inline bool can_mount() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(mount_over("/tmp", "/tmp") ? 0 : 1);
    int status = 0;
    if (::waitpid(child, &status, 0) == child && status == 0) return true;
    skip("this user may not mount");
    return false;
}

class Ceiling {
  public:
    explicit Ceiling(const std::string &text) {
        const std::filesystem::path file = etc_.write("curb/policy.json", text);
        std::filesystem::permissions(file.parent_path(), std::filesystem::perms(0755));
        std::filesystem::permissions(file, std::filesystem::perms(0644));
    }

    [[nodiscard]] std::filesystem::path file() const { return etc_ / "curb/policy.json"; }

    // Returns its /etc.
    [[nodiscard]] std::filesystem::path etc() const { return etc_.path(); }

    // Call it in the child, before exec. False if the mount fails.
    [[nodiscard]] bool put_in_place() const { return mount_over(etc(), "/etc"); }
    // Returns a `prepare` that puts it in place. The child ends with 96 if it cannot.
    [[nodiscard]] std::function<void()> prepare() const {
        return [this] {
            if (!put_in_place()) ::_exit(96);
        };
    }

  private:
    TempDir etc_;
};
