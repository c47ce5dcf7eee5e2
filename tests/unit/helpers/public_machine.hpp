// A machine of the test's own, whose users see each other's files (control/runtime_dir.hpp).
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <chrono>
#include <filesystem>

#include "catch.hpp"
#include "control/runtime_dir.hpp"
#include "temp_dir.hpp"

struct PublicMachine {
    TempDir dir;
    curb::control::Places places{(dir / "own").string(), (dir / "none").string(), (dir / "run").string(),
                                 (dir / "tmp").string()};
    PublicMachine() {
        std::filesystem::permissions(dir.path(), std::filesystem::perms(0711));
        std::filesystem::create_directory(places.xdg);
        std::filesystem::permissions(places.xdg, std::filesystem::perms::owner_all);
        for (const char *shared : {"run", "run/public", "tmp"}) {
            std::filesystem::create_directory(dir / shared);
            std::filesystem::permissions(dir / shared, std::filesystem::perms(01777));
        }
    }
};

// As if the process of this text link had not set its time for so long.
inline void set_age(const std::filesystem::path &link, std::chrono::seconds age) {
    timespec then{};
    ::clock_gettime(CLOCK_REALTIME, &then);
    then.tv_sec -= age.count();
    const timespec both[2] = {then, then};
    REQUIRE(::utimensat(AT_FDCWD, link.c_str(), both, AT_SYMLINK_NOFOLLOW) == 0);
}
