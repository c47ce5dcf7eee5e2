#include "control/trace.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "members.hpp"
#include "trace_lines.hpp"

namespace curb::control {

namespace trace {
namespace {

constexpr std::string_view kNames[] = {
#define CURB_TRACE_EVENT(name, text) #name,
#include "control/trace_events.def"
};

template <class Number>
void append_number(std::string &out, Number value, int base = 10) {
    std::array<char, 24> digits;
    out.append(digits.begin(), std::to_chars(digits.begin(), digits.end(), value, base).ptr);
}

// Appends microseconds with three decimals, the unit of the viewers. Exact to the nanosecond.
void append_us(std::string &out, std::uint64_t ns) {
    append_number(out, ns / 1000);
    const unsigned rest = static_cast<unsigned>(ns % 1000);
    const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                             static_cast<char>('0' + rest % 10)};
    out.append(decimals, sizeof decimals);
}

class Arguments {
  public:
    explicit Arguments(std::string &out) : out_(out) { out_ += ",\"args\":{"; }
    // Not in a destructor: it may throw std::bad_alloc.
    void end() { out_ += "}},\n"; }

    template <class Number>
    void number(const char *name, Number value) {
        begin(name);
        append_number(out_, value);
    }
    template <class Number>
    void number_if(const char *name, Number value) {
        if (value != 0) number(name, value);
    }
    void name(const char *name, const char *value) {  // one of ours, which needs no quoting
        begin(name);
        out_ += '"';
        out_ += value;
        out_ += '"';
    }
    void text(const char *name, const std::string &value) {
        begin(name);
        out_ += policy::json_text(policy::valid_utf8(value));
    }
    void yes(const char *name) {
        begin(name);
        out_ += "true";
    }
    void pointer(std::uint64_t value) {
        begin("pointer");
        out_ += "\"0x";
        append_number(out_, value, 16);
        out_ += '"';
    }

  private:
    void begin(const char *name) {
        if (!first_) out_ += ',';
        first_ = false;
        out_ += '"';
        out_ += name;
        out_ += "\":";
    }
    std::string &out_;
    bool first_ = true;
};

bool has_kind(What what) {
    return what == What::alloc || what == What::free || what == What::books || what == What::refuse ||
           what == What::wait || what == What::granted;
}
bool has_why(What what) { return what == What::refuse || what == What::wait; }

}  // namespace

const char *name_of(What what) noexcept { return kNames[static_cast<std::size_t>(what)].data(); }

std::optional<What> parse_what(std::string_view name) noexcept {
    const auto *found = std::find(std::begin(kNames), std::end(kNames), name);
    return found == std::end(kNames) ? std::nullopt : std::optional(static_cast<What>(found - kNames));
}

std::string text(const Header &header) {
    Writing arguments;
    const HeaderArguments values{kVersion, header};
    describe(arguments, values);
    const std::string pid = std::to_string(header.pid);
    return "[\n{\"ph\":\"M\",\"name\":\"curb\",\"ts\":0,\"pid\":" + pid + ",\"tid\":" + pid +
           ",\"args\":" + std::move(arguments).text() + "},\n";
}

void append(std::string &out, const Event &event, int pid) {
    const bool lasted = event.what == What::step;
    // A step that was under way when the trace began starts with it.
    const std::uint64_t duration_ns = lasted ? std::min(event.duration_ns, event.ns) : event.duration_ns;
    out += lasted ? kLasting : kInstant;
    out += name_of(event.what);
    out += "\",\"ts\":";
    append_us(out, lasted ? event.ns - duration_ns : event.ns);
    if (duration_ns != 0) {
        out += ",\"dur\":";
        append_us(out, duration_ns);
    }
    out += ",\"pid\":";
    append_number(out, pid);
    out += ",\"tid\":";
    append_number(out, event.thread);
    Arguments arguments(out);
    arguments.number("gpu", event.gpu);
    if (has_kind(event.what)) arguments.name("kind", policy::kind_name(event.kind));
    if (event.pointer != 0) arguments.pointer(event.pointer);
    arguments.number_if("bytes", event.bytes);
    arguments.number_if("charge", event.charge);
    arguments.number_if("of_kind", event.of_kind);
    arguments.number_if("held", event.held);
    arguments.number_if("limit", event.limit);
    if (has_why(event.what)) arguments.name("why", policy::limit_name(event.why));
    if (lasted) arguments.name("step", policy::step_name(event.step));
    if (event.reused) arguments.yes("reused");
    if (!event.text.empty()) arguments.text("text", event.text);
    arguments.end();
}

void append_counters(std::string &out, std::uint64_t ns, int gpu, const policy::ByKind &kinds, int pid) {
    out += R"({"ph":"C","name":"cuda:)";
    append_number(out, gpu);
    out += "\",\"ts\":";
    append_us(out, ns);
    out += ",\"pid\":";
    append_number(out, pid);
    Arguments arguments(out);
    for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
        arguments.number(policy::kind_name(static_cast<policy::Kind>(kind)), kinds[kind]);
    arguments.end();
}

}  // namespace trace
}  // namespace curb::control
