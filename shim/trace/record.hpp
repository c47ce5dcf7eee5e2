// What stands in the ring: an event as plain values, and the marks between which a file gets them.
#pragma once

#include <cstdint>
#include <string>

#include "control/trace.hpp"
#include "ring.hpp"

namespace curb::shim {
struct Device;
}

namespace curb::shim::trace {

struct Record {
    enum class Mark : std::uint8_t {
        event,
        pool_free,  // of which only the pointer is known
        begin,      // from here on in the file that `text` names
        end,        // of the trace
    };
    Mark mark{};
    control::trace::What what{};
    policy::Kind kind{};
    policy::Obstacle why{};
    policy::Step step{};
    bool reused = false;
    std::int16_t gpu = 0;
    int thread = 0;
    std::uint64_t ns = 0;  // CLOCK_MONOTONIC
    std::uint64_t pointer = 0;
    std::int64_t bytes = 0;
    std::int64_t charge = 0;
    policy::Bytes of_kind = 0;
    policy::Bytes held = 0;
    policy::Bytes limit = 0;
    std::uint64_t duration_ns = 0;
    std::string *text = nullptr;  // owned by the record; null: none
};

// Whether events of this name say what is held of their kind.
constexpr bool tells_of_kind(control::trace::What what) noexcept {
    using control::trace::What;
    return what == What::alloc || what == What::free || what == What::books;
}

// 3 MiB, and what 20 ms bring at more than a million events a second.
inline constexpr std::size_t kRecords = std::size_t{1} << 15;
extern constinit Ring<Record, kRecords> ring;

// Puts a record into the ring, with the calling thread's number and, where there is a device, what its books say then.
// False: the ring is full.
bool try_put(Record record, const Device *device) noexcept;

}  // namespace curb::shim::trace
