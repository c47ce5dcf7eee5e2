#include "pools/pools.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/keep_errno.hpp"
#include "base/recent.hpp"
#include "job/exports.hpp"
#include "pools/registry.hpp"
#include "trace/trace.hpp"

namespace curb::shim::pools {
namespace {

constinit Recent<CUmemoryPool, Pool> recent;

constinit std::atomic<std::uint64_t> version_of_current{0};

// Returns the entry of `known` for this key, and makes it if needed. The caller holds the lock.
template <class Key>
Pool &entry_for(std::unordered_map<Key, Pool *> &known, Key key, Kind kind, Device *device) {
    const auto [entry, added] = known.try_emplace(key, nullptr);
    if (!added) return *entry->second;
    Pool *pool = registry().unused_of(device);
    if (pool) {
        registry().unused_of(device) = pool->next_unused;
    } else {
        try {
            pool = &registry().records.emplace_back();
        } catch (...) {
            known.erase(entry);
            throw;
        }
    }
    // Reset the handle: a record now used for graphs may hold one that the driver returns again for a new pool.
    CUmemoryPool handle = nullptr;
    if constexpr (std::is_same_v<Key, CUmemoryPool>) handle = key;
    pool->handle.store(handle, std::memory_order_release);
    pool->kind = kind;
    pool->device = device;
    pool->charged.store(0, std::memory_order_relaxed);
    pool->threshold.start_anew();
    pool->shared.store(false, std::memory_order_relaxed);
    pool->places.forget();
    threshold_changed(*pool);
    pool->live.store(true, std::memory_order_seq_cst);
    entry->second = pool;
    return *pool;
}

Pool *add(CUmemoryPool handle, Device *device, Kind kind) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    return &entry_for(registry().by_handle, handle, kind, device);
} catch (...) {
    return nullptr;
}

// The caller holds the lock.
void use_again(Pool &pool) noexcept {
    pool.destroyed = false;
    pool.next_unused = std::exchange(registry().unused_of(pool.device), &pool);
}

// Removes a block of a managed pool. The last block of a destroyed pool credits the pool's remaining charge.
void block_gone(Pool &pool) noexcept {
    Bytes remaining = 0;
    Device *device = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        if (--pool.blocks != 0 || !pool.destroyed) return;
        remaining = std::exchange(pool.kept_charged, 0);
        device = pool.device;
        use_again(pool);
    }
    device->ledger.add_returned_at_sync(remaining);
    device->ledger.credit(Kind::managed, remaining);
    trace::books(*device, Kind::managed, -static_cast<std::int64_t>(remaining));
}

job::MemoryKey key_of(const Pool *pool) noexcept { return reinterpret_cast<job::MemoryKey>(pool); }

std::uint64_t name_of(const CUmemPoolPtrExportData &pointer) noexcept {
    return job::hash_of({reinterpret_cast<const char *>(pointer.reserved), sizeof pointer.reserved});  // NOLINT
}

// The caller holds the lock.
void note_whether_any_blocks() noexcept {
    const bool any = !registry().blocks.empty() || !registry().imported_blocks.empty();
    detail::any_blocks.store(any, std::memory_order_release);
}

}  // namespace

Pool *known(CUmemoryPool handle) noexcept {
    Pool *pool = recent.at(handle);
    if (pool && pool->live.load(std::memory_order_acquire) && pool->handle.load(std::memory_order_acquire) == handle)
        return pool;
    const std::shared_lock lock(registry().mutex);
    const auto found = registry().by_handle.find(handle);
    if (found == registry().by_handle.end()) return nullptr;
    recent.note(handle, found->second);
    return found->second;
}

Pool *find(CUmemoryPool handle, Device *device) noexcept {
    Pool *pool = known(handle);
    return pool ? pool : add(handle, device, Kind::pools);
}

Pool *graphs_of(Device &device) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    return &entry_for<const Device *>(registry().of_graphs, &device, Kind::graphs, &device);
} catch (...) {
    return nullptr;
}

void note(CUmemoryPool handle, Device *device, Kind kind) noexcept { add(handle, device, kind); }

void made(CUmemoryPool handle, Device *device, Kind kind) noexcept {
    if (const Forgotten before = forget(handle); before.pool) {
        if (before.charged != 0) {
            before.pool->device->ledger.credit(before.pool->kind, before.charged);
            trace::books(*before.pool->device, before.pool->kind, -static_cast<std::int64_t>(before.charged));
        }
        ended(*before.pool);
    }
    add(handle, device, kind);
}

void share(CUmemoryPool handle) noexcept {
    if (Pool *pool = known(handle)) pool->shared.store(true, std::memory_order_relaxed);
}

bool any_shared() noexcept {
    const std::shared_lock lock(registry().mutex);
    return std::any_of(registry().by_handle.begin(), registry().by_handle.end(),
                       [](const auto &entry) { return entry.second->shared.load(std::memory_order_relaxed); });
}

void exported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer) noexcept {
    Pool *const pool = known(handle);
    if (!pool || !pool->device || !pool->device->ledger.share.joined()) return;
    const RelaxedCapture relaxed;
    const Bytes bytes = reserved(*pool).value_or(pool->charged.load(std::memory_order_acquire));
    job::exported_from_pool(key_of(pool), name_of(pointer), pool->device->ledger.share.row(), bytes);
}

void imported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer, CUdeviceptr address) noexcept {
    Pool *const pool = known(handle);
    if (!pool || !job::imported_from_pool(key_of(pool), name_of(pointer))) return;
    try {
        const std::scoped_lock lock(registry().mutex);
        registry().imported_blocks[address] = pool;
        note_whether_any_blocks();
    } catch (...) {
        // Out of host memory: the pool counts until this process ends.
    }
}

Forgotten forget(CUmemoryPool handle) noexcept {
    const KeepErrno keep_errno;
    Pool *pool = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        const auto found = registry().by_handle.find(handle);
        if (found == registry().by_handle.end()) return {};
        pool = found->second;
        registry().by_handle.erase(found);
        pool->holding.store(false, std::memory_order_seq_cst);
        pool->live.store(false, std::memory_order_seq_cst);
    }
    current_changed();
    // The handle becomes invalid soon: wait for threads that query the driver about it.
    pool->visitors.wait();
    const RelaxedCapture relaxed;
    if (!pool->device) return {.pool = pool};
    pool->threshold.restore(handle);  // the driver may refuse to destroy it
    if (is_unread(*pool)) trace::books(*pool->device, pool->kind, static_cast<std::int64_t>(raise_charged(*pool)));
    if (pool->charged.load(std::memory_order_acquire) == 0) return {.pool = pool};
    trim(*pool);  // the bytes reserved after this stay charged
    const auto kept = reserved(*pool);
    const Bytes charged = pool->charged.exchange(0, std::memory_order_acq_rel);
    return {charged, std::min(charged, kept.value_or(charged)), pool};
}

Bytes ended(Pool &pool, Bytes kept_charged) noexcept {
    job::freed(key_of(&pool));
    const std::scoped_lock lock(registry().mutex);
    if (pool.blocks == 0) {
        use_again(pool);
        return 0;
    }
    pool.destroyed = true;
    return pool.kept_charged = kept_charged;
}

void detail::note_managed_block(Pool &pool, CUdeviceptr pointer) noexcept try {
    Pool *before = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        const auto [entry, added] = registry().blocks.try_emplace(pointer, &pool);
        if (!added) before = std::exchange(entry->second, &pool);  // the old block was freed without curb's knowledge
        ++pool.blocks;
        detail::any_blocks.store(true, std::memory_order_release);
    }
    if (before) block_gone(*before);
} catch (...) {
    // Out of host memory.
}

void FreedBlock::find() noexcept {
    const std::scoped_lock lock(registry().mutex);
    for (auto *const blocks : {&registry().blocks, &registry().imported_blocks}) {
        const auto found = blocks->find(pointer_);
        if (found == blocks->end()) continue;
        pool_ = found->second;
        is_imported_ = blocks == &registry().imported_blocks;
        blocks->erase(found);
        return note_whether_any_blocks();
    }
}

void FreedBlock::put_back() noexcept {
    if (is_imported_) try {
            const std::scoped_lock lock(registry().mutex);
            registry().imported_blocks[pointer_] = pool_;
            return note_whether_any_blocks();
        } catch (...) {
            return;
        }
    detail::note_managed_block(*pool_, pointer_);
    block_gone(*pool_);  // note_managed_block() counted it again
}

void FreedBlock::end() noexcept {
    Pool *const pool = std::exchange(pool_, nullptr);
    if (!is_imported_)
        block_gone(*pool);
    else if (job::closed(key_of(pool)))
        devices::measure_all_soon();
}

void put_back(Pool &pool) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().by_handle.emplace(pool.handle, &pool);
    pool.holding.store(true, std::memory_order_seq_cst);
    pool.live.store(true, std::memory_order_seq_cst);
} catch (...) {
    // find() records the pool again at its next use.
}

std::uint64_t current_version() noexcept { return version_of_current.load(std::memory_order_seq_cst); }

void note_current(const Device &device, Pool *pool, std::uint64_t version) noexcept {
    auto &mine = detail::current[static_cast<std::size_t>(device.ordinal)];
    mine.store(pool, std::memory_order_seq_cst);
    // The program has set a pool since the driver was asked, and may have done its own clearing before this store.
    if (current_version() != version) mine.store(nullptr, std::memory_order_seq_cst);
}

void current_changed() noexcept {
    version_of_current.fetch_add(1, std::memory_order_seq_cst);
    for (auto &one : detail::current) one.store(nullptr, std::memory_order_seq_cst);
}

}  // namespace curb::shim::pools
