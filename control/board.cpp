// Runs in capped processes too: each descriptor is checked before it is closed (descriptor.hpp).
#include "control/board.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "control/descriptor.hpp"
#include "control/proc.hpp"
#include "policy/values/words.hpp"

namespace curb::control::board {
namespace {

constexpr std::size_t kMostOfUser = 1024;
constexpr std::string_view kHidden = "-", kNone = "none", kHead = "curb", kVersion = "1", kTurns = "turns";
constexpr std::size_t kLongestUuid = 64;

// Splits off the next word of a line. Words are separated by one blank.
std::string_view next_word(std::string_view &line) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view out = line.substr(0, end);
    line.remove_prefix(end + (end + 1 < line.size() ? 1 : 0));  // a blank at the end stays, and is an error
    return out;
}

// Reads the words of a line one by one. `good` stays true as long as each is what was asked for.
struct Words {
    std::string_view line;
    bool good = true;

    template <class Number>
    Number number() {
        const auto out = policy::whole_number<Number>(next_word(line));
        good = good && out.has_value();
        return out.value_or(0);
    }
    void is(std::string_view word) { good = next_word(line) == word && good; }
    std::optional<policy::Bytes> bytes_or(std::string_view word) {
        if (line.substr(0, line.find(' ')) != word) return number<policy::Bytes>();
        next_word(line);
        return std::nullopt;
    }
};

std::optional<State> parse_state(std::string_view name) {
    for (const State state : {State::running, State::waiting, State::napping})
        if (name == state_name(state)) return state;
    return std::nullopt;
}

std::optional<Gpu> parse_gpu(std::string_view line) {
    Words words{line};
    Gpu out;
    out.uuid = next_word(words.line);
    const bool is_uuid = !out.uuid.empty() && out.uuid.size() <= kLongestUuid &&
                         std::all_of(out.uuid.begin(), out.uuid.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    out.held = words.bytes_or(kHidden);
    out.cap = words.bytes_or(out.held ? kNone : kHidden);
    out.wants = words.number<policy::Bytes>();
    out.since = words.number<UnixMs>();
    if (!words.line.empty()) {
        words.is(kTurns);
        out.turn = Gpu::Turn{};
        out.turn->leaves = words.number<policy::Bytes>();
        out.turn->ends = words.number<UnixMs>();
        out.lately = std::chrono::milliseconds(words.number<std::uint32_t>());
        words.good = words.good && out.turn->ends >= 0;
    }
    if (!is_uuid || !words.good || !words.line.empty() || out.since < 0 || (out.wants == 0) != (out.since == 0) ||
        (!out.held && out.cap))
        return std::nullopt;
    return out;
}

struct File {
    Entry entry;
    std::uint64_t age_ms = 0;
};
// Reads one file of a folder. nullopt if it is not an entry of the owner's, under its right name.
std::optional<File> read(const Descriptor &folder, const std::string &name, uid_t owner) {
    const auto found = text_link::read(folder, name, owner);
    auto entry = found ? parse(found->text) : std::nullopt;
    if (!entry || name_of(entry->process) != name) return std::nullopt;
    return File{*std::move(entry), found->age_ms};
}
text_link::Life life_of(const File &file, uid_t owner, std::uint64_t own) {
    return text_link::life_of(file.entry.process, file.entry.pid_namespace, owner, file.age_ms, own);
}

std::vector<std::string> entries_in(const Descriptor &folder) {
    std::size_t left = kMostOfUser;
    return names_in(folder, [&](const std::string &name) {
        const bool is_entry = left > 0 && !name.empty() && name.front() >= '1' && name.front() <= '9' &&
                              name.find('.') == std::string::npos;
        left -= is_entry ? 1 : 0;
        return is_entry;
    });
}

}  // namespace

const char *state_name(State state) noexcept {
    static constexpr const char *kNames[] = {"running", "waiting", "napping"};
    return kNames[static_cast<std::size_t>(state)];
}

std::string name_of(const ProcessName &process) {
    return std::to_string(process.pid) + "-" + std::to_string(process.start);
}

std::string text_of(const Entry &entry) {
    std::string out(kHead);
    const auto add = [&](const std::string &word) { out.append(" ").append(word); };
    add(std::string(kVersion));
    add(std::to_string(entry.process.pid));
    add(std::to_string(entry.process.start));
    add(std::to_string(entry.pid_namespace));
    add(state_name(entry.state));
    add(std::to_string(entry.since));
    add(std::to_string(entry.used));
    out += '\n';
    for (std::size_t i = 0; i < std::min(entry.gpus.size(), kMostGpus); ++i) {
        const Gpu &gpu = entry.gpus[i];
        const std::string_view no_cap = gpu.held ? kNone : kHidden;
        out += gpu.uuid.substr(0, kLongestUuid);
        add(gpu.held ? std::to_string(*gpu.held) : std::string(kHidden));
        add(gpu.cap ? std::to_string(*gpu.cap) : std::string(no_cap));
        add(std::to_string(gpu.wants));
        add(std::to_string(gpu.since));
        if (gpu.turn) {
            add(std::string(kTurns));
            add(std::to_string(gpu.turn->leaves));
            add(std::to_string(gpu.turn->ends));
            add(std::to_string(gpu.lately.count()));
        }
        out += '\n';
    }
    return out;
}

std::optional<Entry> parse(std::string_view text) {
    if (text.size() > text_link::kLongest || !text.ends_with('\n')) return std::nullopt;
    const auto next_line = [&] {
        const std::string_view out = text.substr(0, text.find('\n'));
        text.remove_prefix(out.size() + 1);
        return out;
    };
    Words words{next_line()};
    Entry out;
    words.is(kHead);
    words.is(kVersion);
    out.process.pid = words.number<int>();
    out.process.start = words.number<std::uint64_t>();
    out.pid_namespace = words.number<std::uint64_t>();
    const auto state = parse_state(next_word(words.line));
    out.since = words.number<UnixMs>();
    out.used = words.number<UnixMs>();
    if (!state || !words.good || !words.line.empty() || out.process.pid <= 0 || out.since < 0 || out.used < 0)
        return std::nullopt;
    out.state = *state;
    while (!text.empty()) {
        auto gpu = parse_gpu(next_line());
        if (!gpu || out.gpus.size() == kMostGpus) return std::nullopt;
        out.gpus.push_back(*std::move(gpu));
    }
    return out;
}

void remove_stale(const Descriptor &folder, bool (*goes_on)() noexcept) {
    const uid_t owner = ::geteuid();
    const std::uint64_t own = text_link::own_pid_namespace();
    text_link::remove_unfinished(folder);
    for (const std::string &name : entries_in(folder)) {
        if (!goes_on()) return;
        const auto file = read(folder, name, owner);
        if (file && life_of(*file, owner, own) == text_link::Life::dead) ::unlinkat(folder.number(), name.c_str(), 0);
    }
}

std::vector<Posted> read_all(const Places &places) {
    const std::uint64_t own = text_link::own_pid_namespace();
    std::vector<Posted> out;
    for (const Folder &folder : public_folders(places)) {
        const auto opened = open_folder(folder, false);
        if (!opened) continue;
        for (const std::string &name : entries_in(*opened)) {
            auto file = read(*opened, name, folder.owner);
            if (!file) continue;
            const int pid = file->entry.process.pid;
            const bool here = own != 0 && file->entry.pid_namespace == own;
            const text_link::Life life = life_of(*file, folder.owner, own);
            if (life == text_link::Life::dead) continue;
            if (life == text_link::Life::silent && !(here && is_stopped(pid))) continue;
            out.push_back({std::move(file->entry), folder.owner, here});
        }
    }
    return out;
}

}  // namespace curb::control::board
