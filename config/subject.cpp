// The calling process as rules see it. Runs in a process that is not ours: leaves nothing open, and leaves empty what
// it cannot read.
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <vector>

#include "config/load.hpp"
#include "file.hpp"

namespace curb::config {
namespace {

std::string program() {
    std::string path(256, '\0');
    for (;;) {
        const ssize_t length = ::readlink("/proc/thread-self/exe", path.data(), path.size());
        if (length < 0) return {};
        if (static_cast<std::size_t>(length) < path.size()) {
            path.resize(static_cast<std::size_t>(length));
            break;
        }
        path.resize(path.size() * 2);
    }
    // The kernel appends this if the file was removed, by an update for example. lstat: a file may have that name.
    constexpr std::string_view kDeleted = " (deleted)";
    struct stat status {};
    if (path.ends_with(kDeleted) && ::lstat(path.c_str(), &status) != 0) path.resize(path.size() - kDeleted.size());
    return path;
}

std::string arguments() {
    std::string text = proc_text("/proc/thread-self/cmdline");
    const std::size_t first = text.find('\0');
    if (first == std::string::npos) return {};
    text.erase(0, first + 1);
    if (text.ends_with('\0')) text.pop_back();
    std::replace(text.begin(), text.end(), '\0', ' ');
    return text;
}

// The environment at the start of the process: getenv would race with threads of the program that set variables.
std::function<const char *(const char *)> environment() {
    return [all = proc_text("/proc/thread-self/environ")](const char *name) -> const char * {
        const std::string wanted = std::string(name) + "=";
        for (std::size_t at = 0; at < all.size(); at = all.find('\0', at) + 1) {
            if (all.compare(at, wanted.size(), wanted) == 0) return all.c_str() + at + wanted.size();
            if (all.find('\0', at) == std::string::npos) break;
        }
        return nullptr;
    };
}

// Returns the user's name. Empty if there is none.
std::string user_name(uid_t user) {
    std::vector<char> memory(1024);
    passwd entry{};
    passwd *found = nullptr;
    for (;;) {
        const int error = ::getpwuid_r(user, &entry, memory.data(), memory.size(), &found);
        if (error == EINTR) continue;
        if (error != ERANGE) break;
        memory.resize(memory.size() * 2);
    }
    return found ? std::string(found->pw_name) : std::string();
}

}  // namespace

policy::Subject this_process(bool with_user) {
    policy::Subject out;
    out.exe = program();
    out.args = arguments();
    const uid_t user = ::getuid();
    if (with_user) {
        if (std::string name = user_name(user); !name.empty()) out.users.push_back(std::move(name));
    }
    out.users.push_back(std::to_string(user));
    out.environment = environment();
    return out;
}

}  // namespace curb::config
