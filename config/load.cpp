#include "config/load.hpp"

#include <utility>

#include "ceiling.hpp"
#include "parse/diagnostic.hpp"
#include "policy/handed_in.hpp"
#include "policy/names.hpp"

namespace curb::config {
namespace {

void append(Diagnostics &all, const Diagnostics &more) { all.insert(all.end(), more.begin(), more.end()); }

// Parses into `document`, or adds the errors to `wrong`.
void take(std::string_view text, const std::string &file, Document &document, Diagnostics &wrong) {
    if (auto parsed = parse(text, file)) {
        document = std::move(parsed).value();
    } else {
        append(wrong, parsed.error());
    }
}

// Reads the user's file, or takes `text` for it.
void read_own(const Source &source, std::optional<std::string_view> text, Document &into, Diagnostics &wrong) {
    if (source.file.empty()) return;
    if (text && !source.own) return take(*text, source.file, into, wrong);
    if (const auto read = read_file(source.file, source.own))
        take(*read, source.file, into, wrong);
    else
        wrong.push_back(read.error());
}

// Reads the ceiling. If its file is gone, takes `last` for it.
void take_ceiling(const std::string &file, std::string_view last, Reading &into, Diagnostics &wrong) {
    const auto read = read_ceiling(file);
    if (!read) return wrong.push_back(read.error());
    if (!*read && last.empty()) return;
    into.is_ceiling_gone = !*read;
    into.ceiling_text = *read ? **read : std::string(last);
    take(into.ceiling_text, file, into.ceiling.emplace(), wrong);
}

Reading read_all(const Source &source, std::optional<std::string_view> text, std::string_view last_ceiling,
                 Diagnostics &wrong) {
    Reading out;
    read_own(source, text, out.own, wrong);
    const auto take_caps = [&](const std::string &list, const char *name, std::vector<policy::CapFor> &caps) {
        if (list.empty()) return;
        if (auto parsed = policy::parse_caps(list))
            caps = std::move(parsed).value();
        else
            wrong.push_back({name, 0, 0, {}, parsed.error()});
    };
    take_caps(source.cap, "CURB_CAP", out.narrowed_to.cap);
    take_caps(source.job_cap, "CURB_JOB_CAP", out.narrowed_to.job);
    for (const auto &[flag, said] : source.flags)
        if (const auto fault = policy::read_flag(flag, said, out.flags))
            wrong.push_back({policy::flags()[static_cast<std::size_t>(flag)].variable, 0, 0, {}, *fault});
    if (!source.signal.empty()) {
        if (auto signal = policy::parse_signal(source.signal))
            out.signal = *signal;
        else
            wrong.push_back({"CURB_SIGNAL", 0, 0, {}, signal.error()});
    }
    for (const auto &[name, said] : source.handed_in)
        if (auto fault = policy::read_handed_in(name, said, out.narrowed_to.handed_in))
            out.ignored.push_back(std::move(*fault));
    if (!source.ceiling.empty()) take_ceiling(source.ceiling, last_ceiling, out, wrong);
    return out;
}

// The name of the source in messages.
std::string_view name_of(const Source &source) { return source.file.empty() ? source.ceiling : source.file; }

}  // namespace

policy::Result<Reading, Diagnostics> read(const Source &source, std::optional<std::string_view> text,
                                          std::string_view last_ceiling) {
    try {
        Diagnostics wrong;
        Reading out = read_all(source, text, last_ceiling, wrong);
        if (!wrong.empty()) return wrong;
        return out;
    } catch (...) {
        return out_of_memory(name_of(source));
    }
}

Outcome outcome(const Reading &reading, const WhoIs &who) {
    Outcome out;
    const policy::File none;
    const policy::File &own = reading.own.file, &ceiling = reading.ceiling ? reading.ceiling->file : none;
    policy::Subject subject;
    if (!own.rules.empty() || !ceiling.rules.empty())
        subject = who(policy::asks_for_user(own) || policy::asks_for_user(ceiling));
    out.rule = policy::first_match(own, subject);
    out.ceiling_rule = policy::first_match(ceiling, subject);
    policy::Layer layer = policy::with_rule(own, out.rule);
    policy::lay_over(layer, reading.flags);
    const policy::Layer bound = policy::with_rule(ceiling, out.ceiling_rule);
    if (reading.signal && !layer.release.signal && !bound.release.signal) layer.release.signal = reading.signal;
    out.policy = policy::in_force(layer, bound, reading.narrowed_to);
    return out;
}

policy::Result<Loaded, Diagnostics> load(const Source &source, const WhoIs &who, std::optional<std::string_view> text,
                                         std::string_view last_ceiling) {
    try {
        const auto reading = read(source, text, last_ceiling);
        if (!reading) return reading.error();
        Outcome came = outcome(*reading, who);
        Loaded out;
        out.policy = std::move(came.policy);
        if (came.rule) out.rule = policy::rule_name(reading->own.file, *came.rule);
        out.ignored = reading->ignored;
        out.ceiling = reading->ceiling && reading->ceiling->file != policy::File();
        out.ceiling_text = reading->ceiling_text;
        out.is_ceiling_gone = reading->is_ceiling_gone;
        return out;
    } catch (...) {
        return out_of_memory(name_of(source));
    }
}

}  // namespace curb::config
