// The segment of a job's ledger in shared memory: its layout, and which processes it counts.
//
// Another program of the same user may write anything here at any time. So nothing in it is a pointer, each index is
// checked before use, and no value decides more than whether a request is granted. Of the list that the kernel walks
// when a thread ends (robust futexes), only the owner's word of a slot lies here.
#pragma once

#include <linux/futex.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "policy/values/size.hpp"

namespace curb::shim::job {

using policy::Bytes;

// FNV-1a: the same in every process and version of curb, as std::hash need not be. Never 0.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t out = 0xcbf29ce484222325) noexcept {
    for (const char c : text) out = (out ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return out == 0 ? 1 : out;
}
// Returns the first key of the segment for this job of this user. Not IPC_PRIVATE.
constexpr std::int32_t key_of(std::string_view job, std::uint32_t user) noexcept {
    const auto key = static_cast<std::int32_t>(hash_of(job, hash_of("curb") ^ user));
    return key == 0 ? 1 : key;
}
// Another user can take keys, since a key is no secret. So a job has this many of them, one after the other: more than
// the kernel has segments (32,768). The segment has any of these keys that was free.
inline constexpr std::uint32_t kKeys = 1U << 16;

inline constexpr std::uint32_t kSlots = 128;  // processes
inline constexpr std::size_t kGpus = 64;      // of one machine: instances of MIG count each

// A slot belongs to the process whose thread holds its owner's word, a robust futex: the thread's id. When the thread
// ends, with its process or by exec, the kernel clears the id and sets FUTEX_OWNER_DIED. Then another process clears
// the word, once the driver has the memory back. A process without such a thread writes its pid and kByPid; then /proc
// must show whether it lives. A slot that is being taken has an id and FUTEX_OWNER_DIED.
//
// What the job shares is as old as the job. A process that finds no other one in it begins a new life of the job: the
// live caps, the measured context and the rows of earlier lives no longer count, and neither does what their processes
// have exported. Nothing is cleared for that, since a process can be stopped just before it clears: each of these
// carries the number of the life that it belongs to.
inline constexpr std::uint32_t kByPid = 1U << 29;  // above every thread id
constexpr bool lives(std::uint32_t owner) noexcept {
    return (owner & FUTEX_TID_MASK) != 0 && (owner & FUTEX_OWNER_DIED) == 0;
}
constexpr bool is_dying(std::uint32_t owner) noexcept {
    return (owner & FUTEX_TID_MASK) == 0 && (owner & FUTEX_OWNER_DIED) != 0;
}
// True if a process may take the slot.
constexpr bool is_free(std::uint32_t owner) noexcept { return (owner & (FUTEX_TID_MASK | FUTEX_OWNER_DIED)) == 0; }

// The process of a slot. Written by its owner.
struct Member {
    std::atomic<std::uint32_t> pid;
    std::atomic<std::uint64_t> start;       // clock ticks since boot
    std::atomic<std::uint64_t> namespaces;  // in which `pid` and `start` say something (namespaces()); 0: unknown
    std::atomic<std::uint64_t> name[2];     // of the program, as in /proc/PID/comm
    std::atomic<std::uint32_t> number;      // of the processes of this job, in the order in which they joined
    std::atomic<std::uint32_t> life;        // of the job, in which it has joined
};

// Device memory that a process has exported, or that it has imported from another one (exports.hpp).
struct Piece {
    std::atomic<std::uint64_t> memory;  // number of its maker << 32 | serial number; 0: the place is free
    // Exports: a hash of its IPC handle, or of the pointer of a pool's block; 0: a descriptor, which has no name;
    // kPool.
    std::atomic<std::uint64_t> name;
    std::atomic<Bytes> bytes;
    std::atomic<std::uint32_t> gpu;       // the row
    std::atomic<std::uint32_t> maker;     // imports: the slot of the process that has exported it
    std::atomic<std::uint32_t> place;     // its place in the maker's exports: of imports, and of a pool's block + 1
    std::atomic<std::uint32_t> measured;  // imports: NVML counts it in this process's figure, and so does `held`
};
inline constexpr std::size_t kPieces = 256;
inline constexpr std::uint64_t kPool = 1;  // the name of a pool, whose blocks have names of their own
struct Pieces {
    std::atomic<std::uint32_t> end;  // all places in use are below this
    Piece piece[kPieces];
};

// A figure that the processes of a job share. 0 until one of them has set it.
class OfJob {
  public:
    // `life`: the job's.
    [[nodiscard]] Bytes in(std::uint32_t life) const noexcept { return life_.load() == life ? bytes_.load() : 0; }
    void set(Bytes bytes, std::uint32_t life) noexcept {
        bytes_.store(bytes);
        life_.store(life);
    }

  private:
    std::atomic<Bytes> bytes_;
    std::atomic<std::uint32_t> life_;
};

// One GPU. Each process writes its own slot alone.
struct Row {
    OfJob context;                      // what the first context of a process has cost; 0: none has measured it
    OfJob live_cap;                     // by `curb cap --job`, plus 1; 0: none
    std::atomic<Bytes> wanted_bytes;    // by the latest request that asked the others to release
    std::atomic<std::uint32_t> wanted;  // the latest one: how many there were before, times kSlots, plus its slot
    std::atomic<std::uint32_t> answered[kSlots];  // the last one that each process has answered
    std::atomic<Bytes> held[kSlots];              // held, requests included that are being decided
    std::atomic<Bytes> kept[kSlots];              // kept free for code that the driver loads (policy::driver_reserve)
    std::atomic<Bytes> asking[kSlots];            // of `held`: requests that are being decided
};

// A segment begins as zeroes, which is an empty ledger.
struct Segment {
    // Changes with the layout, so that two versions of curb do not misread each other.
    static constexpr std::uint64_t kLayout = 0x6375'7262'6a6f'6206;  // "curbjob", 6
    std::atomic<std::uint64_t> layout;
    std::atomic<std::uint64_t> job;  // a hash of the job's name; 0: open, kGivenUp: for no job
    static constexpr std::uint64_t kGivenUp = ~std::uint64_t{0};
    std::atomic<std::uint64_t> life;         // upper half: the job's life; lower half: processes that have joined it
    std::atomic<std::uint32_t> slots;        // all slots in use are below this
    std::atomic<std::uint32_t> changes;      // a futex, for the thread of each process: a request or a live cap is new
    std::atomic<std::uint64_t> gpus[kGpus];  // which GPU a row is for (gpu_in()); 0: none
    alignas(64) std::atomic<std::uint32_t> owner[kSlots];
    alignas(64) Member member[kSlots];
    alignas(64) Row row[kGpus];
    std::atomic<std::uint32_t> joins;    // processes that have joined so far
    std::atomic<std::uint32_t> imports;  // not 0 once a process has imported memory of another
    Pieces exported[kSlots];
    Pieces imported[kSlots];
};

// Identifies a GPU in a life of the job: the lower bits of the life above those of a hash of the UUID.
inline constexpr unsigned kGpuBits = 40;
constexpr std::uint64_t gpu_in(std::uint32_t life, std::string_view uuid) noexcept {
    return std::uint64_t{life} << kGpuBits | (hash_of(uuid) & ((std::uint64_t{1} << kGpuBits) - 1));
}
constexpr bool is_of_life(std::uint64_t gpu, std::uint32_t life) noexcept {
    return gpu != 0 && gpu >> kGpuBits == std::uint64_t{life} << kGpuBits >> kGpuBits;
}

static_assert(std::atomic<Bytes>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// The segment that this process has attached, and its slot there. Set by join(), before any other thread uses them.
inline constinit Segment *segment = nullptr;
inline constinit std::uint32_t mine = 0;
inline constinit std::uint32_t life = 0;  // the job's, as long as this process is in it
// False if this process has taken no slot, or if another program has overwritten it: then nothing in the ledger can be
// trusted. The segment must be attached.
bool has_slot() noexcept;

// True if the driver has the memory of the dying process in this slot back; the slot is free then.
bool clear_if_gone(std::uint32_t slot, std::uint32_t owner) noexcept;

// Calls `visit(slot)` for each slot whose process lives, or is dying and may still hold memory.
template <class Visit>
void for_each_living(Visit visit) noexcept {
    const std::uint32_t in_use = std::max(segment->slots.load(), mine + 1);
    for (std::uint32_t slot = 0, end = std::min(in_use, kSlots); slot < end; ++slot) {
        const std::uint32_t owner = segment->owner[slot].load();
        if (lives(owner) || (is_dying(owner) && !clear_if_gone(slot, owner))) visit(slot);
    }
}

// Attaches the segment for the job of this hash, whose first key this is, and sets `attached`. Makes it if there is
// none. All processes of the job get the same one, whatever other users do with its keys meanwhile. Returns why there
// is none; empty: attached. `again`: others have changed something meanwhile, and another try may succeed. May throw
// std::bad_alloc.
std::string attach(std::int32_t key, std::uint64_t job, Segment *&attached, bool &again);

}  // namespace curb::shim::job
