#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "config/load.hpp"
#include "file.hpp"
#include "policy/handed_in.hpp"

namespace curb::config {
namespace {

// Makes the path absolute: the program may change its directory before the policy is read again. Returns it unchanged
// if there is no working directory.
std::string absolute(std::string path) {
    if (path.starts_with('/')) return path;
    const std::unique_ptr<char, decltype(&std::free)> here(::getcwd(nullptr, 0), &std::free);
    return here == nullptr ? path : std::string(here.get()) + "/" + path;
}

// Finds the variables of other systems. Unlike an invalid policy, an invalid one of these does not make curb refuse.
void find_handed_in(const Variables &environment, Source &source) {
    const auto add = [&](const std::string &name) {
        const char *value = environment(name.c_str());
        if (value && *value) source.handed_in.emplace_back(name, value);
    };
    constexpr int kMostDevices = 64;  // of a process, as devices::kMost in shim/
    for (const std::string name : policy::handed_in_names()) {
        if (!name.ends_with('_')) {
            add(name);
            continue;
        }
        for (int device = 0; device < kMostDevices; ++device) add(name + std::to_string(device));
    }
}

Source find(const Variables &environment) {
    const auto variable = [&](const char *name) {
        const char *value = environment(name);
        return std::string(value == nullptr ? "" : value);
    };
    Source source;
    source.cap = variable("CURB_CAP");
    source.job_cap = variable("CURB_JOB_CAP");
    source.job = variable("CURB_JOB");
    source.slurm = variable("SLURM_JOB_ID");
    source.file = variable("CURB_POLICY");
    for (const policy::FlagRow &row : policy::flags())
        if (std::string text = variable(row.variable); !text.empty())
            source.flags.emplace_back(row.flag, std::move(text));
    source.signal = variable("CURB_SIGNAL");
    source.named = !source.none();
    find_handed_in(environment, source);
    if (!source.file.empty()) {
        source.file = absolute(std::move(source.file));
        return source;
    }
    std::array<char, PATH_MAX> path;
    struct stat status {};
    if (!users_file(environment("XDG_CONFIG_HOME"), environment("HOME"), path) || ::stat(path.data(), &status) != 0)
        return source;
    source.own = is_own(status);
    (source.own ? source.file : source.foreign) = path.data();
    return source;
}

}  // namespace

bool users_file(const char *config_home, const char *home, std::span<char> path) noexcept {
    // The XDG specification says to ignore a relative one.
    const bool has_own = config_home && *config_home == '/';
    const char *directory = has_own ? config_home : home;
    const std::string_view below = has_own ? "/curb/policy.json" : "/.config/curb/policy.json";
    if (!directory || *directory != '/') return false;
    const std::size_t length = std::strlen(directory);
    if (length + below.size() >= path.size()) return false;
    // Not by snprintf: it costs a program that does not use it 15 us at its start.
    std::memcpy(path.data(), directory, length);
    std::memcpy(path.data() + length, below.data(), below.size());
    path[length + below.size()] = '\0';
    return true;
}

Source locate(const Variables &environment) { return ::getauxval(AT_SECURE) != 0 ? Source() : find(environment); }

}  // namespace curb::config
