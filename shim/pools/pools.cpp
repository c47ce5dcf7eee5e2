#include "pools.hpp"

#include <algorithm>
#include <array>
#include <list>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "keep_errno.hpp"
#include "lifetime.hpp"
#include "recent.hpp"
#include "trace.hpp"

namespace curb::shim::pools {
namespace {

// Records are never freed, so that a thread may read one that another thread has just removed: check `live`, then
// `handle`. The records of destroyed pools are reused.
struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<CUmemoryPool, Pool *> by_handle;
    std::unordered_map<const Device *, Pool *> of_graphs;
    std::unordered_set<Pool *> holding;
    std::unordered_map<CUdeviceptr, Pool *> blocks;  // of managed pools
    std::list<Pool> records;
    // By the device's ordinal + 1; 0: of no device. A record stays its device's: a request that is still under way
    // while the pool is destroyed returns its bytes to the right ledger.
    std::array<Pool *, devices::kMost + 1> unused{};

    Pool *&unused_of(const Device *device) noexcept {
        return unused[device ? static_cast<std::size_t>(device->ordinal) + 1 : 0];
    }
};

Registry &registry() noexcept { return leaked<Registry>(); }

constinit Recent<CUmemoryPool, Pool> recent;

constinit std::atomic<std::uint64_t> trims_of_graphs{0};

constinit std::array<std::atomic<Pool *>, devices::kMost> current{};
constinit std::atomic<std::uint64_t> version_of_current{0};

// Returns the pool's reserved bytes; nullopt if the driver fails.
std::optional<Bytes> reserved(const Pool &pool) noexcept {
    std::uint64_t value = 0;
    const auto ask = [&] {
        return pool.kind == Kind::graphs
                   ? driver().cuDeviceGetGraphMemAttribute(pool.device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                           &value)
                   : driver().cuMemPoolGetAttribute(pool.handle.load(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    };
    return ask_twice(ask) == CUDA_SUCCESS ? std::optional<Bytes>(value) : std::nullopt;
}

CUresult trim(const Pool &pool) noexcept {
    if (pool.kind != Kind::graphs) return ask_twice<&Driver::cuMemPoolTrimTo>(pool.handle.load(), 0);
    graphs_trimmed();
    return ask_twice<&Driver::cuDeviceGraphMemTrim>(pool.device->ordinal);
}

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

// Calls `visit` for the collected pools. Copies the list first, to hold no lock while `visit` calls the driver.
template <class Collect, class Visit>
void visit_each(const Device &device, Collect collect, Visit visit) noexcept try {
    std::vector<Pool *> pools;
    {
        const std::shared_lock lock(registry().mutex);
        collect(pools);
    }
    for (Pool *pool : pools) {
        const BusyCount::Guard guard(pool->visitors);
        if (pool->live.load(std::memory_order_seq_cst) && pool->device == &device) visit(*pool);
    }
} catch (...) {
    // Out of host memory: skip this time.
}

// Visits every pool of the device that has a handle.
template <class Visit>
void each_on(const Device &device, Visit visit) noexcept {
    const auto collect = [&](std::vector<Pool *> &pools) {
        for (const auto &[handle, pool] : registry().by_handle)
            if (pool->device == &device) pools.push_back(pool);
    };
    visit_each(device, collect, visit);
}

// Visits the pools that may have reserved memory, and graph memory. A program may have thousands of empty pools.
template <class Visit>
void each_holding(const Device &device, Visit visit) noexcept {
    const auto collect = [&](std::vector<Pool *> &pools) {
        for (Pool *pool : registry().holding)
            if (pool->device == &device) pools.push_back(pool);
        if (const auto found = registry().of_graphs.find(&device); found != registry().of_graphs.end())
            pools.push_back(found->second);
    };
    visit_each(device, collect, visit);
}

// Marks the requests that have returned. Make it before the pool is read, and call is_read() after the ledger has the
// new charge: then their units go back. Threads may read a pool at the same time, so that none waits for another.
class Unread {
  public:
    explicit Unread(Pool &pool) noexcept : pool_(pool), mark_(pool.used_ahead.load(std::memory_order_seq_cst)) {}
    void is_read() const noexcept {
        std::uint64_t read = pool_.read_ahead.load(std::memory_order_relaxed);
        while (read < mark_ && !pool_.read_ahead.compare_exchange_weak(read, mark_, std::memory_order_acq_rel)) {
        }
        if (read < mark_) pool_.device->ledger.return_ahead(mark_ - read);
    }

  private:
    Pool &pool_;
    std::uint64_t mark_;
};

bool is_unread(const Pool &pool) noexcept {
    return pool.used_ahead.load(std::memory_order_seq_cst) != pool.read_ahead.load(std::memory_order_seq_cst);
}

// Call it after an allocation from the pool.
void note_holding(Pool &pool) noexcept try {
    if (pool.kind == Kind::graphs || pool.holding.load(std::memory_order_seq_cst)) return;
    const std::scoped_lock lock(registry().mutex);
    if (!pool.live.load(std::memory_order_seq_cst)) return;
    registry().holding.insert(&pool);
    pool.holding.store(true, std::memory_order_seq_cst);
} catch (...) {
    // Out of host memory: the next allocation tries again.
}

// Call it if the pool has no reserved memory. A concurrent allocation raises the charge before it reads `holding`.
void note_empty(Pool &pool) noexcept {
    const std::scoped_lock lock(registry().mutex);
    pool.holding.store(false, std::memory_order_seq_cst);
    if (pool.charged.load(std::memory_order_seq_cst) == 0 && !is_unread(pool))
        registry().holding.erase(&pool);
    else
        pool.holding.store(true, std::memory_order_seq_cst);
}

// Raises the pool's charge, not the ledger's, to its reserved bytes, which were `now`. Never lowers it: this thread may
// have read before another one's allocation raised it. Returns the increase.
Bytes raise_charge(Pool &pool, Bytes now) noexcept {
    for (Bytes charged = pool.charged.load(std::memory_order_acquire); now > charged;)
        if (pool.charged.compare_exchange_weak(charged, now, std::memory_order_seq_cst)) return now - charged;
    return 0;
}

// Sets the charge to the pool's reserved bytes, higher or lower, unless another thread changes it meanwhile.
void set_charge(Pool &pool) noexcept {
    const BusyCount::Guard settling(pool.settling);  // until the ledger has it too
    const Unread unread(pool);
    Bytes before = pool.charged.load(std::memory_order_acquire);
    const auto now = reserved(pool);
    if (!now) return;
    const Bytes after = *now;
    const bool lowered =
        after < before && pool.charged.compare_exchange_strong(before, after, std::memory_order_acq_rel);
    if (lowered) pool.places.forget();
    // An allocation between our read and our write found its bytes charged already, so read again. Apply both changes
    // to the ledger at once; otherwise another request could get that allocation's bytes.
    const auto again = reserved(pool);
    const auto change =
        static_cast<std::int64_t>(raise_charge(pool, again.value_or(0)) - (lowered ? before - after : 0));
    if (change > 0) pool.device->ledger.charge(pool.kind, static_cast<Bytes>(change));
    if (change < 0) pool.device->ledger.credit(pool.kind, static_cast<Bytes>(-change));
    trace::books(*pool.device, pool.kind, change);
    if (again) unread.is_read();
    if (after == 0 && pool.kind != Kind::graphs) note_empty(pool);
}

// Raises the charge of the pool and of the ledger. Returns the increase.
Bytes raise_charged(Pool &pool) noexcept {
    const Unread unread(pool);
    const auto now = reserved(pool);
    const Bytes raised = now ? raise_charge(pool, *now) : 0;
    if (raised != 0) pool.device->ledger.charge(pool.kind, raised);
    if (now) unread.is_read();
    return raised;
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
    device->ledger.returned_at_sync.add(remaining);
    device->ledger.credit(Kind::managed, remaining);
    trace::books(*device, Kind::managed, -static_cast<std::int64_t>(remaining));
}

void change_thresholds(Device &device, void (Threshold::*how)(CUmemoryPool) noexcept) noexcept {
    const RelaxedCapture relaxed;
    each_on(device, [=](Pool &pool) { (pool.threshold.*how)(pool.handle); });
}

}  // namespace

std::uint64_t Threshold::restored() noexcept {
    const std::scoped_lock lock(mutex_);
    return restored_;
}

bool Threshold::settles(std::uint64_t &value, std::uint64_t restored_before) noexcept {
    const std::scoped_lock lock(mutex_);
    if (lowered_ && program_) value = *program_;
    return (lowered_ && program_) || restored_ == restored_before;
}

bool Threshold::keep(std::uint64_t value) noexcept {
    const std::scoped_lock lock(mutex_);
    if (lowered_) program_ = value;
    return lowered_;
}

void Threshold::lower(CUmemoryPool pool) noexcept {
    {
        const std::scoped_lock lock(mutex_);
        if (lowered_) return;
        lowered_ = true;
        program_.reset();
    }
    // A thread that saw lowered_ == false may still be setting it in the driver. Wait, so that we query and set after
    // it.
    setting_.wait();
    std::uint64_t before = 0, none = 0;
    const bool has_value =
        ask_twice<&Driver::cuMemPoolGetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before) == CUDA_SUCCESS;
    {
        const std::scoped_lock lock(mutex_);
        if (has_value && !program_) program_ = before;
    }
    if (!has_value) return restore(pool);  // to the value that the program has set meanwhile, if any
    // From here on get() returns the program's own value.
    ask_twice<&Driver::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
}

void Threshold::restore(CUmemoryPool pool) noexcept {
    for (std::optional<std::uint64_t> set;;) {
        {
            const std::scoped_lock lock(mutex_);
            if (lowered_ && set == program_) {
                lowered_ = false;
                ++restored_;
            }
            if (!lowered_) return;
            set = program_;
        }
        std::uint64_t value = *set;
        ask_twice<&Driver::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    }
}

void Threshold::start_anew() noexcept {
    const std::scoped_lock lock(mutex_);
    lowered_ = false;
    program_.reset();
}

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

Forgotten forget(CUmemoryPool handle) noexcept {
    const KeepErrno keep_errno;
    Pool *pool = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        const auto found = registry().by_handle.find(handle);
        if (found == registry().by_handle.end()) return {};
        pool = found->second;
        registry().by_handle.erase(found);
        registry().holding.erase(pool);
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
    const auto found = registry().blocks.find(pointer_);
    if (found == registry().blocks.end()) return;
    pool_ = found->second;
    registry().blocks.erase(found);
    detail::any_blocks.store(!registry().blocks.empty(), std::memory_order_release);
}

void FreedBlock::put_back() noexcept {
    detail::note_managed_block(*pool_, pointer_);
    block_gone(*pool_);  // note_managed_block() counted it again
}

void FreedBlock::end() noexcept { block_gone(*std::exchange(pool_, nullptr)); }

void put_back(Pool &pool) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().by_handle.emplace(pool.handle, &pool);
    registry().holding.insert(&pool);
    pool.holding.store(true, std::memory_order_seq_cst);
    pool.live.store(true, std::memory_order_seq_cst);
} catch (...) {
    // find() records the pool again at its next use.
}

Bytes raise(Pool &pool) noexcept {
    const Bytes raised = raise_charged(pool);
    note_holding(pool);
    return raised;
}

void Ahead::return_to_ledger(Pool &pool) noexcept { Unread(pool).is_read(); }

void query_keeps(Pool &pool) noexcept {
    std::uint64_t threshold = 0;
    const bool keeps = pool.kind == Kind::pools &&
                       ask_twice<&Driver::cuMemPoolGetAttribute>(pool.handle.load(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                                                 &threshold) == CUDA_SUCCESS &&
                       threshold >= pool.charged.load(std::memory_order_acquire);
    pool.keeps.store(keeps, std::memory_order_relaxed);
}

void threshold_changed(Pool &pool) noexcept {
    pool.keeps.store(false, std::memory_order_relaxed);
    pool.requests.store(0, std::memory_order_relaxed);
}

void settle_ahead(Device &device) noexcept {
    device.ledger.take_back_ahead();
    if (device.ledger.ahead() == 0) return;
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    each_on(device, [](Pool &pool) {
        if (is_unread(pool)) trace::books(*pool.device, pool.kind, static_cast<std::int64_t>(raise_charged(pool)));
    });
}

Pool *current_on(const Device &device) noexcept {
    return current[static_cast<std::size_t>(device.ordinal)].load(std::memory_order_acquire);
}

std::uint64_t current_version() noexcept { return version_of_current.load(std::memory_order_seq_cst); }

void note_current(const Device &device, Pool *pool, std::uint64_t version) noexcept {
    auto &mine = current[static_cast<std::size_t>(device.ordinal)];
    mine.store(pool, std::memory_order_seq_cst);
    // The program has set a pool since the driver was asked, and may have done its own clearing before this store.
    if (current_version() != version) mine.store(nullptr, std::memory_order_seq_cst);
}

void current_changed() noexcept {
    version_of_current.fetch_add(1, std::memory_order_seq_cst);
    for (auto &one : current) one.store(nullptr, std::memory_order_seq_cst);
}

void reconcile(Device &device) noexcept {
    // A thread in set_charge() may need two more driver calls before it updates the ledger. Without waiting for it, a
    // request could be refused for memory that thread has just released. The wait is bounded: a fork child would wait
    // forever for its parent's threads.
    static constexpr std::uint64_t kMostMs = 1000;
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    each_holding(device, [](Pool &pool) {
        set_charge(pool);
        pool.settling.wait(kMostMs);
    });
}

std::vector<Bytes> charges(const Device &device) {
    std::vector<Bytes> out;
    const std::shared_lock lock(registry().mutex);
    for (const auto &[handle, pool] : registry().by_handle)
        if (const Bytes charged = pool->charged.load(std::memory_order_relaxed);
            pool->device == &device && pool->kind == Kind::pools && charged != 0)
            out.push_back(charged);
    return out;
}

Bytes charged(const Device &device) noexcept {
    Bytes sum = 0;
    each_holding(device, [&](const Pool &pool) { sum += pool.charged.load(std::memory_order_relaxed); });
    return sum;
}

Claim::Claim(Pool &pool, Bytes bytes) noexcept : pool_(pool) {
    const RelaxedCapture relaxed;
    std::uint64_t used = 0;
    // Add the claim before asking the driver, so that later requests see it.
    const Bytes claimed = pool.claimed.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
    const Bytes all = reserved(pool).value_or(0);
    const bool has_value = ask_twice<&Driver::cuMemPoolGetAttribute>(
                               pool.handle.load(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS;
    if (has_value && used <= all && claimed <= all - used)
        bytes_ = bytes;
    else
        pool.claimed.fetch_sub(bytes, std::memory_order_acq_rel);
}

Claim::~Claim() { pool_.claimed.fetch_sub(bytes_, std::memory_order_acq_rel); }

Bytes trim(Device &device) noexcept {
    Bytes freed = 0;
    each_holding(device, [&](Pool &pool) {
        const Bytes before = reserved(pool).value_or(0);
        if (before == 0 || trim(pool) != CUDA_SUCCESS) return;
        freed += before - std::min(before, reserved(pool).value_or(before));
    });
    reconcile(device);
    return freed;
}

void lower_thresholds(Device &device) noexcept { change_thresholds(device, &Threshold::lower); }
void restore_thresholds(Device &device) noexcept { change_thresholds(device, &Threshold::restore); }

std::uint64_t graph_trims() noexcept { return trims_of_graphs.load(std::memory_order_acquire); }

void graphs_trimmed() noexcept { trims_of_graphs.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace curb::shim::pools
