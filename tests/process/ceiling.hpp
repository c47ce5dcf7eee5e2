// A process with an /etc of its own that has the test's ceiling. No variable names another ceiling, so this needs a
// mount namespace: root's own, or one of a user namespace.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "temp_dir.hpp"

class Ceiling {
  public:
    explicit Ceiling(const std::string &text) {
        const std::filesystem::path file = etc_.write("curb/policy.json", text);
        std::filesystem::permissions(file.parent_path(), std::filesystem::perms(0755));
        std::filesystem::permissions(file, std::filesystem::perms(0644));
    }

    [[nodiscard]] std::filesystem::path file() const { return etc_ / "curb/policy.json"; }

    // Whether this machine lets us.
    [[nodiscard]] bool possible() const {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(put_in_place() ? 0 : 1);
        int status = 0;
        return ::waitpid(child, &status, 0) == child && status == 0;
    }

    // In the child, before exec.
    [[nodiscard]] bool put_in_place() const {
        const bool is_root = ::geteuid() == 0;
        const std::string uid = "0 " + std::to_string(::geteuid()) + " 1";
        if (::unshare(CLONE_NEWNS | (is_root ? 0 : CLONE_NEWUSER)) != 0) return false;
        if (!is_root) {
            std::ofstream map("/proc/self/uid_map");
            map << uid << std::flush;
            if (!map) return false;
        }
        return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount(etc_.path().c_str(), "/etc", nullptr, MS_BIND, nullptr) == 0;
    }

  private:
    TempDir etc_;
};

// Says so where it is not possible.
inline bool can_try(const Ceiling &ceiling) {
    if (ceiling.possible()) return true;
    skip("this user may not mount");
    return false;
}
