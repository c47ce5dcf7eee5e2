#include "control/host_room.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "control/proc.hpp"

namespace curb::control {
namespace {

using policy::Bytes;

// nullopt: "max", or "-1".
std::optional<std::uint64_t> leading_number(std::string_view text) {
    std::uint64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) return std::nullopt;
    return number;
}
std::optional<std::uint64_t> number_at(const std::string &path) { return leading_number(file_text(path).value_or("")); }

// The two generations of cgroups name the same things differently.
struct CgroupFiles {
    const char *limit, *used, *cache;  // `cache`: the part of `used` that the kernel can drop
};
constexpr CgroupFiles kUnified{"memory.max", "memory.current", "inactive_file "};
constexpr CgroupFiles kLegacy{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// Calls `act(folder, group, is_unified)` for each cgroup of the process that may have the controller, from its own up
// to the root.
template <class Act>
void each_group(int pid, std::string_view controller, const std::string &proc, const std::string &cgroups, Act act) {
    const std::string lines = file_text(proc + "/" + std::to_string(pid) + "/cgroup").value_or("");
    for (std::string_view rest = lines; !rest.empty();) {  // "0::/job/7", "5:memory:/job/7"
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string_view::npos || second == std::string_view::npos || line.substr(second + 1, 1) != "/")
            continue;
        const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
        const bool is_unified = controllers == ",,";
        if (!is_unified && controllers.find("," + std::string(controller) + ",") == std::string::npos) continue;
        const std::string top = is_unified ? cgroups : cgroups + "/" + std::string(controller);
        for (std::string group(line.substr(second + 1));; group.resize(std::max<std::size_t>(group.rfind('/'), 1))) {
            act(top + group + "/", group, is_unified);
            if (group == "/") break;
        }
    }
}

// Applies the limit of a cgroup.
void narrow(HostRoom &room, const std::string &folder, const std::string &group, const CgroupFiles &files) {
    const auto limit = number_at(folder + files.limit), used = number_at(folder + files.used);
    if (!limit || !used) return;
    const Bytes cache = number_in(file_text(folder + "memory.stat").value_or(""), files.cache);
    const Bytes firm = *used - std::min(*used, cache);
    const Bytes available = *limit - std::min(*limit, firm);
    if (available < room.available) room = {available, "the cgroup " + group, *limit};
}

}  // namespace

std::optional<HostRoom> host_room(int pid, const std::string &proc, const std::string &cgroups) {
    const auto meminfo = file_text(proc + "/meminfo");
    if (!meminfo) return std::nullopt;
    HostRoom room{number_in(*meminfo, "MemAvailable:") * policy::KiB, "this machine",
                  number_in(*meminfo, "MemTotal:") * policy::KiB};
    each_group(pid, "memory", proc, cgroups, [&](const std::string &folder, const std::string &group, bool is_unified) {
        narrow(room, folder, group, is_unified ? kUnified : kLegacy);
    });
    return room;
}

std::optional<double> processor_quota(int pid, const std::string &proc, const std::string &cgroups) {
    std::optional<double> least;
    each_group(pid, "cpu", proc, cgroups, [&](const std::string &folder, const std::string &, bool is_unified) {
        // "150000 100000": microseconds of processors, in each period of so many.
        const std::string both = file_text(folder + "cpu.max").value_or("");
        const auto quota = is_unified ? leading_number(both) : number_at(folder + "cpu.cfs_quota_us");
        const auto period = is_unified ? leading_number(std::string_view(both).substr(both.find(' ') + 1))
                                       : number_at(folder + "cpu.cfs_period_us");
        if (!quota || !period || *period == 0) return;
        const double processors = static_cast<double>(*quota) / static_cast<double>(*period);
        least = std::min(least.value_or(processors), processors);
    });
    return least;
}

}  // namespace curb::control
