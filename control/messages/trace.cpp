#include "control/trace.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "json.hpp"
#include "members.hpp"

namespace curb::control {

// The header's arguments, for Writing and Reading.
struct HeaderArguments {
    int trace = trace::kVersion;
    trace::Header header{};
};
template <class Io>
void describe(Io &io, Is<trace::Gpu> auto &value) {
    io("gpu", value.gpu);
    io("uuid", value.uuid);
    io.where_set("name", value.name);
    io("total", value.total);
}
template <class Io>
void describe(Io &io, Is<HeaderArguments> auto &value) {
    io("trace", value.trace);
    io("version", value.header.version);
    io("unix_ns", value.header.unix_ns);
    io("command", value.header.command);
    io("gpus", value.header.gpus);
}

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

// "0x7f…"
std::optional<std::uint64_t> parse_pointer(std::string_view text) {
    return text.starts_with("0x") ? policy::parse_number<std::uint64_t>(text.substr(2), 16) : std::nullopt;
}

// Returns the nanoseconds of a member in microseconds. A double holds them exactly for a hundred days.
std::uint64_t ns_of(const Json &event, const char *name) {
    const Json *value = event.member(name);
    if (!value) return 0;
    if (const auto *whole = value->get<std::uint64_t>())
        return *whole > std::numeric_limits<std::uint64_t>::max() / 1000 ? 0 : *whole * 1000;
    const auto *us = value->get<double>();
    if (!us || *us <= 0 || *us >= 1e15) return 0;
    const double ns = *us * 1000;
    const auto below = static_cast<std::uint64_t>(ns);
    return below + (ns - static_cast<double>(below) >= 0.5 ? 1 : 0);  // not by libm, which libcurb.so does not load
}

}  // namespace
}  // namespace trace

// The arguments of an event, for Reading. append() writes the same names.
template <class Io>
void describe(Io &io, Is<trace::Event> auto &value) {
    io.where_set("gpu", value.gpu);
    io.where_set("kind", value.kind);
    io.where_set("bytes", value.bytes);
    io.where_set("charge", value.charge);
    io.where_set("of_kind", value.of_kind);
    io.where_set("held", value.held);
    io.where_set("limit", value.limit);
    io.where_set("why", value.why);
    io.where_set("step", value.step);
    io.where_set("reused", value.reused);
    io.where_set("text", value.text);
}

namespace trace {

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
    out += lasted ? R"({"ph":"X","name":")" : R"({"ph":"i","s":"t","name":")";
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

policy::Result<Line, std::string> parse(std::string_view line) {
    while (!line.empty() && (line.back() == '\n' || line.back() == ',')) line.remove_suffix(1);
    Line out;
    if (line.empty() || line == "[" || line == "]") return out;
    const auto json = parse_json(line);
    if (!json) return json.error();
    std::string fault;
    Reading members(*json, fault);
    std::string name;
    members("name", name);
    if (!fault.empty()) return fault;
    if (name == "curb") {
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
    const auto what = parse_what(name);
    if (!what) return out;
    Event event;
    event.what = *what;
    members("tid", event.thread);
    members("args", event);
    if (const Json *arguments = json->member("args"); fault.empty() && arguments) {
        const Json *pointer = arguments->member("pointer");
        const auto *text = pointer ? pointer->get<std::string>() : nullptr;
        const auto parsed = text ? parse_pointer(*text) : std::nullopt;
        if (parsed) event.pointer = *parsed;
        if (pointer && !parsed) fault = "\"pointer\" is none";
    }
    if (!fault.empty()) return fault;
    event.duration_ns = ns_of(*json, "dur");
    event.ns = ns_of(*json, "ts") + (event.what == What::step ? event.duration_ns : 0);
    out.event = std::move(event);
    return out;
}

}  // namespace trace
}  // namespace curb::control
