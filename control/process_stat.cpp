#include "process_stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "control/descriptor.hpp"
#include "policy/values/words.hpp"

namespace curb::control {

std::optional<ProcessStat> stat_of(int pid) noexcept {
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
    const Descriptor file(above_standard(::open(path.data(), O_RDONLY | O_CLOEXEC)));
    std::array<char, 1024> block{};
    const ssize_t got = file ? ::read(file.number(), block.data(), block.size()) : -1;
    if (got <= 0) return std::nullopt;
    // proc(5): the name of the program, the second field, may hold blanks and brackets.
    std::string_view text(block.data(), static_cast<std::size_t>(got));
    const std::size_t bracket = text.rfind(')');
    if (bracket == std::string_view::npos) return std::nullopt;
    text.remove_prefix(bracket + 1);
    ProcessStat out;
    std::optional<long> threads;
    std::optional<unsigned long> flags;
    std::optional<std::uint64_t> start;
    for (int field = 3; field <= 31; ++field) {
        if (!text.starts_with(' ')) return std::nullopt;
        text.remove_prefix(1);
        const std::string_view value = text.substr(0, text.find(' '));
        if (field == 3 && !value.empty()) out.state = value.front();
        if (field == 9) flags = policy::parse_number<unsigned long>(value);
        if (field == 20) threads = policy::parse_number<long>(value);
        if (field == 22) start = policy::parse_number<std::uint64_t>(value);
        if (field == 31)
            out.killed = (policy::parse_number<unsigned long>(value).value_or(0) >> (SIGKILL - 1) & 1) != 0;
        text.remove_prefix(value.size());
    }
    if (!threads || !flags || !start) return std::nullopt;
    out.threads = *threads;
    out.flags = *flags;
    out.start = *start;
    return out;
}

}  // namespace curb::control
