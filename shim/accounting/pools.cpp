#include "pools.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "keep_errno.hpp"
#include "leaked.hpp"
#include "recent.hpp"
#include "trace.hpp"

namespace curb::shim::pools {
namespace {

// Records live as long as the process, so that a thread may look at one that another thread has just forgotten: `live`
// and then `handle` say whose it is. Those of destroyed pools are used again.
struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<CUmemoryPool, Pool *> by_handle;
    std::unordered_map<const Device *, Pool *> of_graphs;
    std::unordered_set<Pool *> holding;
    std::unordered_map<CUdeviceptr, Pool *> blocks;  // of managed pools
    std::list<Pool> records;
    Pool *unused = nullptr;
};

Registry &registry() noexcept { return leaked<Registry>(); }

// Where most look-ups end.
constinit Recent<CUmemoryPool, Pool> recent;

constinit std::atomic<std::uint64_t> trims_of_graphs{0};

// Whether there are blocks of managed pools, which few programs have.

// None: the driver does not tell, and what is known of the pool stays.
std::optional<Bytes> reserved(const Pool &pool) noexcept {
    std::uint64_t value = 0;
    const auto ask = [&] {
        return pool.kind == Kind::graphs
                   ? driver().cuDeviceGetGraphMemAttribute(pool.device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                           &value)
                   : driver().cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    };
    return ask_twice(ask) == CUDA_SUCCESS ? std::optional<Bytes>(value) : std::nullopt;
}

CUresult trim(const Pool &pool) noexcept {
    if (pool.kind != Kind::graphs) return ask_twice([&] { return driver().cuMemPoolTrimTo(pool.handle, 0); });
    graphs_trimmed();
    return ask_twice([&] { return driver().cuDeviceGraphMemTrim(pool.device->ordinal); });
}

// The entry of `known` for this key, made if it is not there. The caller holds the lock.
template <class Key>
Pool &entry_for(std::unordered_map<Key, Pool *> &known, Key key, Kind kind, Device *device) {
    const auto [entry, added] = known.try_emplace(key, nullptr);
    if (!added) return *entry->second;
    Pool *pool = registry().unused;
    if (pool) {
        registry().unused = pool->next_unused;
    } else {
        try {
            pool = &registry().records.emplace_back();
        } catch (...) {
            known.erase(entry);
            throw;
        }
    }
    // A record of graphs may have been that of a pool, whose handle the driver gives again.
    CUmemoryPool handle = nullptr;
    if constexpr (std::is_same_v<Key, CUmemoryPool>) handle = key;
    pool->handle.store(handle, std::memory_order_release);
    pool->kind = kind;
    pool->device = device;
    pool->charged.store(0, std::memory_order_relaxed);
    pool->threshold.start_anew();
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

// Copies the list, so that no lock is held while `visit` calls the driver.
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
    // No host memory for the list: this look is left out, the next one has it.
}

// Every pool of the device that has a handle.
template <class Visit>
void each_on(const Device &device, Visit visit) noexcept {
    const auto collect = [&](std::vector<Pool *> &pools) {
        for (const auto &[handle, pool] : registry().by_handle)
            if (pool->device == &device) pools.push_back(pool);
    };
    visit_each(device, collect, visit);
}

// Those that may have memory reserved, that of graphs among them. A program may have thousands of others.
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

// After an allocation from it.
void note_holding(Pool &pool) noexcept try {
    if (pool.kind == Kind::graphs || pool.holding.load(std::memory_order_seq_cst)) return;
    const std::scoped_lock lock(registry().mutex);
    if (!pool.live.load(std::memory_order_seq_cst)) return;
    registry().holding.insert(&pool);
    pool.holding.store(true, std::memory_order_seq_cst);
} catch (...) {
    // No host memory to note it: the next allocation from it does.
}

// The driver has nothing reserved for it. An allocation meanwhile raises the charge before it looks at `holding`.
void note_empty(Pool &pool) noexcept {
    const std::scoped_lock lock(registry().mutex);
    pool.holding.store(false, std::memory_order_seq_cst);
    if (pool.charged.load(std::memory_order_seq_cst) == 0)
        registry().holding.erase(&pool);
    else
        pool.holding.store(true, std::memory_order_seq_cst);
}

// Raises the charge to what the pool has reserved, but not yet the ledger. Only upwards: a thread that read before
// another one's allocation must not lower what that one raised. Returns by how much.
Bytes raise_charge(Pool &pool) noexcept {
    const Bytes now = reserved(pool).value_or(0);
    for (Bytes charged = pool.charged.load(std::memory_order_acquire); now > charged;)
        if (pool.charged.compare_exchange_weak(charged, now, std::memory_order_seq_cst)) return now - charged;
    return 0;
}

// Sets the charge to what the pool has reserved, higher or lower, unless another thread has changed it meanwhile.
void set_charge(Pool &pool) noexcept {
    const BusyCount::Guard settling(pool.settling);  // until the ledger has it too
    Bytes before = pool.charged.load(std::memory_order_acquire);
    const auto now = reserved(pool);
    if (!now) return;
    const Bytes after = *now;
    const bool lowered =
        after < before && pool.charged.compare_exchange_strong(before, after, std::memory_order_acq_rel);
    // An allocation between our reading and our writing found its memory charged already: read once more for it. The
    // ledger learns of both at once, or another request could have what that allocation has taken.
    const auto change = static_cast<std::int64_t>(raise_charge(pool) - (lowered ? before - after : 0));
    if (change > 0) pool.device->ledger.charge(pool.kind, static_cast<Bytes>(change));
    if (change < 0) pool.device->ledger.credit(pool.kind, static_cast<Bytes>(-change));
    trace::books(*pool.device, pool.kind, change);
    if (after == 0 && pool.kind != Kind::graphs) note_empty(pool);
}

// The lock is held.
void use_again(Pool &pool) noexcept {
    pool.destroyed = false;
    pool.next_unused = std::exchange(registry().unused, &pool);
}

// A block of a managed pool is not in use any more. With the last one of a destroyed pool its charge goes back.
void block_gone(Pool &pool) noexcept {
    Bytes left = 0;
    Device *device = nullptr;
    {
        const std::scoped_lock lock(registry().mutex);
        if (--pool.blocks != 0 || !pool.destroyed) return;
        left = std::exchange(pool.kept_charged, 0);
        device = pool.device;
        use_again(pool);
    }
    device->ledger.returned_at_sync.add(left);
    device->ledger.credit(Kind::managed, left);
    trace::books(*device, Kind::managed, -static_cast<std::int64_t>(left));
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
    // A thread that found it not lowered sets it in the driver; what we ask and set must come after.
    setting_.wait();
    std::uint64_t before = 0, none = 0;
    const auto ask = [&] { return driver().cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before); };
    const bool told = ask_twice(ask) == CUDA_SUCCESS;
    {
        const std::scoped_lock lock(mutex_);
        if (told && !program_) program_ = before;
    }
    if (!told) return restore(pool);  // to what the program has set meanwhile, if anything
    // From here on the program is told its own.
    ask_twice([&] { return driver().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none); });
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
        ask_twice([&] { return driver().cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value); });
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

Device *owner(CUmemoryPool handle) noexcept {
    const Pool *pool = known(handle);
    return pool ? pool->device : nullptr;
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
    // The handle is about to become invalid: threads that are asking the driver about it right now finish first.
    pool->visitors.wait();
    const RelaxedCapture relaxed;
    if (!pool->device) return {.pool = pool};
    pool->threshold.restore(handle);  // the driver may refuse to destroy it
    trim(*pool);                      // what is left then is what stays
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
        if (!added) before = std::exchange(entry->second, &pool);  // it was freed behind our back
        ++pool.blocks;
        detail::any_blocks.store(true, std::memory_order_release);
    }
    if (before) block_gone(*before);
} catch (...) {
    // No host memory for the record.
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
    block_gone(*pool_);  // which was counted once more
}

void FreedBlock::end() noexcept { block_gone(*std::exchange(pool_, nullptr)); }

void put_back(Pool &pool) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().by_handle.emplace(pool.handle, &pool);
    registry().holding.insert(&pool);
    pool.holding.store(true, std::memory_order_seq_cst);
    pool.live.store(true, std::memory_order_seq_cst);
} catch (...) {
    // The pool is found again when it is used, as one that was made behind our back.
}

Bytes raise(Pool &pool) noexcept {
    const Bytes raised = raise_charge(pool);
    note_holding(pool);
    if (raised != 0) pool.device->ledger.charge(pool.kind, raised);
    return raised;
}

void reconcile(Device &device) noexcept {
    // Threads that set a charge are two calls of the driver away from telling the ledger; until then a request would be
    // refused for memory that another thread has just released. A child of fork would wait for ever for what its
    // parent's threads were doing.
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
    // Counted before the driver is asked: whoever asks later sees the claim.
    const Bytes claimed = pool.claimed.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
    const Bytes all = reserved(pool).value_or(0);
    const bool told = ask_twice([&] {
                          return driver().cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
                      }) == CUDA_SUCCESS;
    if (told && used <= all && claimed <= all - used)
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
