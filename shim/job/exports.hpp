// Device memory that a process of the job exports and others of it import. It is charged once: to its maker, who has it
// in the bytes that it holds. If the maker ends or frees it first, it stays on the device as long as an importer has
// it, and counts for one of them: the one with the lowest slot.
//
// The processes send each other nothing. Each writes down what it exports and what it imports, in its own slot, and
// each sum counts the imported memory whose maker no longer has it. So nothing has to be cleaned up when a process is
// killed, at whatever instruction. A sum must read the bytes that processes hold first: then memory that its maker
// gives up meanwhile counts twice for a moment, rather than not at all.
//
// Without a job every function does nothing. Thread-safe. Does not call the driver.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "job/segment.hpp"

namespace curb::shim::job {

// Identifies the memory in this process: its address on the device, or the address of its record.
using MemoryKey = std::uint64_t;

// The row of a GPU in the ledger (Share::row); nullopt: it is not open.
using GpuRow = std::optional<std::uint32_t>;

// This process has exported memory of `bytes` on this GPU, which it is charged for. `name`: a hash of what the
// importers get; 0: a descriptor, which has no name. Ignores memory that it has exported before.
void exported(MemoryKey key, std::uint64_t name, GpuRow gpu, Bytes bytes) noexcept;
// This process has exported a block of a pool that it is charged for. `pool`: its key. `name`: a hash of the exported
// pointer. `bytes`: the size of the pool. curb cannot tell which of the pool's memory is behind a block. So the pool
// counts as a whole: as long as another process has a block of it, all `bytes` count.
void exported_from_pool(MemoryKey pool, std::uint64_t name, GpuRow gpu, Bytes bytes) noexcept;
// This process frees memory, or destroys a pool. Call it before the ledger's credit. Ignores memory that it has not
// exported.
void freed(MemoryKey key) noexcept;

// This process has imported the memory of that name. Ignores names that no process of the job has exported.
void imported(MemoryKey key, std::uint64_t name) noexcept;
// This process has imported memory by a descriptor, which does not show whose memory it is. So curb takes one of that
// size that a process of the job has exported by a descriptor, if possible one that no process has imported yet. The
// sum is then at least the true one.
void imported_of_size(MemoryKey key, GpuRow gpu, Bytes bytes) noexcept;
// This process has imported a block of the exported pool that it knows by this key. False if no process of the job has
// exported a block of that name; then do not call closed() for it.
bool imported_from_pool(MemoryKey pool, std::uint64_t name) noexcept;
// This process has closed imported memory, or freed an imported block of a pool. True if NVML's figure of this process
// has counted it, so that the overhead is too high until the device is measured.
bool closed(MemoryKey key) noexcept;

// A reconcile has changed the overhead by `change` bytes. If this is just the size of memory that this process has
// imported and its maker has given up, NVML's figure of this process now counts that memory, or counts it no longer.
// From now on the sum leaves that memory to the figure, or counts it again.
void overhead_changed(GpuRow gpu, std::int64_t change) noexcept;

// Calls `visit(slot, bytes)` for memory that its maker no longer has and NVML counts for none of the importers.
// `slot`: of the importer that it counts for.
template <class Visit>
void for_each_left_behind(std::uint32_t gpu, Visit visit) noexcept;
[[nodiscard]] Bytes left_behind_by_any(std::uint32_t gpu) noexcept;
[[nodiscard]] inline Bytes left_behind(std::uint32_t gpu) noexcept {
    return segment->imports.load() == 0 ? 0 : left_behind_by_any(gpu);
}

// ---- implementation ----

namespace detail {

// A set of memory, by Piece::memory. add() returns false if the memory is in the set. If the set is full, add() returns
// true each time: memory that several processes import then counts once for each.
class Seen {
  public:
    bool add(std::uint64_t memory) noexcept {
        for (std::size_t i = 0; i < kProbes; ++i) {
            std::uint64_t &there = memory_[(memory * 0x9E3779B97F4A7C15ULL + i) % memory_.size()];
            if (there == memory) return false;
            if (there != 0) continue;
            there = memory;
            return true;
        }
        return true;
    }

  private:
    static constexpr std::size_t kProbes = 16;
    std::array<std::uint64_t, 257> memory_{};
};

// A copy of one Piece. `memory` is 0 if the place is free or is being written.
struct Read {
    std::uint64_t memory = 0;
    Bytes bytes = 0;
    std::uint32_t gpu = 0, maker = 0, place = 0;
    bool measured = false;
};
Read read(const Piece &piece) noexcept;
// True if the process that has made this imported memory still has it.
bool has_its_maker(const Read &read) noexcept;

inline std::uint32_t end_of(const Pieces &pieces) noexcept {
    return std::min(pieces.end.load(), std::uint32_t{kPieces});
}

}  // namespace detail

template <class Visit>
void for_each_left_behind(std::uint32_t gpu, Visit visit) noexcept {
    detail::Seen seen;
    for (const bool measured : {true, false})
        for_each_living([&](std::uint32_t slot) {
            const Pieces &all = segment->imported[slot];
            for (std::uint32_t i = 0, end = detail::end_of(all); i < end; ++i) {
                const detail::Read one = detail::read(all.piece[i]);
                if (one.memory == 0 || one.gpu != gpu || one.measured != measured) continue;
                if (detail::has_its_maker(one) || !seen.add(one.memory)) continue;
                if (!measured) visit(slot, one.bytes);
            }
        });
}

}  // namespace curb::shim::job
