#include "control/host_room.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "control/proc.hpp"

namespace curb::control {
namespace {

using policy::Bytes;

std::optional<Bytes> bytes_in(const std::string &path) {
    const auto text = file_text(path);
    Bytes bytes = 0;
    if (!text || std::from_chars(text->data(), text->data() + text->size(), bytes).ec != std::errc())
        return std::nullopt;  // "max"
    return bytes;
}

// The two generations of cgroups name the same things differently.
struct CgroupFiles {
    const char *limit, *used, *cache;  // `cache`: the part of `used` that the kernel can drop
};
constexpr CgroupFiles kUnified{"memory.max", "memory.current", "inactive_file "};
constexpr CgroupFiles kLegacy{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// Applies the tightest limit from the cgroup `group` up to the root.
void narrow(HostRoom &room, const std::string &top, std::string group, const CgroupFiles &files) {
    for (;;) {
        const std::string folder = top + group + "/";
        const auto limit = bytes_in(folder + files.limit), used = bytes_in(folder + files.used);
        if (limit && used) {
            const Bytes cache = number_in(file_text(folder + "memory.stat").value_or(""), files.cache);
            const Bytes firm = *used - std::min(*used, cache);
            const Bytes available = *limit - std::min(*limit, firm);
            if (available < room.available) room = {available, "the cgroup " + group, *limit};
        }
        if (group == "/") return;
        group.resize(std::max<std::size_t>(group.rfind('/'), 1));
    }
}

}  // namespace

std::optional<HostRoom> host_room(int pid, const std::string &proc, const std::string &cgroups) {
    const auto meminfo = file_text(proc + "/meminfo");
    if (!meminfo) return std::nullopt;
    HostRoom room{number_in(*meminfo, "MemAvailable:") * policy::KiB, "this machine",
                  number_in(*meminfo, "MemTotal:") * policy::KiB};
    const std::string lines = file_text(proc + "/" + std::to_string(pid) + "/cgroup").value_or("");
    for (std::string_view rest = lines; !rest.empty();) {  // "0::/job/7", "5:memory:/job/7"
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string_view::npos || second == std::string_view::npos || line.substr(second + 1, 1) != "/")
            continue;
        const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
        const std::string group(line.substr(second + 1));
        if (controllers == ",,")
            narrow(room, cgroups, group, kUnified);
        else if (controllers.find(",memory,") != std::string::npos)
            narrow(room, cgroups + "/memory", group, kLegacy);
    }
    return room;
}

}  // namespace curb::control
