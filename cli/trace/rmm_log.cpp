#include "rmm_log.hpp"

#include <array>
#include <charconv>
#include <string>

#include "policy/words.hpp"

namespace curb::cli {
namespace {

constexpr int kMostColumns = 16;

std::string_view trimmed(std::string_view cell) noexcept {
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
    while (!cell.empty() && blank(cell.front())) cell.remove_prefix(1);
    while (!cell.empty() && blank(cell.back())) cell.remove_suffix(1);
    return cell;
}

struct Cells {
    std::array<std::string_view, kMostColumns> cell;
    int count = 0;
};

// No cell of such a log has a comma in it.
Cells cells_of(std::string_view line) noexcept {
    Cells out;
    for (;;) {
        const std::size_t end = std::min(line.find(','), line.size());
        if (out.count < kMostColumns) out.cell[static_cast<std::size_t>(out.count)] = trimmed(line.substr(0, end));
        ++out.count;
        if (end == line.size()) return out;
        line.remove_prefix(end + 1);
    }
}

template <class Number>
bool read(std::string_view text, Number &out, int base = 10) noexcept {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// "841961" -> 841961000, "8" -> 800000000
bool read_decimals(std::string_view text, std::uint64_t &ns) noexcept {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos) return false;
    ns = 0;
    for (std::size_t i = 0; i < 9; ++i)
        ns = ns * 10 + (i < text.size() ? static_cast<std::uint64_t>(text[i] - '0') : 0);
    return true;
}

// "15:47:02.841961", of the first versions "15:47:02:841961"; "1634567890.123456"
bool read_time(std::string_view text, std::uint64_t &ns) noexcept {
    constexpr std::uint64_t kSecond = 1'000'000'000;
    const std::size_t point = text.find_last_of(".:");
    std::uint64_t decimals = 0, seconds = 0;
    if (point == std::string_view::npos || !read_decimals(text.substr(point + 1), decimals)) return false;
    text = text.substr(0, point);
    if (text.size() == 8 && text[2] == ':' && text[5] == ':') {
        unsigned hour = 0, minute = 0, second = 0;
        if (!read(text.substr(0, 2), hour) || !read(text.substr(3, 2), minute) || !read(text.substr(6, 2), second) ||
            hour > 23 || minute > 59 || second > 60)
            return false;
        seconds = (hour * 60U + minute) * 60U + second;
    } else if (!read(text, seconds) || seconds > ~std::uint64_t{0} / kSecond / 2) {
        return false;
    }
    ns = seconds * kSecond + decimals;
    return true;
}

// "0x7f8a40000000", "7f8a40000000", "(nil)"
bool read_pointer(std::string_view text, std::uint64_t &out) noexcept {
    if (text == "(nil)") {
        out = 0;
        return true;
    }
    if (text.starts_with("0x")) text.remove_prefix(2);
    return read(text, out, 16);
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
    if (!read_time(cell(time_), out.ns)) return wrong("time", time_);
    if (!read_pointer(cell(pointer_), out.pointer)) return wrong("pointer", pointer_);
    if (!read(cell(size_), out.bytes) || out.bytes > policy::Bytes{1} << 60) return wrong("size", size_);
    std::uint64_t thread = 0;  // of some systems a pointer: it only has to tell threads apart
    if (thread_ >= 0 && !read(cell(thread_), thread)) return wrong("thread", thread_);
    out.thread = static_cast<int>(thread & 0x7FFF'FFFF);
    return out;
}

}  // namespace curb::cli
