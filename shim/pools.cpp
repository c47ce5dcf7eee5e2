#include "pools.hpp"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace curb::shim::pools {
namespace {

// Records live as long as the process, so that a thread may use one that another thread has just forgotten.
struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<CUmemoryPool, Pool *> by_handle;
    std::deque<Pool> records;
};

Registry &registry() {
    static Registry &made = *new Registry;
    return made;
}

Bytes attribute(CUmemoryPool pool, CUmemPool_attribute which) noexcept {
    std::uint64_t value = 0;
    return driver().cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS ? value : 0;
}

Pool *known(CUmemoryPool handle) noexcept {
    const std::shared_lock lock(registry().mutex);
    const auto found = registry().by_handle.find(handle);
    return found == registry().by_handle.end() ? nullptr : found->second;
}

Pool *add(CUmemoryPool handle, Device *device) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    auto [entry, added] = registry().by_handle.try_emplace(handle, nullptr);
    if (!added) return entry->second;
    Pool &pool = registry().records.emplace_back();
    pool.handle = handle;
    pool.device = device;
    entry->second = &pool;
    return &pool;
} catch (...) {
    return nullptr;
}

// Copies the list, so that no lock is held while `visit` calls the driver.
template <class Visit>
void each_on(const Device &device, Visit visit) noexcept try {
    std::vector<Pool *> pools;
    {
        const std::shared_lock lock(registry().mutex);
        for (const auto &[handle, pool] : registry().by_handle)
            if (pool->device == &device) pools.push_back(pool);
    }
    for (Pool *pool : pools) {
        pool->visitors.fetch_add(1, std::memory_order_seq_cst);
        if (pool->live.load(std::memory_order_seq_cst)) visit(*pool);
        pool->visitors.fetch_sub(1, std::memory_order_release);
    }
} catch (...) {
    // No host memory for the list: this look is left out, the next one has it.
}

// From `before` to `after`, in the ledger too, unless another thread has changed the charge meanwhile.
void change(Pool &pool, Bytes before, Bytes after) noexcept {
    if (after == before || !pool.charged.compare_exchange_strong(before, after, std::memory_order_acq_rel)) return;
    if (after > before)
        pool.device->ledger.charge(Kind::pools, after - before);
    else
        pool.device->ledger.give_back(Kind::pools, before - after);
}

}  // namespace

Pool *find(CUmemoryPool handle, Device *device) noexcept {
    Pool *pool = known(handle);
    return pool ? pool : add(handle, device);
}

void note(CUmemoryPool handle, Device *device) noexcept { add(handle, device); }

Device *owner(CUmemoryPool handle) noexcept {
    const Pool *pool = known(handle);
    return pool ? pool->device : nullptr;
}

void forget(CUmemoryPool handle) noexcept {
    Pool *pool = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        const auto found = registry().by_handle.find(handle);
        if (found == registry().by_handle.end()) return;
        pool = found->second;
        registry().by_handle.erase(found);
    }
    pool->live.store(false, std::memory_order_seq_cst);
    // The handle is about to become invalid: whoever is asking the driver about it right now finishes first.
    while (pool->visitors.load(std::memory_order_seq_cst) != 0) sched_yield();
    if (pool->device) change(*pool, pool->charged.load(std::memory_order_acquire), 0);
}

void raise(Pool &pool) noexcept {
    const RelaxedCapture relaxed;
    const Bytes reserved = attribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    // Only upwards: a thread that read before another one's allocation must not lower what that one raised.
    for (Bytes charged = pool.charged.load(std::memory_order_acquire); reserved > charged;) {
        if (!pool.charged.compare_exchange_weak(charged, reserved, std::memory_order_acq_rel)) continue;
        pool.device->ledger.charge(Kind::pools, reserved - charged);
        break;
    }
}

void look_again(Device &device) noexcept {
    const RelaxedCapture relaxed;
    each_on(device, [](Pool &pool) {
        const Bytes charged = pool.charged.load(std::memory_order_acquire);
        change(pool, charged, attribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
        // An allocation between our reading and our writing found its memory charged already; read once more for it.
        raise(pool);
    });
}

Bytes idle(const Pool &pool) noexcept {
    const RelaxedCapture relaxed;
    const Bytes reserved = attribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    return reserved - std::min(reserved, attribute(pool.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
}

Bytes trim(Device &device) noexcept {
    Bytes freed = 0;
    each_on(device, [&](Pool &pool) {
        const Bytes before = attribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        if (before == 0 || driver().cuMemPoolTrimTo(pool.handle, 0) != CUDA_SUCCESS) return;
        freed += before - std::min(before, attribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    });
    look_again(device);
    return freed;
}

}  // namespace curb::shim::pools
