// Formats records as lines of a trace (control/trace.hpp), in the order of the ring. Some lines need data of earlier
// records. Used by one thread. May throw std::bad_alloc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "policy/kinds.hpp"
#include "trace/record.hpp"

namespace curb::shim::trace {

class Lines {
  public:
    static constexpr std::size_t kDevices = 64;

    // `began`: the time at which the lines' clock is 0.
    Lines(int pid, std::uint64_t began) noexcept : pid_(pid), began_(began) {}

    // Appends the record's line, and counters for viewers at most once a millisecond per device. Appends nothing for
    // the free of a pool's block that was allocated before the trace began.
    void add(const Record &record);
    // Appends a line with the number of missing events.
    void add_dropped(std::uint64_t ns, std::uint64_t events);
    // Appends the counters that are due.
    void add_counters();

    // Returns the text since the last clear().
    [[nodiscard]] const std::string &text() const noexcept { return text_; }
    void clear() noexcept { text_.clear(); }
    // Return the bytes held of each kind and in all, as the lines so far show them.
    [[nodiscard]] const policy::ByKind &said(int gpu) const noexcept {
        return gpus_[static_cast<std::size_t>(gpu)].kinds;
    }
    [[nodiscard]] policy::Bytes said_held(int gpu) const noexcept { return gpus_[static_cast<std::size_t>(gpu)].held; }

  private:
    struct Gpu {
        policy::ByKind kinds{};
        policy::Bytes held = 0;
        std::uint64_t changed_ns = 0;  // time of the newest event that the counters lack
        std::uint64_t counted_ns = 0;  // time of the last counters
        bool owed = false;
    };
    struct Block {
        std::uint64_t ns;  // when it was allocated
        std::int64_t bytes;
        std::int16_t gpu;
        policy::Kind kind;
    };

    [[nodiscard]] std::uint64_t since_began(std::uint64_t ns) const noexcept { return ns > began_ ? ns - began_ : 0; }
    // Runs `add`; if it throws, restores the text and rethrows.
    template <class Add>
    void whole(Add add);
    void add_line(Record record);
    bool complete(Record &record);
    void count(std::size_t gpu, std::uint64_t ns);

    int pid_;
    std::uint64_t began_;
    std::string text_;
    std::array<Gpu, kDevices> gpus_{};
    std::unordered_multimap<std::uint64_t, Block> pool_blocks_;
};

// Returns the number of lines that are events of the program: all except counters and `dropped` lines.
std::uint64_t events_in(std::string_view lines) noexcept;

}  // namespace curb::shim::trace
