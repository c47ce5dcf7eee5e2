#include "policy/flags.hpp"

#include <algorithm>
#include <array>

#include "policy/names.hpp"
#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

constexpr auto kRows = std::to_array<FlagRow>({
#define CURB_FLAG(name, part, variable, option, shape, doc) {Flag::name, FlagPart::part, variable, option, shape, doc},
#include "policy/flags.def"
});

using Fault = std::optional<std::string>;

// Reads `text` with `parse` into `member`.
template <class Member, class Parse>
Fault take(std::string_view text, std::optional<Member> &member, Parse parse) {
    auto value = parse(text);
    if (!value) return value.error();
    member = std::move(value).value();
    return std::nullopt;
}

Fault path(std::string_view text, std::optional<std::string> &member) {
    if (text.empty()) return "the path is empty; name a file";
    member = std::string(text);
    return std::nullopt;
}

Fault read_growth(std::string_view text, Flags &into) {
    constexpr const char *kForm = "write START:STEP:EVERY, as in \"2GiB:1GiB:10s\"";
    const std::size_t first = text.find(':'), second = text.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos ||
        text.find(':', second + 1) != std::string_view::npos)
        return quote(text) + " is not a growth; " + kForm;
    GrowthPolicy growth;
    if (auto fault = take(text.substr(0, first), growth.start, parse_size)) return "START: " + *fault;
    if (auto fault = take(text.substr(first + 1, second - first - 1), growth.step, parse_size))
        return "STEP: " + *fault;
    if (auto fault = take(text.substr(second + 1), growth.every, parse_duration)) return "EVERY: " + *fault;
    if (growth.start->amount == 0 || growth.step->amount == 0)
        return quote(text) + " would never grow: START and STEP are more than nothing; " + kForm;
    GrowthPolicy &out = into.gpu.growth;
    out.start = growth.start;
    out.step = growth.step;
    out.every = growth.every;
    return std::nullopt;
}

Fault read_wait(std::string_view text, Flags &into) { return take(text, into.gpu.growth.wait, parse_duration); }
Fault read_keep_free(std::string_view text, Flags &into) { return take(text, into.gpu.growth.keep_free, parse_size); }

Fault read_steer(std::string_view text, Flags &into) {
    if (text != "1" && text != "0" && text != "true" && text != "false")
        return quote(text) + " is neither 1 nor 0; 1 steers, 0 does not";
    into.job.frameworks.steer = text == "1" || text == "true";
    return std::nullopt;
}

Fault take_some_time(std::string_view text, std::optional<Duration> &into) {
    std::optional<Duration> time;
    if (auto fault = take(text, time, parse_duration)) return fault;
    if (time->count() == 0) return quote(text) + " is too short; a millisecond at least";
    into = time;
    return std::nullopt;
}

Fault read_nap(std::string_view text, Flags &into) { return take_some_time(text, into.job.suspend.idle); }
Fault read_turn(std::string_view text, Flags &into) { return take_some_time(text, into.job.suspend.turn); }

Fault read_trace(std::string_view text, Flags &into) { return path(text, into.job.trace.file); }

Fault read_stacks(std::string_view text, Flags &into) {
    if (auto fault = take(text, into.job.trace.stacks, parse_size)) return fault;
    if (into.job.trace.stacks->amount == 0) return quote(text) + " is every allocation; 1B is the least";
    return std::nullopt;
}

Fault read_log(std::string_view text, Flags &into) {
    const std::size_t colon = text.find(':');
    if (auto fault = take(text.substr(0, colon), into.job.log.level, parse_log_level)) return fault;
    return colon == std::string_view::npos ? std::nullopt : path(text.substr(colon + 1), into.job.log.file);
}

constexpr Fault (*kReaders[])(std::string_view, Flags &) = {
#define CURB_FLAG(name, part, variable, option, shape, doc) read_##name,
#include "policy/flags.def"
};

}  // namespace

Result<std::vector<CapFor>, std::string> parse_caps(std::string_view text) {
    std::vector<CapFor> out;
    for (bool more = true; more;) {
        const std::size_t end = text.find(',');
        more = end != std::string_view::npos;
        std::string_view one = text.substr(0, end);
        text.remove_prefix(more ? end + 1 : text.size());
        GpuKey key;
        if (const std::size_t sign = one.find('='); sign != std::string_view::npos) {
            auto named = parse_gpu_key(one.substr(0, sign));
            if (!named) return named.error();
            key = std::move(named).value();
            one.remove_prefix(sign + 1);
        }
        const auto size = parse_size(one);
        if (!size) return size.error();
        const auto same = std::find_if(out.begin(), out.end(), [&](const CapFor &there) {
            return there.key == key && there.size.unit == size->unit;
        });
        if (same == out.end())
            out.push_back({*size, std::move(key)});
        else
            same->size.amount = std::min(same->size.amount, size->amount);
    }
    // A cap of one device that is not below the same of every device has no effect.
    const std::vector<CapFor> all = out;
    std::erase_if(out, [&](const CapFor &one) {
        return std::any_of(all.begin(), all.end(), [&](const CapFor &other) {
            return one.key.kind != GpuKey::Kind::every && other.key.kind == GpuKey::Kind::every &&
                   other.size.unit == one.size.unit && other.size.amount <= one.size.amount;
        });
    });
    return out;
}

std::string format(const std::vector<CapFor> &caps) {
    return joined(caps, ",", [](const CapFor &one) {
        return (one.key.kind == GpuKey::Kind::every ? "" : gpu_key_text(one.key) + "=") + format(one.size);
    });
}

std::optional<Bytes> lowest_on(const std::vector<CapFor> &caps, const GpuIdentity &gpu, Bytes device_total) {
    std::optional<Bytes> out;
    for (const CapFor &one : caps) {
        if (!names(one.key, gpu)) continue;
        const Bytes here = one.size.on(device_total);
        out = out ? std::min(*out, here) : here;
    }
    return out;
}

std::span<const FlagRow, kFlags> flags() noexcept { return kRows; }

std::optional<std::string> read_flag(Flag flag, std::string_view text, Flags &into) {
    return kReaders[static_cast<std::size_t>(flag)](text, into);
}

void lay_over(Layer &under, const Flags &over) {
    const auto is_every = [](const GpuRule &rule) { return rule.key.kind == GpuKey::Kind::every; };
    if (over.gpu != GpuPolicy() && std::none_of(under.gpu.begin(), under.gpu.end(), is_every))
        under.gpu.insert(under.gpu.begin(), GpuRule{});
    // Over each key, since a more specific key would win over "*".
    Layer every = over.job;
    for (const GpuRule &rule : under.gpu) every.gpu.push_back({rule.key, over.gpu});
    lay_over(under, every);
}

}  // namespace curb::policy
