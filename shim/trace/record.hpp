// The entry type of the ring: an event as plain values, or a mark that begins or ends a trace file.
#pragma once

#include <cstdint>
#include <string>

#include "base/waiting.hpp"
#include "control/trace.hpp"
#include "host/clock.hpp"
#include "trace/ring.hpp"

namespace curb::shim {
struct Device;
}

namespace curb::shim::trace {

struct Record {
    enum class Mark : std::uint8_t {
        event,
        pool_free,  // a free of which only the pointer is known
        begin,      // later events go to the file named in `text`
        end,        // ends the trace
    };
    Mark mark{};
    control::trace::What what{};
    policy::Kind kind{};
    policy::Limit why{};
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

// True if events of this name carry the bytes held of their kind.
constexpr bool has_total_of_kind(control::trace::What what) noexcept {
    using control::trace::What;
    return what == What::alloc || what == What::free || what == What::books;
}

// 3 MiB. Enough for the writer's pause of 20 ms at more than a million events a second.
inline constexpr std::size_t kRecords = std::size_t{1} << 15;
inline constinit Ring<Record, kRecords> ring;

// Puts a record into the ring, with the thread's id and, if `device` is not null, its ledger's figures. False if the
// ring is full.
bool try_put(Record record, const Device *device) noexcept;

// Returns the record of an event that happens now.
inline Record event_now(control::trace::What what, policy::Kind kind) noexcept {
    Record record;
    record.what = what;
    record.kind = kind;
    record.ns = now_ns();
    return record;
}
// Returns the record of a change of the bytes held of this kind.
inline Record books_event(policy::Kind kind, std::int64_t change) noexcept {
    Record record = event_now(control::trace::What::books, kind);
    record.charge = change;
    return record;
}
// Records the bytes held of this kind. False if the ring is full.
bool put_held(const Device &device, policy::Kind kind) noexcept;

// Wakes the thread curb-trace, which empties the ring. Keeps errno.
inline constinit FutexEvent writer_event;

}  // namespace curb::shim::trace
