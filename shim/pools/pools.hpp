// The stream-ordered memory pools of this process, and the memory of graphs, with the charge of each.
//
// A pool's charge is CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: the process also holds memory that was freed but that the
// pool keeps. The graphs of a device share one pool without a handle, whose size is
// CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT. Pools grow in units of 32 MiB (measured on an H200; default and explicit
// pools and the memory of graphs alike). Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/table.hpp"
#include "pools/pool.hpp"

namespace curb::shim::pools {

// Returns the pool with this handle; null if unknown.
Pool *known(CUmemoryPool handle) noexcept;
// Returns the device whose default pool this is; null if it is another pool. Calls the driver.
Device *device_of_default(CUmemoryPool handle) noexcept;
// The same as known(), but records an unknown pool: as its device's if it is a default pool, else on `device`. Null if
// host memory is exhausted. Calls the driver for an unknown pool.
Pool *find(CUmemoryPool handle, Device *device) noexcept;
// Returns the pool of the device's graphs. Null if host memory is exhausted.
Pool *graphs_of(Device &device) noexcept;
// Returns the number of graph-memory trims. An executable that got its memory before the last one may allocate again.
std::uint64_t graph_trims() noexcept;
void graphs_trimmed() noexcept;
// Records a pool's device (null: not charged) and kind (pools or managed). Leaves a known pool unchanged.
void note(CUmemoryPool handle, Device *device, Kind kind) noexcept;
// Records a new pool. If the handle is known, that pool ended without curb's knowledge and is credited.
void made(CUmemoryPool handle, Device *device, Kind kind) noexcept;
// Marks the pool as shared with another process, which made it or imports it.
void share(CUmemoryPool handle) noexcept;
bool any_shared() noexcept;
// Record for the job that this process has exported a block of the pool by `pointer`, or that it has imported a block
// by `pointer`, which it sees at `address`.
void exported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer) noexcept;
void imported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer, CUdeviceptr address) noexcept;

// Guards a call that destroys a pool. Removes the pool before the call, because afterwards the driver may give its
// handle to another thread's pool. An operation of the ledger. The destructor puts the pool back unless destroyed() was
// called.
class Removal : NoCopy {
  public:
    explicit Removal(CUmemoryPool handle) noexcept;
    ~Removal();

    // Credits the pool. Returns the device if memory may have come back, null else: measuring would be too slow for
    // thousands of empty pools. A managed pool with blocks in use stays charged until the last one is freed (NVML does
    // not see managed memory, so it cannot show when that returns).
    Device *destroyed() noexcept;

  private:
    CUmemoryPool handle_;
    Pool *pool_ = nullptr;  // null if it is unknown
    std::optional<Ledger::Operation> operation_;
    Bytes kept_ = 0;  // bytes that stay, for live allocations and incomplete frees
};

// A block in use of a managed pool, or one that counts for the job (job::imported_from_pool()).
struct Block {
    Pool *pool = nullptr;
    bool is_imported = false;
};

namespace detail {
using Blocks = Table<CUdeviceptr, Block>;
inline Blocks &blocks() noexcept { return leaked<Blocks>(); }
void note_managed_block(Pool &pool, CUdeviceptr pointer) noexcept;
void block_gone(const Block &block) noexcept;
}  // namespace detail

// Records a block of a managed pool. Does nothing for other pools. If host memory is exhausted, the destroyed pool is
// credited too early.
inline void note_block(Pool &pool, CUdeviceptr pointer) noexcept {
    if (pool.kind == Kind::managed) detail::note_managed_block(pool, pointer);
}
// Guards the free of a block. If it is a managed or an imported pool's, removes its record before the driver frees it,
// because afterwards another thread may get the same pointer. The destructor restores the record unless freed() was
// called.
class FreedBlock : NoCopy {
  public:
    explicit FreedBlock(CUdeviceptr pointer) noexcept : removal_(detail::blocks().remove(pointer)) {}
    void freed() noexcept {
        if (removal_) detail::block_gone(removal_.commit());
    }

  private:
    detail::Blocks::Removal removal_;
};

// Far from the cap, a request of up to kPoolUnit takes a unit that the ledger has reserved ahead, and asks neither for
// the pool's size nor for the limits. The unit stays reserved until the pool has been read: by every 16th request, and
// before a decision near the cap. False if there is no unit, or if the pool does not keep its memory, since its size
// then changes too often.
class Ahead : NoCopy {
  public:
    explicit Ahead(Pool &pool) noexcept : pool_(pool), has_(pool.keeps() && pool.device->ledger.take_ahead()) {}
    ~Ahead() {
        if (has_) pool_.unit_returned();
    }
    explicit operator bool() const noexcept { return has_; }

  private:
    Pool &pool_;
    bool has_;
};
// True if a request that took a unit may still be in the driver.
bool ahead_under_way(const Device &device) noexcept;
// Reads the pools that may have grown by units ahead. Calls the driver.
void read_ahead(Device &device) noexcept;
// The same, and takes back the units that are offered. Afterwards only requests under way have units.
void settle_ahead(Device &device) noexcept;

namespace detail {
inline constinit std::array<std::atomic<Pool *>, devices::kMost> current{};
}
// Returns the pool that serves the device's stream-ordered requests, as last asked: null if the driver must be asked.
inline Pool *current_on(const Device &device) noexcept {
    return detail::current[static_cast<std::size_t>(device.ordinal)];
}
// Asks the driver for that pool. Null if the driver fails, or if host memory is exhausted. `answer`: the driver's
// result. The pool may be another device's, or the host's.
Pool *ask_current(Device &device, CUresult &answer) noexcept;
// Call it after the program may have set another pool.
void current_changed() noexcept;

// Sets the charge of every pool of the device to its reserved bytes.
void reconcile(Device &device) noexcept;
// Returns the charge of each pool of the device that has one, without managed pools and graph memory. May throw
// std::bad_alloc.
std::vector<Bytes> charges(const Device &device);
// Returns the charge of all pools of the device together, with managed pools and graph memory.
Bytes charged(const Device &device) noexcept;
// Guards a request that the limits refuse, while it tries the pool's idle memory. Of each device one request tries at a
// time: if two counted on the same bytes, the pool would grow, and by two sizes at once. Waits for the others' tries a
// second at most.
class IdleTry : NoCopy {
  public:
    IdleTry(Pool &pool, Bytes bytes) noexcept;
    ~IdleTry() {
        if (is_mine_) device_.tries_idle.give_back();
    }
    // True if the request may try: the pool has that many idle bytes.
    explicit operator bool() const noexcept { return has_bytes_; }

  private:
    Device &device_;
    bool is_mine_, has_bytes_ = false;
};

// Makes every pool of the device return its unused memory at the program's next synchronisation, until
// restore_thresholds(). This does not stall, and it includes memory the device is still using now. (Measured on an
// H100: all of it returns.)
void lower_thresholds(Device &device) noexcept;
void restore_thresholds(Device &device) noexcept;

// Trims every pool of the device and returns the freed bytes. The caller holds RelaxedCapture, and should synchronise
// before if it may, so that the driver sees frees as complete.
Bytes trim(Device &device) noexcept;

}  // namespace curb::shim::pools
