#include "pools/pools.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/keep_errno.hpp"
#include "job/exports.hpp"
#include "trace/trace.hpp"

namespace curb::shim::pools {
namespace {

// The lock is held for a few look-ups. A new pool's record is started under it.
struct Registry {
    std::mutex mutex;
    std::unordered_map<CUmemoryPool, Pool *> by_handle;
    std::array<Pool *, devices::kMost> of_graphs{};
    std::uint64_t current_changes = 0;
    Pool *newest = nullptr;  // of all records
    Pool *unused = nullptr;

    // The caller of these holds the lock.
    Pool *find(CUmemoryPool handle) noexcept {
        const auto found = by_handle.find(handle);
        return found == by_handle.end() ? nullptr : found->second;
    }
    Pool *find_or_add(CUmemoryPool handle, Device *device, Kind kind) noexcept;
    // Returns a record for a new pool; null if host memory is exhausted.
    Pool *record(CUmemoryPool handle, Device *device, Kind kind) noexcept;
    void use_again(Pool &pool) noexcept {
        pool.destroyed = false;
        pool.next_unused = std::exchange(unused, &pool);
    }
};

Registry &registry() noexcept { return leaked<Registry>(); }

constinit std::atomic<std::uint64_t> trims_of_graphs{0};

Pool *Registry::record(CUmemoryPool handle, Device *device, Kind kind) noexcept {
    Pool **place = &unused;
    while (*place && ((*place)->device != device || (*place)->kind != kind)) place = &(*place)->next_unused;
    Pool *pool = *place;
    if (pool)
        *place = pool->next_unused;
    else if ((pool = new (std::nothrow) Pool(device, kind, newest)))
        newest = pool;
    if (!pool) return nullptr;
    pool->shared = false;
    pool->start(handle);
    return pool;
}

Pool *Registry::find_or_add(CUmemoryPool handle, Device *device, Kind kind) noexcept try {
    const auto [entry, added] = by_handle.try_emplace(handle, nullptr);
    if (added) entry->second = record(handle, device, kind);
    Pool *const pool = entry->second;
    if (!pool) by_handle.erase(entry);
    return pool;
} catch (...) {
    return nullptr;
}

// Calls `act` for each pool of the device that `wanted` accepts.
template <class Wanted, class Act>
void each(const Device &device, Wanted wanted, Act act) {
    Pool *pool = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        pool = registry().newest;
    }
    for (; pool; pool = pool->next)
        if (pool->device == &device && wanted(*pool)) act(*pool);
}

template <class Act>
void each_holding(const Device &device, Act act) {
    each(
        device, [](const Pool &pool) { return pool.may_hold(); }, act);
}

void change_thresholds(Device &device, void (Threshold::*how)(CUmemoryPool) noexcept) noexcept {
    const RelaxedCapture relaxed;
    each(
        device, [](const Pool &pool) { return pool.kind != Kind::graphs; },
        [=](Pool &pool) {
            if (const Pool::Visit visit(pool); visit) (pool.threshold.*how)(visit.handle());
        });
}

job::MemoryKey key_of(const Pool *pool) noexcept { return reinterpret_cast<job::MemoryKey>(pool); }

std::uint64_t name_of(const CUmemPoolPtrExportData &pointer) noexcept {
    return job::hash_of({reinterpret_cast<const char *>(pointer.reserved), sizeof pointer.reserved});  // NOLINT
}

}  // namespace

Pool *known(CUmemoryPool handle) noexcept {
    const std::scoped_lock lock(registry().mutex);
    return registry().find(handle);
}

Device *device_of_default(CUmemoryPool handle) noexcept {
    const RelaxedCapture relaxed;
    for (Device &device : devices::all()) {
        CUmemoryPool own = nullptr;
        const auto ask = [&] { return driver().cuDeviceGetDefaultMemPool(&own, device.ordinal); };
        if (ask_twice(ask) == CUDA_SUCCESS && own == handle) return &device;
    }
    return nullptr;
}

// A program that made or imported the pool, or got it by cuMemGet*MemPool, has it recorded. It has the other devices'
// default pools by calls that curb does not wrap.
Pool *find(CUmemoryPool handle, Device *device) noexcept {
    if (Pool *const pool = known(handle)) return pool;
    Device *const own = device_of_default(handle);
    const std::scoped_lock lock(registry().mutex);
    return registry().find_or_add(handle, own ? own : device, Kind::pools);
}

Pool *graphs_of(Device &device) noexcept {
    const std::scoped_lock lock(registry().mutex);
    Pool *&pool = registry().of_graphs[static_cast<std::size_t>(device.ordinal)];
    return pool ? pool : pool = registry().record(nullptr, &device, Kind::graphs);
}

void note(CUmemoryPool handle, Device *device, Kind kind) noexcept {
    const std::scoped_lock lock(registry().mutex);
    registry().find_or_add(handle, device, kind);
}

void made(CUmemoryPool handle, Device *device, Kind kind) noexcept {
    Removal(handle).destroyed();
    note(handle, device, kind);
}

void share(CUmemoryPool handle) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (Pool *pool = registry().find(handle)) pool->shared = true;
}

bool any_shared() noexcept {
    const std::scoped_lock lock(registry().mutex);
    return std::any_of(registry().by_handle.begin(), registry().by_handle.end(),
                       [](const auto &entry) { return entry.second->shared; });
}

void exported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer) noexcept {
    Pool *const pool = known(handle);
    if (!pool || !pool->device || !pool->device->ledger.share.joined()) return;
    const RelaxedCapture relaxed;
    const Bytes bytes = pool->reserved().value_or(pool->charged());
    job::exported_from_pool(key_of(pool), name_of(pointer), pool->device->ledger.share.row(), bytes);
}

void imported_block(CUmemoryPool handle, const CUmemPoolPtrExportData &pointer, CUdeviceptr address) noexcept {
    Pool *const pool = known(handle);
    if (!pool || !job::imported_from_pool(key_of(pool), name_of(pointer))) return;
    try {
        detail::blocks().put(address, {pool, true});
    } catch (...) {
        // Out of host memory: the pool counts until this process ends.
    }
}

Removal::Removal(CUmemoryPool handle) noexcept : handle_(handle) {
    const KeepErrno keep_errno;
    {
        const std::scoped_lock lock(registry().mutex);
        pool_ = registry().find(handle);
        if (!pool_) return;
        registry().by_handle.erase(handle);
    }
    if (pool_->device) operation_.emplace(&pool_->device->ledger);
    current_changed();
    kept_ = pool_->stop();
}

Removal::~Removal() {
    if (!pool_) return;
    const KeepErrno keep_errno;
    {
        const std::scoped_lock lock(registry().mutex);
        try {
            registry().by_handle.emplace(handle_, pool_);
        } catch (...) {
            // find() records the pool again at its next use.
        }
    }
    pool_->resume();
}

Device *Removal::destroyed() noexcept {
    Pool *const pool = std::exchange(pool_, nullptr);
    if (!pool) return nullptr;
    job::freed(key_of(pool));
    const Bytes charged = pool->end();
    Bytes in_use = 0;
    {
        const std::scoped_lock lock(registry().mutex);
        pool->destroyed = pool->blocks != 0;
        if (pool->destroyed)
            in_use = pool->kept_charged = kept_;
        else
            registry().use_again(*pool);
    }
    if (charged == 0) return nullptr;
    Device &device = *pool->device;
    // Without NVML we could not see the memory return, so credit it now.
    const bool has_nvml = pool->kind != Kind::managed && device.has_nvml;
    const Bytes to_overhead = has_nvml ? kept_ : 0;
    if (!has_nvml) device.ledger.add_returned_at_sync(kept_ - in_use);
    device.ledger.leave_to_overhead(pool->kind, to_overhead);
    device.ledger.credit(pool->kind, charged - in_use - to_overhead);
    trace::books(device, pool->kind, -static_cast<std::int64_t>(charged - in_use));
    trace::books(device, Kind::overhead, static_cast<std::int64_t>(to_overhead));
    return &device;
}

void detail::note_managed_block(Pool &pool, CUdeviceptr pointer) noexcept {
    {
        const std::scoped_lock lock(registry().mutex);
        ++pool.blocks;
    }
    const Block block{&pool, false};
    try {
        // A former block was freed without curb's knowledge.
        if (const auto before = blocks().put(pointer, block)) block_gone(*before);
    } catch (...) {
        block_gone(block);  // out of host memory
    }
}

// A block has been freed. The last block of a managed pool that was destroyed credits the pool's remaining charge.
void detail::block_gone(const Block &block) noexcept {
    Pool &pool = *block.pool;
    if (block.is_imported) {
        if (job::closed(key_of(&pool))) devices::measure_all_soon();
        return;
    }
    Bytes remaining = 0;
    {
        const std::scoped_lock lock(registry().mutex);
        if (--pool.blocks != 0 || !pool.destroyed) return;
        remaining = std::exchange(pool.kept_charged, 0);
        registry().use_again(pool);
    }
    Ledger &ledger = pool.device->ledger;
    ledger.add_returned_at_sync(remaining);
    ledger.credit(Kind::managed, remaining);
    trace::books(*pool.device, Kind::managed, -static_cast<std::int64_t>(remaining));
}

bool ahead_under_way(const Device &device) noexcept {
    // Read before the pools: their readers return the units.
    const std::uint64_t taken = device.ledger.ahead().taken;
    std::uint64_t returned = 0;
    each_holding(device, [&](const Pool &pool) { returned += pool.unread(); });
    return returned != taken;
}

void read_ahead(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    // A library may have set a pool without curb's knowledge; then the units' memory is there.
    CUresult answer = CUDA_SUCCESS;
    Pool *const current = ask_current(device, answer);
    if (current && current->device) current->catch_up();
    each_holding(device, [](Pool &pool) {
        if (pool.unread() != 0) pool.catch_up();
    });
}

void settle_ahead(Device &device) noexcept {
    device.ledger.take_back_ahead();
    if (device.ledger.ahead().bytes() != 0) read_ahead(device);
}

Pool *ask_current(Device &device, CUresult &answer) noexcept {
    const auto changes = [] {
        const std::scoped_lock lock(registry().mutex);
        return registry().current_changes;
    };
    const std::uint64_t before = changes();
    CUmemoryPool handle = nullptr;
    answer = ask_twice([&] { return driver().cuDeviceGetMemPool(&handle, device.ordinal); });
    if (answer != CUDA_SUCCESS) return nullptr;
    const std::scoped_lock lock(registry().mutex);
    Pool *const pool = registry().find_or_add(handle, &device, Kind::pools);
    if (registry().current_changes == before) detail::current[static_cast<std::size_t>(device.ordinal)] = pool;
    return pool;
}

void current_changed() noexcept {
    const std::scoped_lock lock(registry().mutex);
    ++registry().current_changes;
    for (auto &one : detail::current) one = nullptr;
}

void reconcile(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    each_holding(device, [](Pool &pool) { pool.settle(); });
}

std::vector<Bytes> charges(const Device &device) {
    std::vector<Bytes> out;
    each_holding(device, [&](const Pool &pool) {
        if (const Bytes charged = pool.charged(); pool.kind == Kind::pools && charged != 0) out.push_back(charged);
    });
    return out;
}

Bytes charged(const Device &device) noexcept {
    Bytes sum = 0;
    each_holding(device, [&](const Pool &pool) { sum += pool.charged(); });
    return sum;
}

IdleTry::IdleTry(Pool &pool, Bytes bytes) noexcept : device_(*pool.device), is_mine_(false) {
    // The most that a thread waits: a fork child would wait forever for its parent's threads.
    constexpr std::uint64_t kMostMs = 1000;
    is_mine_ = device_.tries_idle.take(kMostMs);
    if (!is_mine_) return;
    const RelaxedCapture relaxed;
    const Bytes all = pool.reserved().value_or(0);
    const Pool::Visit visit(pool);
    std::uint64_t used = 0;
    has_bytes_ = visit &&
                 ask_twice<&Driver::cuMemPoolGetAttribute>(visit.handle(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) ==
                     CUDA_SUCCESS &&
                 used <= all && bytes <= all - used;
}

Bytes trim(Device &device) noexcept {
    Bytes freed = 0;
    each_holding(device, [&](Pool &pool) { freed += pool.trim(); });
    reconcile(device);
    return freed;
}

void lower_thresholds(Device &device) noexcept { change_thresholds(device, &Threshold::lower); }
void restore_thresholds(Device &device) noexcept { change_thresholds(device, &Threshold::restore); }

std::uint64_t graph_trims() noexcept { return trims_of_graphs; }
void graphs_trimmed() noexcept { ++trims_of_graphs; }

}  // namespace curb::shim::pools
