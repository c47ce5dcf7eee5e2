// The stream-ordered pools of this process, the memory of graphs among them, and what each has reserved on which
// device.
//
// A pool is charged by CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: memory that was freed but that the pool keeps is held by
// the process all the same. The graphs of a device have one pool together, without a handle, which the driver tells of
// by CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT. Thread-safe; no lock is held while the driver is called.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "busy_count.hpp"
#include "devices.hpp"

namespace curb::shim::pools {

// Pools grow in units of 32 MiB (measured on an H200; default and explicit pools and the memory of graphs alike).

// A pool's release threshold: how much it keeps at a synchronisation although nothing uses it. While lowered it is 0
// for the driver, and for the program what the program has set. Thread-safe; its lock is not held while the driver is
// called.
class Threshold {
  public:
    // The program sets it, by `call`.
    template <class Call>
    CUresult set(std::uint64_t value, Call call) {
        const BusyCount::Guard guard(setting_);
        return keep(value) ? CUDA_SUCCESS : call();
    }
    // The program asks for it: `call` has the driver write it to `value`.
    template <class Call>
    CUresult get(std::uint64_t &value, Call call) {
        for (;;) {
            const std::uint64_t before = restored();
            const CUresult result = call();
            if (result != CUDA_SUCCESS || settles(value, before)) return result;
        }
    }

    void lower(CUmemoryPool pool) noexcept;
    void restore(CUmemoryPool pool) noexcept;
    // Of another pool from here on.
    void start_anew() noexcept;

  private:
    bool keep(std::uint64_t value) noexcept;  // false: it is not lowered
    std::uint64_t restored() noexcept;
    // Puts the program's threshold in the place of the driver's answer, while it is lowered. False: the answer may be
    // older than a restoration, and the driver must be asked again.
    bool settles(std::uint64_t &value, std::uint64_t restored_before) noexcept;

    std::mutex mutex_;
    bool lowered_ = false;
    std::optional<std::uint64_t> program_;  // none: not asked yet, and the driver still has it
    std::uint64_t restored_ = 0;            // how often it was restored
    BusyCount setting_;                     // threads that may be setting it in the driver
};

struct Pool {
    std::atomic<CUmemoryPool> handle{nullptr};  // null: the memory of the device's graphs, or nothing's at present
    Kind kind = Kind::pools;                    // or managed, or graphs
    Device *device = nullptr;  // null: its memory is on the host or another process's, and is not charged
    Pool *next_unused = nullptr;
    std::atomic<Bytes> charged{0};
    std::atomic<Bytes> claimed{0};  // of its idle memory, by requests that are on their way to the driver
    std::atomic<bool> live{true};
    std::atomic<bool> holding{false};  // it may have memory reserved, so it is measured
    BusyCount visitors;                // threads that are asking the driver about it
    BusyCount settling;                // threads that are setting `charged`, and have not told the ledger yet
    Threshold threshold;
    std::size_t blocks = 0;  // of managed memory that are in use; under the lock, as are the next two
    bool destroyed = false;  // and its last blocks are still in use
    Bytes kept_charged = 0;  // the charge for them
};

// The pool with this handle; null: not known.
Pool *known(CUmemoryPool handle) noexcept;
// The same. One that is not known yet was made behind our back (a device's default pool): it is taken to live on
// `device`. Null: no host memory for the record.
Pool *find(CUmemoryPool handle, Device *device) noexcept;
// The memory of the device's graphs. Null: no host memory for the record.
Pool *graphs_of(Device &device) noexcept;
// How often graph memory was trimmed: an executable that had its memory before may have to take it anew.
std::uint64_t graph_trims() noexcept;
void graphs_trimmed() noexcept;
// Notes where a pool lives; `device` null: not charged. `kind`: pools or managed. A pool that is known stays as it is.
void note(CUmemoryPool handle, Device *device, Kind kind) noexcept;
// The same of a new pool: one that is known by this handle has ended behind our back.
void made(CUmemoryPool handle, Device *device, Kind kind) noexcept;
// The device a pool is charged to; null: not known or not charged.
Device *owner(CUmemoryPool handle) noexcept;
// The pool is about to be destroyed, and is not known from here on. Its charge, which is the caller's: `stays` is what
// its live allocations hold, and blocks whose frees are not known complete, until they end; the rest goes back when it
// is destroyed. Then ended(), or put_back() if the driver refuses.
struct Forgotten {
    Bytes charged = 0;
    Bytes kept_charged = 0;
    Pool *pool = nullptr;  // null: it was not known
};
Forgotten forget(CUmemoryPool handle) noexcept;
// Returns how much of the charge is kept in the books: of a managed pool with blocks in use it is `stays`, until the
// last of them is freed, as NVML does not see managed memory and so cannot tell when it has gone. Else 0.
Bytes ended(Pool &pool, Bytes kept_charged = 0) noexcept;
void put_back(Pool &pool) noexcept;

namespace detail {
inline constinit std::atomic<bool> any_blocks{false};  // of managed pools
void note_managed_block(Pool &pool, CUdeviceptr pointer) noexcept;
}  // namespace detail

// Notes a block that a managed pool gave. Does nothing for other pools. Without host memory for the record the end of
// the pool is credited too early.
inline void note_block(Pool &pool, CUdeviceptr pointer) noexcept {
    if (pool.kind == Kind::managed) detail::note_managed_block(pool, pointer);
}
// A block that the program frees, if it is a managed pool's: forgotten before the driver frees it, as afterwards
// another thread may get the same pointer.
class FreedBlock {
  public:
    explicit FreedBlock(CUdeviceptr pointer) noexcept : pointer_(pointer) {
        if (detail::any_blocks.load(std::memory_order_acquire)) find();
    }
    FreedBlock(const FreedBlock &) = delete;
    FreedBlock &operator=(const FreedBlock &) = delete;
    ~FreedBlock() {  // without freed(): the block is known again
        if (pool_) put_back();
    }

    void freed() noexcept {
        if (pool_) end();
    }

  private:
    void find() noexcept;
    void put_back() noexcept;
    void end() noexcept;

    CUdeviceptr pointer_;
    Pool *pool_ = nullptr;
};

// After an allocation: the pool's charge is raised to what it has reserved. Returns by how much, which the caller
// traces. Breaks no capture that the allocation itself has not broken, and of graphs' memory none (cases of the
// contract suite); after anything else the caller is in RelaxedCapture.
Bytes raise(Pool &pool) noexcept;
// Sets the charge of every pool of the device to what it has reserved, higher or lower, where no operation interfered.
void reconcile(Device &device) noexcept;
// What each pool of the device that has reserved anything is charged, by the books; not the memory of graphs. May throw
// std::bad_alloc.
std::vector<Bytes> charges(const Device &device);
// What all pools of the device are charged together, those of managed memory and of graphs among them.
Bytes charged(const Device &device) noexcept;
// Bytes that the pool has reserved and does not use, for one request alone while the claim lives: two that counted on
// the same bytes would make the pool grow.
class Claim {
  public:
    Claim(Pool &pool, Bytes bytes) noexcept;
    ~Claim();
    Claim(const Claim &) = delete;
    Claim &operator=(const Claim &) = delete;
    explicit operator bool() const noexcept { return bytes_ != 0; }  // whether there were so many

  private:
    Pool &pool_;
    Bytes bytes_ = 0;
};

// Has every pool of the device give back what it does not use at the program's own next synchronisation, until it is
// restored: without a stall, and also of memory that the device is not done with yet. (Measured on an H100: all of it.)
void lower_thresholds(Device &device) noexcept;
void restore_thresholds(Device &device) noexcept;

// Trims every pool of the device and returns the bytes that came back. The caller is in RelaxedCapture and has done
// what it may to have frees seen complete.
Bytes trim(Device &device) noexcept;

}  // namespace curb::shim::pools
