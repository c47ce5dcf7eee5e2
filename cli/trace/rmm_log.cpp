#include "rmm_log.hpp"

#include <array>
#include <string>

#include "policy/words.hpp"

namespace curb::cli {
namespace {

using policy::parse_number;

constexpr int kMostColumns = 16;

struct Cells {
    std::array<std::string_view, kMostColumns> cell;
    int count = 0;
};

// No cell of such a log has a comma in it.
Cells cells_of(std::string_view line) noexcept {
    Cells out;
    for (;;) {
        const std::size_t end = std::min(line.find(','), line.size());
        if (out.count < kMostColumns)
            out.cell[static_cast<std::size_t>(out.count)] = policy::trimmed(line.substr(0, end), " \t\r\"");
        ++out.count;
        if (end == line.size()) return out;
        line.remove_prefix(end + 1);
    }
}

// "841961" -> 841961000, "8" -> 800000000
std::optional<std::uint64_t> parse_decimals(std::string_view text) noexcept {
    auto ns = text.size() <= 9 ? parse_number<std::uint64_t>(text) : std::nullopt;
    for (std::size_t i = text.size(); ns && i < 9; ++i) *ns *= 10;
    return ns;
}

// "15:47:02.841961", of the first versions "15:47:02:841961"; "1634567890.123456"
std::optional<std::uint64_t> parse_time(std::string_view text) noexcept {
    const std::size_t point = text.find_last_of(".:");
    const auto decimals = point == std::string_view::npos ? std::nullopt : parse_decimals(text.substr(point + 1));
    if (!decimals) return std::nullopt;
    text = text.substr(0, point);
    std::optional<std::uint64_t> seconds;
    if (text.size() == 8 && text[2] == ':' && text[5] == ':') {
        const auto hour = parse_number<unsigned>(text.substr(0, 2)), minute = parse_number<unsigned>(text.substr(3, 2)),
                   second = parse_number<unsigned>(text.substr(6, 2));
        if (hour && minute && second && *hour <= 23 && *minute <= 59 && *second <= 60)
            seconds = (*hour * 60U + *minute) * 60U + *second;
    } else {
        seconds = parse_number<std::uint64_t>(text);
    }
    if (!seconds || *seconds > ~std::uint64_t{0} / kSecond / 2) return std::nullopt;
    return *seconds * kSecond + *decimals;
}

// "0x7f8a40000000", "7f8a40000000", "(nil)"
std::optional<std::uint64_t> parse_pointer(std::string_view text) noexcept {
    if (text == "(nil)") return 0;
    if (text.starts_with("0x")) text.remove_prefix(2);
    return parse_number<std::uint64_t>(text, 16);
}

}  // namespace

std::optional<RmmColumns> RmmColumns::of(std::string_view header) {
    const Cells cells = cells_of(header);
    RmmColumns out;
    out.count_ = cells.count;
    for (int i = 0; i < std::min(cells.count, kMostColumns); ++i) {
        const std::string_view cell = cells.cell[static_cast<std::size_t>(i)];
        if (cell == "Thread") out.thread_ = i;
        if (cell == "Time") out.time_ = i;
        if (cell == "Action") out.action_ = i;
        if (cell == "Pointer") out.pointer_ = i;
        if (cell == "Size") out.size_ = i;
    }
    if (out.time_ < 0 || out.action_ < 0 || out.pointer_ < 0 || out.size_ < 0) return std::nullopt;
    return out;
}

policy::Result<RmmRow, std::string> RmmColumns::row(std::string_view line) const {
    const Cells cells = cells_of(line);
    if (cells.count < count_)
        return std::to_string(cells.count) + " columns, where the header has " + std::to_string(count_);
    const auto cell = [&](int column) { return cells.cell[static_cast<std::size_t>(column)]; };
    const auto wrong = [&](const char *what, int column) {
        return policy::quote(policy::brief(cell(column))) + " is no " + what;
    };
    RmmRow out;
    const std::string_view action = cell(action_);
    if (action == "allocate")
        out.action = RmmRow::Action::allocate;
    else if (action == "free")
        out.action = RmmRow::Action::free;
    else if (action == "allocate failure")
        out.action = RmmRow::Action::failure;
    else
        return wrong("action that is known", action_);
    const auto time = parse_time(cell(time_)), pointer = parse_pointer(cell(pointer_));
    const auto bytes = parse_number<policy::Bytes>(cell(size_));
    // Of some systems a pointer: it only has to tell threads apart.
    const auto thread = thread_ < 0 ? std::optional(std::uint64_t{0}) : parse_number<std::uint64_t>(cell(thread_));
    if (!time) return wrong("time", time_);
    if (!pointer) return wrong("pointer", pointer_);
    if (!bytes || *bytes > policy::Bytes{1} << 60) return wrong("size", size_);
    if (!thread) return wrong("thread", thread_);
    out.ns = *time;
    out.pointer = *pointer;
    out.bytes = *bytes;
    out.thread = static_cast<int>(*thread & 0x7FFF'FFFF);
    return out;
}

}  // namespace curb::cli
