#include "process_stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "control/descriptor.hpp"

namespace curb::control {
namespace {

template <class Number>
bool read_number(std::string_view field, Number &out) noexcept {
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), out);
    return error == std::errc() && stop == field.data() + field.size();
}

}  // namespace

std::optional<ProcessStat> stat_of(int pid) noexcept {
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
    const Descriptor file(::open(path.data(), O_RDONLY | O_CLOEXEC));
    std::array<char, 1024> block{};
    const ssize_t got = file ? ::read(file.number(), block.data(), block.size()) : -1;
    if (got <= 0) return std::nullopt;
    // proc(5): the name of the program, the second field, may hold blanks and brackets.
    std::string_view text(block.data(), static_cast<std::size_t>(got));
    const std::size_t bracket = text.rfind(')');
    if (bracket == std::string_view::npos) return std::nullopt;
    text.remove_prefix(bracket + 1);
    ProcessStat out;
    for (int field = 3; field <= 22; ++field) {
        if (!text.starts_with(' ')) return std::nullopt;
        text.remove_prefix(1);
        const std::string_view value = text.substr(0, text.find(' '));
        if (field == 3 && !value.empty()) out.state = value.front();
        if (field == 20 && !read_number(value, out.threads)) return std::nullopt;
        if (field == 22 && !read_number(value, out.start)) return std::nullopt;
        text.remove_prefix(value.size());
    }
    return out;
}

}  // namespace curb::control
