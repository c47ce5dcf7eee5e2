// A trace in memory, for `curb report` and `curb replay`. A run may have fifty million events, of 64 bytes each.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "control/trace.hpp"
#include "policy/values/result.hpp"

namespace curb::cli {

using control::trace::What;

inline constexpr std::uint64_t kSecond = 1'000'000'000;  // in ns, as all times

// Returns nullopt for a limit that bounds nothing.
inline std::optional<policy::Bytes> bounded(policy::Bytes limit) {
    return limit == policy::kUnbounded ? std::nullopt : std::optional(limit);
}

// control::trace::Event in 64 bytes. Members that no event has together share a field.
struct Moment {
    std::uint64_t ns = 0;       // since the trace began
    std::uint64_t pointer = 0;  // of alloc, free and stack; of others the duration in ns
    std::int64_t bytes = 0;
    std::int64_t charge = 0;  // of alloc and free; of others the limit
    policy::Bytes of_kind = 0;
    policy::Bytes held = 0;
    std::int32_t thread = 0;
    std::uint32_t text = 0;  // number in Recording::texts
    What what{};
    policy::Kind kind{};
    std::uint8_t detail = 0;  // alloc, free: whether reused; refuse, wait: the limit; step: the step
    std::uint16_t gpu = 0;    // ordinal; in a recording of a job: JobGpu::gpu

    [[nodiscard]] bool moves_memory() const noexcept { return what == What::alloc || what == What::free; }
    // True if the event is of the process: `gpu` has no meaning then.
    [[nodiscard]] bool is_of_process() const noexcept {
        return what == What::step || what == What::out || what == What::back || what == What::end ||
               what == What::dropped;
    }
    [[nodiscard]] std::uint64_t duration_ns() const noexcept {
        return moves_memory() || what == What::stack ? 0 : pointer;
    }
    [[nodiscard]] policy::Bytes limit() const noexcept {
        return moves_memory() ? 0 : static_cast<policy::Bytes>(charge);
    }
    // Returns the limit that a refused request hit. nullopt if it has no figure.
    [[nodiscard]] std::optional<policy::Bytes> limit_hit() const {
        return limit() == 0 ? std::nullopt : bounded(limit());
    }
    [[nodiscard]] policy::Limit why() const noexcept { return static_cast<policy::Limit>(detail); }
    [[nodiscard]] policy::Step step() const noexcept { return static_cast<policy::Step>(detail); }
    [[nodiscard]] std::uint64_t began_ns() const noexcept { return ns - std::min(ns, duration_ns()); }
    // Identifies a live allocation: its address or handle, and its kind, since handles may equal addresses.
    [[nodiscard]] std::uint64_t key() const noexcept { return pointer ^ (static_cast<std::uint64_t>(kind) << 58); }
    friend bool operator==(const Moment &, const Moment &) = default;
};
static_assert(sizeof(Moment) == 64);

// Sums up the memory held of one GPU from the events that change it. The `held` of an event may be more: it includes
// memory reserved for requests whose own events come later, or never, if the driver refuses them.
struct HeldByKind {
    policy::ByKind kinds{};
    policy::Bytes sum = 0;

    // Adds an event. False if it does not change the held memory.
    bool take(const Moment &moment) noexcept {
        if (!moment.moves_memory() && moment.what != What::books) return false;
        policy::Bytes &kind = kinds[static_cast<std::size_t>(moment.kind)];
        sum += moment.of_kind - kind;  // modulo 2^64: a fall is a wrapped addition
        kind = moment.of_kind;
        return true;
    }
};

inline constexpr policy::Bytes kLargestHeld = policy::Bytes{1} << 50;  // no device has a PiB
inline constexpr int kMostGpus = 1 << 16;                              // of a job: Moment::gpu has 16 bits

// Texts, each once, under its number. 0: the empty text, and those of a trace that has too many.
class Texts {
  public:
    std::uint32_t number_of(const std::string &text) {
        constexpr std::size_t kMost = 100'000;  // a trace has many call stacks
        if (const auto known = numbers_.find(text); known != numbers_.end()) return known->second;
        if (all_.size() >= kMost) return 0;
        all_.push_back(text);
        return numbers_[text] = static_cast<std::uint32_t>(all_.size() - 1);
    }
    [[nodiscard]] const std::string &operator[](std::uint32_t number) const { return all_[number]; }
    friend bool operator==(const Texts &, const Texts &) = default;

  private:
    std::vector<std::string> all_{std::string()};
    std::unordered_map<std::string, std::uint32_t> numbers_;
};

struct Recording {
    std::string name;  // of the file, as it was typed
    control::trace::Header header;
    std::vector<Moment> events;  // in the order of the file
    Texts texts;
    std::uint64_t first_ns = 0, last_ns = 0;  // of all events

    // Sentences about missing parts: the file is cut off, lines could not be read, events were dropped.
    std::vector<std::string> missing;

    [[nodiscard]] const std::string &text(const Moment &moment) const { return texts[moment.text]; }
    [[nodiscard]] const control::trace::Gpu *gpu(int ordinal) const noexcept;  // null: the header does not name it
};

// Returns the ordinals in the events and the header, in rising order.
std::vector<int> gpus_of(const Recording &recording);

// Reads a trace in pieces, which may be cut anywhere.
class TraceReader {
  public:
    explicit TraceReader(std::string name);
    // Reads the next piece. False if the file is not a trace: stop reading.
    bool take(std::string_view piece);
    // Ends the trace. The error is a sentence with the file's name and a remedy.
    policy::Result<Recording, std::string> done() &&;
    // Reserves memory for so many events. If that fails, the recording grows as they come.
    void expect(std::size_t events);

  private:
    void take_line(std::string_view line, bool whole);
    void take_first(std::string_view line);
    void take_event(std::string_view line, bool whole);
    void add(const control::trace::Event &event);
    void bad_line(std::string why);

    Recording out_;
    bool is_trace_ = false;  // by its first line
    bool has_header_ = false;
    std::string rest_;   // the line that the next piece continues
    std::string fault_;  // why this is no trace; empty: it may be one
    std::uint64_t lines_ = 0, bad_lines_ = 0, dropped_ = 0;
    std::string first_bad_;
    bool cut_off_ = false;
    bool held_follows_ = true;  // the last dropped events: what is held was written after them
};

// Reads a trace of any size from a file or standard input ("-"). The error is a sentence with the file's name.
policy::Result<Recording, std::string> read_trace(const std::string &file);

// The same for several. Fails with the first that cannot be read.
policy::Result<std::vector<Recording>, std::string> read_traces(const std::vector<std::string> &files);

}  // namespace curb::cli
