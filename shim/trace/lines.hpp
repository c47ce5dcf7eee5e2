// Records as lines of a trace (control/trace.hpp), in the order of the ring: what a line says beyond its own record is
// known from those before it. Used by one thread; may throw std::bad_alloc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "policy/kinds.hpp"
#include "record.hpp"

namespace curb::shim::trace {

class Lines {
  public:
    static constexpr std::size_t kDevices = 64;

    // `began`: the moment that lines count from.
    Lines(int pid, std::uint64_t began) noexcept : pid_(pid), began_(began) {}

    // Appends the record's line, and with it counters for the viewers, once a millisecond and device. A pool's block of
    // which nothing is known, for it was allocated before the trace began, gets none.
    void add(const Record &record);
    // That so many events are missing.
    void add_dropped(std::uint64_t ns, std::uint64_t events);
    // The counters that are still owed.
    void add_counters();

    // What has been appended since the last clear().
    [[nodiscard]] const std::string &text() const noexcept { return text_; }
    void clear() noexcept { text_.clear(); }
    // What the lines say is held of each kind.
    [[nodiscard]] const policy::ByKind &said(int gpu) const noexcept {
        return gpus_[static_cast<std::size_t>(gpu)].kinds;
    }

  private:
    struct Gpu {
        policy::ByKind kinds{};
        policy::Bytes held = 0;
        std::uint64_t changed_ns = 0;  // the newest of the events that counters do not show yet
        std::uint64_t counted_ns = 0;  // of the last counters
        bool owed = false;
    };
    struct Block {
        std::uint64_t ns;  // when it was allocated
        std::int64_t bytes;
        std::int16_t gpu;
        policy::Kind kind;
    };

    [[nodiscard]] std::uint64_t since_began(std::uint64_t ns) const noexcept { return ns > began_ ? ns - began_ : 0; }
    // Adds to the text, or throws and leaves it as it was.
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

// How many of these lines are events of the program's: all but counters, and those that say what is missing.
std::uint64_t events_in(std::string_view lines) noexcept;

}  // namespace curb::shim::trace
