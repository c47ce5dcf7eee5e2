// Reads the lines of a trace. A run may have fifty million.
#include <algorithm>
#include <charconv>

#include "json.hpp"
#include "trace_lines.hpp"

namespace curb::control::trace {
namespace {

// Reads an event's line from left to right: the members before "args" in the order in which append() writes them, those
// in "args" in any order. Each function returns false if the line does not continue as expected.
class Cursor {
  public:
    explicit Cursor(std::string_view rest) noexcept : rest_(rest) {}

    bool skip(std::string_view text) noexcept {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    // Reads a string without escapes, behind its first quotation mark.
    bool word(std::string_view &out) noexcept {
        const std::size_t end = rest_.find('"');
        out = rest_.substr(0, end);
        if (end == std::string_view::npos || out.find('\\') != std::string_view::npos) return false;
        rest_.remove_prefix(end + 1);
        return true;
    }
    // Reads any string, behind its first quotation mark.
    bool text(std::string &out) {
        std::size_t end = 0;
        bool is_plain = true;
        for (; end < rest_.size() && rest_[end] != '"'; ++end) {
            is_plain = is_plain && rest_[end] >= 0x20 && rest_[end] < 0x7F && rest_[end] != '\\';
            if (rest_[end] == '\\') ++end;
        }
        if (end >= rest_.size()) return false;
        out = rest_.substr(0, end);
        rest_.remove_prefix(end + 1);
        if (is_plain) return true;
        const auto json = parse_json('"' + out + '"');
        const auto *value = json ? json->get<std::string>() : nullptr;
        if (value) out = *value;
        return value != nullptr;
    }
    template <class Number>
    bool number(Number &out, int base = 10) noexcept {
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out, base);
        if (error != std::errc()) return false;
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
        return true;
    }
    // Reads microseconds with three decimals as ns.
    bool time(std::uint64_t &ns) noexcept {
        constexpr std::uint64_t kMost = 1'000'000'000'000'000;  // thirty years, in us
        std::uint64_t us = 0;
        if (!number(us) || us >= kMost || rest_.size() < 4 || rest_[0] != '.') return false;
        ns = us;
        for (std::size_t i = 1; i < 4; ++i) {
            if (!policy::is_digit(rest_[i])) return false;
            ns = ns * 10 + static_cast<std::uint64_t>(rest_[i] - '0');
        }
        rest_.remove_prefix(4);
        return true;
    }
    // Skips a string, a number or a literal.
    bool value() {
        std::string ignored;
        if (skip("\"")) return text(ignored);
        const std::size_t end = rest_.find_first_of(",}");
        if (end == 0 || end == std::string_view::npos || rest_.substr(0, end).find_first_of("[{") < end) return false;
        rest_.remove_prefix(end);
        return true;
    }
    [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }
    [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

  private:
    std::string_view rest_;
};

template <class Value, class Parse>
bool named(Cursor &line, Value &out, Parse parse) {
    std::string_view word;
    if (!line.skip("\"") || !line.word(word)) return false;
    const auto parsed = parse(word);
    if (parsed) out = *parsed;
    return static_cast<bool>(parsed);
}

// One member of "args", behind its name. A later version may write others.
struct Argument {
    std::string_view name;
    bool (*read)(Cursor &line, Event &out);
};
constexpr Argument kArguments[] = {
    {"gpu", [](Cursor &line, Event &out) { return line.number(out.gpu); }},
    {"kind", [](Cursor &line, Event &out) { return named(line, out.kind, policy::parse_kind); }},
    {"pointer",
     [](Cursor &line, Event &out) { return line.skip("\"0x") && line.number(out.pointer, 16) && line.skip("\""); }},
    {"bytes", [](Cursor &line, Event &out) { return line.number(out.bytes); }},
    {"charge", [](Cursor &line, Event &out) { return line.number(out.charge); }},
    {"of_kind", [](Cursor &line, Event &out) { return line.number(out.of_kind); }},
    {"held", [](Cursor &line, Event &out) { return line.number(out.held); }},
    {"limit", [](Cursor &line, Event &out) { return line.number(out.limit); }},
    {"why", [](Cursor &line, Event &out) { return named(line, out.why, policy::parse_limit); }},
    {"step", [](Cursor &line, Event &out) { return named(line, out.step, policy::parse_step); }},
    {"reused",
     [](Cursor &line, Event &out) {
         out.reused = true;
         return line.skip("true");
     }},
    {"text", [](Cursor &line, Event &out) { return line.skip("\"") && line.text(out.text); }},
};

bool read_arguments(Cursor &line, Event &out) {
    std::string_view name;
    for (bool first = true; !line.skip("}}"); first = false) {
        if (!first && !line.skip(",")) return false;
        if (!line.skip("\"") || !line.word(name) || !line.skip(":")) return false;
        const auto *known =
            std::find_if(std::begin(kArguments), std::end(kArguments), [&](auto &one) { return one.name == name; });
        if (known == std::end(kArguments) ? !line.value() : !known->read(line, out)) return false;
    }
    return true;
}

// Reads what follows an event's name.
bool read_event(Cursor &line, Event &out) {
    int pid = 0;
    if (!line.skip(",\"ts\":") || !line.time(out.ns)) return false;
    if (line.skip(",\"dur\":") && !line.time(out.duration_ns)) return false;
    if (!line.skip(",\"pid\":") || !line.number(pid) || !line.skip(",\"tid\":") || !line.number(out.thread))
        return false;
    if (!line.skip(",\"args\":{") || !read_arguments(line, out)) return false;
    if (out.what == What::step) out.ns += out.duration_ns;
    return line.at_end();
}

// Reads a line that is no event of curb's: the header, or one for viewers or later versions.
policy::Result<Line, std::string> read_other(std::string_view line) {
    Line out;
    const auto json = parse_json(line);
    if (!json) return json.error();
    std::string fault, name;
    Reading members(*json, fault);
    members("name", name);
    if (fault.empty() && parse_what(name)) fault = "its members are not in the order in which curb writes them";
    if (!fault.empty()) return fault;
    if (name != "curb") return out;
    HeaderArguments arguments;
    members("pid", arguments.header.pid);
    members("args", arguments);
    if (fault.empty() && arguments.trace != kVersion)
        fault = "the trace is of version " + std::to_string(arguments.trace) + ", and this curb reads version " +
                std::to_string(kVersion);
    if (!fault.empty()) return fault;
    out.header = std::move(arguments.header);
    return out;
}

}  // namespace

policy::Result<Line, std::string> parse(std::string_view line) {
    while (!line.empty() && (line.back() == '\n' || line.back() == ',')) line.remove_suffix(1);
    Line out;
    if (line.empty() || line == "[" || line == "]") return out;
    Cursor at(line);
    if (!at.skip(kLasting) && !at.skip(kInstant)) return read_other(line);
    std::string_view name;
    const auto what = at.word(name) ? parse_what(name) : std::nullopt;
    if (!what) return read_other(line);
    out.event.emplace().what = *what;
    if (!read_event(at, *out.event))
        return "curb does not write it so, from byte " + std::to_string(line.size() - at.left() + 1) + " on";
    return out;
}

}  // namespace curb::control::trace
