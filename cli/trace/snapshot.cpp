#include "trace/snapshot.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"
#include "trace/pickle.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using Type = Pickle::Type;
using Value = Pickle::Value;
using Id = Pickle::Id;

// Limits: a few bytes of a pickle can repeat the same list a million times.
constexpr std::size_t kMostEvents = 20'000'000;
constexpr std::size_t kMostCalls = 48;

struct Entry {
    enum class Action : std::uint8_t { alloc, free, out_of_memory } action{};
    std::uint64_t address = 0;
    std::int64_t bytes = 0;
    std::int64_t time_us = 0;
    std::uint32_t stack = 0;  // number in Recording::texts
};

class Snapshot {
  public:
    Snapshot(const Pickle &pickle, std::string name) : pickle_(pickle) { out_.name = std::move(name); }

    // Returns nullopt if the pickle is not a memory snapshot.
    std::optional<Recording> recording() && {
        const Value &segments = pickle_.member(pickle_.root(), "segments");
        const Value &traces = pickle_.member(pickle_.root(), "device_traces");
        if (segments.type != Type::list || (traces.type != Type::list && traces.type != Type::none))
            return std::nullopt;
        for (std::size_t gpu = 0; gpu < std::min<std::size_t>(traces.items.size(), kMostGpus); ++gpu)
            take_history(pickle_[traces.items[gpu]], gpus_[static_cast<int>(gpu)]);
        for (const Id segment : segments.items) take_segment(pickle_[segment]);
        for (auto &[gpu, one] : gpus_)
            if (one.segments != 0 || !one.entries.empty()) add(gpu, one);
        say_what_is_missing();
        return std::move(out_);
    }

  private:
    struct Block {
        std::uint64_t address;
        std::int64_t bytes;
        std::uint32_t stack;
    };
    struct Gpu {
        std::vector<Entry> entries;
        std::vector<Block> blocks;  // in use when the snapshot was taken
        std::size_t segments = 0;
        Bytes reserved = 0, in_use = 0;
    };

    // Returns a size. -1 if it is missing, or larger than any device.
    [[nodiscard]] std::int64_t size_of(const Value &of, std::string_view name) const {
        const Value &value = pickle_.member(of, name);
        const bool is_possible = value.type == Type::integer && value.integer >= 0 &&
                                 value.integer <= static_cast<std::int64_t>(kLargestHeld);
        return is_possible ? value.integer : -1;
    }
    [[nodiscard]] std::uint64_t address_of(const Value &of, std::string_view name) const {
        const Value &value = pickle_.member(of, name);
        return value.type == Type::integer ? static_cast<std::uint64_t>(value.integer) : 0;
    }
    [[nodiscard]] bool is_full() {
        if (events_ < kMostEvents) return false;
        is_cut_off_ = true;
        return true;
    }

    void take_history(const Value &entries, Gpu &into) {
        if (entries.type != Type::list) return;
        for (std::size_t i = 0; i < entries.items.size() && !is_full(); ++i) {
            const Value &one = pickle_[entries.items[i]];
            const std::string_view action = pickle_.member(one, "action").text;
            Entry entry;
            if (action == "alloc")
                entry.action = Entry::Action::alloc;
            else if (action == "free_completed")
                entry.action = Entry::Action::free;
            else if (action == "oom")
                entry.action = Entry::Action::out_of_memory;
            else
                continue;  // segments, requests to free, other snapshots
            entry.bytes = size_of(one, "size");
            entry.address = address_of(one, "addr");
            if (entry.bytes < 0 || (entry.address == 0 && entry.action != Entry::Action::out_of_memory)) {
                ++unreadable_;
                continue;
            }
            const Value &time = pickle_.member(one, "time_us");  // since PyTorch 2.1
            entry.time_us = time.type == Type::integer ? time.integer : static_cast<std::int64_t>(i);
            if (entry.action == Entry::Action::alloc) entry.stack = stack_of(one);
            into.entries.push_back(entry);
            ++events_;
        }
    }

    void take_segment(const Value &segment) {
        const Value &device = pickle_.member(segment, "device");
        const std::int64_t gpu = device.type == Type::integer ? device.integer : 0;
        const std::int64_t bytes = size_of(segment, "total_size");
        if (bytes < 0 || gpu < 0 || gpu >= kMostGpus) {
            ++unreadable_;
            return;
        }
        Gpu &into = gpus_[static_cast<int>(gpu)];
        ++into.segments;
        into.reserved = policy::added(into.reserved, static_cast<Bytes>(bytes));
        std::uint64_t address = address_of(segment, "address");
        for (const Id id : pickle_.member(segment, "blocks").items) {
            if (is_full()) return;
            const Value &block = pickle_[id];
            const std::int64_t size = size_of(block, "size");
            if (size < 0) {
                ++unreadable_;
                return;  // the address of the next block is not known either
            }
            const std::uint64_t own = address_of(block, "address");  // absent before PyTorch 2.1
            if (pickle_.member(block, "state").text.starts_with("active")) {
                into.blocks.push_back({own != 0 ? own : address, size, stack_of(block)});
                into.in_use = policy::added(into.in_use, static_cast<Bytes>(size));
                ++events_;
            }
            address += static_cast<std::uint64_t>(size);
        }
    }

    // Returns the index of the stack's text. Entries with the same stack share one list of frames.
    std::uint32_t stack_of(const Value &of) {
        const Value &frames = pickle_.member(of, "frames");
        if (frames.type != Type::list || frames.items.empty()) return 0;
        const auto [known, is_new] = stacks_.try_emplace(&frames, 0);
        if (!is_new) return known->second;
        std::string text;
        for (std::size_t i = 0; i < std::min(frames.items.size(), kMostCalls); ++i)
            text += (i == 0 ? "" : " < ") + call_text(pickle_[frames.items[i]]);
        return known->second = out_.texts.number_of(text);
    }
    [[nodiscard]] std::string call_text(const Value &frame) const {
        constexpr std::size_t kLongest = 1000;
        const auto part = [&](std::string_view name) {
            std::string out = policy::plain(pickle_.member(frame, name).text.substr(0, kLongest));
            for (std::size_t at = 0; (at = out.find(" < ", at)) != std::string::npos;) out.replace(at, 3, "<");
            return out;
        };
        const std::string file = part("filename");
        const Value &line = pickle_.member(frame, "line");
        std::string out = part("name");
        if (out.empty()) out = "?";
        if (file.empty() || file == "??") return out;
        return out + " (" + file + (line.type == Type::integer ? fmt::format(":{}", line.integer) : "") + ")";
    }

    // Adds the events of a GPU. The history may begin late: blocks that it frees, or that are in use at its end,
    // without an allocation in it were allocated before.
    void add(int gpu, Gpu &from) {
        std::unordered_map<std::uint64_t, Block> live;
        std::vector<Block> before;
        std::unordered_map<std::uint64_t, bool> was_before;
        const auto add_before = [&](const Block &block) {
            if (was_before.try_emplace(block.address, true).second) before.push_back(block);
        };
        for (const Entry &entry : from.entries) {
            if (entry.action == Entry::Action::alloc) live[entry.address] = {};
            if (entry.action == Entry::Action::free && live.erase(entry.address) == 0)
                add_before({entry.address, entry.bytes, 0});
        }
        for (const Block &block : from.blocks)
            if (!live.contains(block.address)) add_before(block);
        live.clear();
        held_ = 0;
        out_.header.gpus.push_back({gpu, {}, {}, 0});
        const std::int64_t first_us =
            from.entries.empty() ? 0 : std::max<std::int64_t>(from.entries.front().time_us, 0);
        // PyTorch 2.1 and newer record the wall clock.
        constexpr std::int64_t kWallClockUs = 1'500'000'000'000'000;
        if (out_.header.unix_ns == 0 && first_us > kWallClockUs && first_us < 4 * kWallClockUs)
            out_.header.unix_ns = first_us * 1000;
        for (const Block &block : before) allocate(gpu, block, 0, live);
        std::uint64_t ns = 0;
        for (const Entry &entry : from.entries) {
            constexpr std::int64_t kLongestUs = std::int64_t{1} << 50;
            if (entry.time_us >= first_us && entry.time_us - first_us < kLongestUs)
                ns = std::max(ns, static_cast<std::uint64_t>(entry.time_us - first_us) * 1000);
            const Block block{entry.address, entry.bytes, entry.stack};
            switch (entry.action) {
                case Entry::Action::out_of_memory: refuse(gpu, entry.bytes, ns); break;
                case Entry::Action::alloc: allocate(gpu, block, ns, live); break;
                case Entry::Action::free:
                    if (const auto found = live.find(entry.address); found != live.end()) {
                        free(gpu, found->second, ns);
                        live.erase(found);
                    }
            }
        }
        out_.notes.push_back(
            fmt::format("At the end PyTorch had reserved {} of cuda:{} in {}, and {} of it was in use.",
                        policy::format_human(from.reserved), gpu, counted(from.segments, "segment"),
                        policy::format_human(from.in_use)));
    }

    Moment &moment(int gpu, What what, std::int64_t bytes, std::uint64_t ns) {
        Moment one;
        one.what = what;
        one.gpu = static_cast<std::uint8_t>(gpu);
        one.ns = ns;
        one.bytes = bytes;
        one.held = one.of_kind = held_;
        out_.last_ns = std::max(out_.last_ns, ns);
        return out_.events.emplace_back(one);
    }
    void allocate(int gpu, const Block &block, std::uint64_t ns, std::unordered_map<std::uint64_t, Block> &live) {
        // A live block at that address: its free is missing in the history.
        if (held_ + static_cast<Bytes>(block.bytes) > kLargestHeld || !live.try_emplace(block.address, block).second) {
            ++unreadable_;
            return;
        }
        held_ += static_cast<Bytes>(block.bytes);
        Moment &one = moment(gpu, What::alloc, block.bytes, ns);
        one.pointer = block.address;
        one.charge = block.bytes;
        if (block.stack == 0) return;
        Moment &stack = moment(gpu, What::stack, block.bytes, ns);
        stack.pointer = block.address;
        stack.text = block.stack;
    }
    void free(int gpu, const Block &block, std::uint64_t ns) {
        held_ -= static_cast<Bytes>(block.bytes);
        Moment &one = moment(gpu, What::free, block.bytes, ns);
        one.pointer = block.address;
        one.charge = -block.bytes;
    }
    void refuse(int gpu, std::int64_t bytes, std::uint64_t ns) {
        moment(gpu, What::refuse, bytes, ns).detail = static_cast<std::uint8_t>(policy::Limit::device);
    }

    void say_what_is_missing() {
        out_.notes.insert(
            out_.notes.begin(),
            "This is a memory snapshot of PyTorch: what its tensors hold. Its cache, the CUDA context and "
            "code are not in the picture.");
        const bool has_history =
            std::any_of(gpus_.begin(), gpus_.end(), [](const auto &one) { return !one.second.entries.empty(); });
        if (!has_history)
            out_.missing.emplace_back(
                "It has no history, only the end: call torch.cuda.memory._record_memory_history() before the run.");
        if (unreadable_ != 0)
            out_.missing.push_back(fmt::format(
                "{} of its entries could not be used: no address, no possible size, or no free before.", unreadable_));
        if (is_cut_off_)
            out_.missing.push_back(fmt::format("It has more than {} entries; the others are left out.", kMostEvents));
    }

    const Pickle &pickle_;
    Recording out_;
    std::map<int, Gpu> gpus_;
    std::unordered_map<const Value *, std::uint32_t> stacks_;
    std::size_t events_ = 0, unreadable_ = 0;
    bool is_cut_off_ = false;
    Bytes held_ = 0;
};

}  // namespace

policy::Result<Recording, std::string> read_snapshot(std::string_view bytes, const std::string &name) {
    const std::string quoted = policy::quote(policy::plain(name));
    const auto pickle = Pickle::read(bytes);
    if (!pickle)
        return quoted + " begins as a pickle of Python, and cannot be read: " + pickle.error() +
               "; curb report reads traces, and what torch.cuda.memory._dump_snapshot has written";
    auto recording = Snapshot(*pickle, name).recording();
    if (!recording)
        return quoted +
               " is a pickle of Python, but not a memory snapshot: it has no list of segments; write one by "
               "torch.cuda.memory._dump_snapshot";
    return std::move(*recording);
}

}  // namespace curb::cli
