#include "steer.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "config/load.hpp"
#include "policy/steer.hpp"
#include "unwinder.hpp"

namespace curb::shim::steer {
namespace {

// Whether the file may say something of frameworks: every program of a session passes here, and most policies do not.
// A key with \u in it could spell anything.
bool mentions_frameworks(const char *path) noexcept {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    char block[16 * 1024];
    bool found = false;
    std::size_t kept = 0;  // of the block before: the word may lie across
    struct stat status {};
    const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    constexpr std::string_view kWord = "frameworks", kEscape = "\\u";
    std::size_t seen = 0;
    for (ssize_t got = 0;
         regular && !found && seen <= config::kLargest && (got = read(fd, block + kept, sizeof block - kept)) > 0;) {
        const std::string_view text(block, kept + static_cast<std::size_t>(got));
        found = text.find(kWord) != std::string_view::npos || text.find(kEscape) != std::string_view::npos;
        seen += static_cast<std::size_t>(got);
        kept = text.size() < kWord.size() ? text.size() : kWord.size();
        memmove(block, text.data() + text.size() - kept, kept);
    }
    close(fd);
    return found;
}

// Without allocating: nearly every program passes here, and has no policy.
bool may_steer(const char *(*environment)(const char *)) noexcept {
    if (mentions_frameworks(config::kCeiling)) return true;
    if (getauxval(AT_SECURE) != 0) return false;
    const char *named = environment("CURB_POLICY");
    if (named && *named) return mentions_frameworks(named);
    char path[PATH_MAX];
    return config::users_file(environment, path) && mentions_frameworks(path);
}

}  // namespace

void set_environment(const char *(*environment)(const char *)) noexcept try {
    if (!may_steer(environment) || !unwinder::load()) return;
    const auto loaded = config::load(config::locate(environment), config::this_process);
    if (!loaded) return;
    for (const auto &[name, value] : policy::variables_to_set(loaded->policy.frameworks, getenv))
        setenv(name.c_str(), value.c_str(), 0);
} catch (...) {
    // Out of host memory before main: the program will meet that itself.
}

}  // namespace curb::shim::steer
