#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "config/load.hpp"
#include "diagnostic.hpp"

namespace curb::config {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 20;

// Closes on every way out.
class File {
  public:
    explicit File(int fd) : fd_(fd) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    [[nodiscard]] int fd() const { return fd_; }

  private:
    int fd_;
};

// The program may change its directory before the policy is read again. Without a working directory: as it is.
std::string absolute(std::string path) {
    if (path.starts_with('/')) return path;
    const std::unique_ptr<char, decltype(&std::free)> here(::getcwd(nullptr, 0), &std::free);
    return here == nullptr ? path : std::string(here.get()) + "/" + path;
}

std::string why_not_opened(int error) {
    switch (error) {
        case ENOENT: return "there is no such file; check the path in --policy or CURB_POLICY";
        case EACCES:
        case EPERM: return "it may not be read by this user; change its mode or that of a directory on its path";
        case ENOTDIR: return "a part of its path is not a directory";
        case ELOOP: return "its symbolic links lead in a circle";
        case ENXIO:
        case ENODEV: return "it is not a regular file; copy the policy into one";
        default: return std::string("it cannot be opened: ") + std::strerror(error);
    }
}

policy::Result<std::string, Diagnostic> read_regular_file(const std::string &path) {
    const auto fault = [&](std::string message) { return Diagnostic{path, 0, 0, {}, std::move(message)}; };
    int fd = -1;
    // O_NONBLOCK: the opening of a FIFO without a writer must not wait for one.
    do fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    const File file(fd);
    if (fd < 0) return fault(why_not_opened(errno));
    struct stat status {};
    if (::fstat(fd, &status) != 0) return fault(std::string("it cannot be read: ") + std::strerror(errno));
    if (S_ISDIR(status.st_mode)) return fault("it is a directory; name the policy file in it");
    if (!S_ISREG(status.st_mode)) return fault("it is not a regular file; copy the policy into one");

    std::string text;
    char block[16 * 1024];
    for (;;) {
        const ssize_t got = ::read(fd, block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fault(std::string("it cannot be read: ") + std::strerror(errno));
        if (got == 0) return text;
        text.append(block, static_cast<std::size_t>(got));
        if (text.size() > kLargest) return fault("it is larger than 1 MiB, which no policy is; is it the right file?");
    }
}

// $XDG_CONFIG_HOME/curb/policy.json, if it is there. The XDG specification says to ignore a relative directory.
template <class Variable>
std::string users_file(Variable variable) {
    std::string directory = variable("XDG_CONFIG_HOME");
    if (!directory.starts_with('/')) {
        const std::string home = variable("HOME");
        if (!home.starts_with('/')) return {};
        directory = home + "/.config";
    }
    const std::string path = directory + "/curb/policy.json";
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? path : std::string();
}

Source find(const std::function<const char *(const char *)> &environment) {
    const auto variable = [&](const char *name) {
        const char *value = environment(name);
        return std::string(value == nullptr ? "" : value);
    };
    Source source;
    source.cap = variable("CURB_CAP");
    source.file = variable("CURB_POLICY");
    source.named = !source.none();
    source.file = source.file.empty() ? users_file(variable) : absolute(std::move(source.file));
    return source;
}

}  // namespace

Source locate(const std::function<const char *(const char *)> &environment) {
    if (::getauxval(AT_SECURE) != 0) return {};
    try {
        return find(environment);
    } catch (...) {
        // Without memory to say which policy there is, none can be loaded either: this one refuses.
        Source unusable;
        unusable.cap = "?";
        unusable.named = true;
        return unusable;
    }
}

policy::Result<std::string, Diagnostic> read_file(const std::string &path) {
    try {
        return read_regular_file(path);
    } catch (...) {
        Diagnostics none = out_of_memory(path);
        return none.empty() ? Diagnostic() : std::move(none.front());
    }
}

policy::Result<policy::Policy, Diagnostics> load(const Source &source) {
    try {
        policy::Policy policy;
        Diagnostics diagnostics;
        if (!source.file.empty()) {
            const auto text = read_file(source.file);
            if (text) {
                auto parsed = parse(*text, source.file);
                if (parsed) {
                    policy = std::move(parsed).value();
                } else {
                    diagnostics = parsed.error();
                }
            } else {
                diagnostics.push_back(text.error());
            }
        }
        if (!source.cap.empty()) {
            if (const auto cap = policy::parse_size(source.cap)) {
                policy.narrowed_to = *cap;
            } else {
                diagnostics.push_back({"CURB_CAP", 0, 0, {}, cap.error()});
            }
        }
        if (diagnostics.empty()) return policy;
        return diagnostics;
    } catch (...) {
        return out_of_memory(source.file);
    }
}

}  // namespace curb::config
