// The records of all pools, and the functions that the sources of pools/ share. Private to pools/.
#pragma once

#include <array>
#include <list>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "base/lifetime.hpp"
#include "pools/pool.hpp"

namespace curb::shim::pools {

// Records are never freed, so that a thread may read one that another thread has just removed: check `live`, then
// `handle`. The records of destroyed pools are reused.
struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<CUmemoryPool, Pool *> by_handle;
    std::unordered_map<const Device *, Pool *> of_graphs;
    std::unordered_map<CUdeviceptr, Pool *> blocks;           // of managed pools
    std::unordered_map<CUdeviceptr, Pool *> imported_blocks;  // that count for the job: job::imported_from_pool()
    std::list<Pool> records;
    // By the device's ordinal + 1; 0: of no device. A record stays its device's: a request that is still under way
    // while the pool is destroyed returns its bytes to the right ledger.
    std::array<Pool *, devices::kMost + 1> unused{};

    Pool *&unused_of(const Device *device) noexcept {
        return unused[device ? static_cast<std::size_t>(device->ordinal) + 1 : 0];
    }
};

inline Registry &registry() noexcept { return leaked<Registry>(); }

// Returns the pool's reserved bytes; nullopt if the driver fails.
std::optional<Bytes> reserved(const Pool &pool) noexcept;
CUresult trim(const Pool &pool) noexcept;
// Raises the charge of the pool and of the ledger. Returns the increase.
Bytes raise_charged(Pool &pool) noexcept;
// True if requests have returned whose units no reading of the pool covers.
inline bool is_unread(const Pool &pool) noexcept {
    return pool.used_ahead.load(std::memory_order_seq_cst) != pool.read_ahead.load(std::memory_order_seq_cst);
}

}  // namespace curb::shim::pools
