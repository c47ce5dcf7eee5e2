#include <charconv>
#include <utility>

#include "policy/values/words.hpp"
#include "trace/recording.hpp"

namespace curb::cli {
namespace {

constexpr std::string_view kInstant = R"({"ph":"i","s":"t","name":")";
constexpr std::string_view kLasting = R"({"ph":"X","name":")";

// Parses one line from left to right. Each function returns false if the line does not continue as expected.
class Cursor {
  public:
    explicit Cursor(std::string_view rest) noexcept : rest_(rest) {}

    bool skip(std::string_view text) noexcept {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    // Reads up to the next quotation mark. False for escapes and for bytes that are not printable ASCII.
    bool quoted(std::string_view &out) noexcept {
        const std::size_t end = rest_.find('"');
        if (end == std::string_view::npos) return false;
        out = rest_.substr(0, end);
        for (const char c : out)
            if (c == '\\' || static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F)
                return false;
        rest_.remove_prefix(end + 1);
        return true;
    }
    template <class Number>
    bool number(Number &out, int base = 10) noexcept {
        // from_chars accepts leading zeros, JSON does not. Leaves -0 to trace::parse.
        const std::size_t sign = rest_.starts_with('-') ? 1 : 0;
        if (base == 10 && rest_.size() > sign + 1 && rest_[sign] == '0' && policy::is_digit(rest_[sign + 1]))
            return false;
        if (sign != 0 && rest_.size() > 1 && rest_[1] == '0') return false;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out, base);
        if (error != std::errc()) return false;
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
        return true;
    }
    // Reads microseconds with three decimals as ns.
    bool time(std::uint64_t &ns) noexcept {
        constexpr std::uint64_t kMost = 1'000'000'000'000;  // eleven days in us; doubles, in which parse() counts, are
                                                            // exact to the nanosecond so far
        std::uint64_t us = 0;
        if (!number(us) || us >= kMost || rest_.size() < 4 || rest_[0] != '.') return false;
        std::uint64_t rest = 0;
        for (std::size_t i = 1; i < 4; ++i) {
            if (!policy::is_digit(rest_[i])) return false;
            rest = rest * 10 + static_cast<std::uint64_t>(rest_[i] - '0');
        }
        rest_.remove_prefix(4);
        ns = us * 1000 + rest;
        return true;
    }
    [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }

  private:
    std::string_view rest_;
};

// Reads one member of "args" behind its name. `seen`: a bit for each name. False for a name that comes twice.
bool member(Cursor &line, std::string_view name, control::trace::Event &out, unsigned &seen, std::string_view &text) {
    std::string_view word;
    const auto once = [&](unsigned bit) { return (std::exchange(seen, seen | 1U << bit) & (1U << bit)) == 0; };
    if (name == "gpu") return once(0) && line.number(out.gpu);
    if (name == "pointer") return once(1) && line.skip("\"0x") && line.number(out.pointer, 16) && line.skip("\"");
    if (name == "bytes") return once(2) && line.number(out.bytes);
    if (name == "charge") return once(3) && line.number(out.charge);
    if (name == "of_kind") return once(4) && line.number(out.of_kind);
    if (name == "held") return once(5) && line.number(out.held);
    if (name == "limit") return once(6) && line.number(out.limit);
    if (name == "reused") {
        out.reused = true;
        return once(7) && line.skip("true");
    }
    if (!line.skip("\"") || !line.quoted(word)) return false;
    if (name == "kind") {
        const auto kind = policy::parse_kind(word);
        out.kind = kind.value_or(out.kind);
        return once(8) && kind;
    }
    if (name == "why") {
        const auto why = policy::parse_limit(word);
        out.why = why.value_or(out.why);
        return once(9) && why;
    }
    if (name == "step") {
        std::size_t step = 0;
        while (step < policy::kSteps && word != policy::step_name(static_cast<policy::Step>(step))) ++step;
        out.step = static_cast<policy::Step>(step);
        return once(10) && step < policy::kSteps;
    }
    text = word;
    return name == "text" && once(11);
}

}  // namespace

bool scan(std::string_view line, control::trace::Event &event, std::string_view &text) {
    Cursor at(line);
    event = {};
    text = {};
    const bool lasting = at.skip(kLasting);
    std::string_view name;
    if (!lasting && !at.skip(kInstant)) return false;
    const auto what = at.quoted(name) ? control::trace::parse_what(name) : std::nullopt;
    if (!what || lasting != (*what == What::step)) return false;
    event.what = *what;
    int pid = 0;
    if (!at.skip(",\"ts\":") || !at.time(event.ns)) return false;
    if (at.skip(",\"dur\":") && !at.time(event.duration_ns)) return false;
    if (!at.skip(",\"pid\":") || !at.number(pid) || !at.skip(",\"tid\":") || !at.number(event.thread)) return false;
    if (!at.skip(",\"args\":{")) return false;
    unsigned seen = 0;
    while (!at.skip("}}")) {
        if (seen != 0 && !at.skip(",")) return false;
        if (!at.skip("\"") || !at.quoted(name) || !at.skip(":") || !member(at, name, event, seen, text)) return false;
    }
    at.skip(",");
    if (lasting) event.ns += event.duration_ns;
    return at.at_end();
}

}  // namespace curb::cli
