// The charges of pools: reads what each pool has reserved, and brings its charge and the ledger up to that.
#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/keep_errno.hpp"
#include "pools/pools.hpp"
#include "pools/registry.hpp"
#include "trace/trace.hpp"

namespace curb::shim::pools {

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

namespace {

constinit std::atomic<std::uint64_t> trims_of_graphs{0};

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
        for (const auto &[handle, pool] : registry().by_handle)
            if (pool->device == &device && pool->holding.load(std::memory_order_seq_cst)) pools.push_back(pool);
        if (const auto found = registry().of_graphs.find(&device); found != registry().of_graphs.end())
            pools.push_back(found->second);
    };
    visit_each(device, collect, visit);
}

// The most that a thread waits for threads that have changed a pool's record but not yet the ledger. Without the wait,
// a request could be refused for memory that they are about to give back. It is bounded: a fork child would wait
// forever for its parent's threads.
constexpr std::uint64_t kMostMs = 1000;

// Marks the requests that have returned. Make it before the pool is read, and call is_read() after the ledger has the
// new charge: then their units go back. Threads may read a pool at the same time, so that none waits for another.
class Unread {
  public:
    explicit Unread(Pool &pool) noexcept : pool_(pool), mark_(pool.used_ahead.load(std::memory_order_seq_cst)) {}
    void is_read() const noexcept {
        const BusyCount::Guard returning(pool_.returning);
        std::uint64_t read = pool_.read_ahead.load(std::memory_order_relaxed);
        while (read < mark_ && !pool_.read_ahead.compare_exchange_weak(read, mark_, std::memory_order_acq_rel)) {
        }
        if (read < mark_) pool_.device->ledger.give_back_ahead(mark_ - read);
    }

  private:
    Pool &pool_;
    std::uint64_t mark_;
};

// Call it after a thread may have raised the pool's charge.
void note_holding(Pool &pool) noexcept {
    if (pool.kind == Kind::graphs || pool.holding.load(std::memory_order_seq_cst)) return;
    const std::scoped_lock lock(registry().mutex);
    if (pool.live.load(std::memory_order_seq_cst)) pool.holding.store(true, std::memory_order_seq_cst);
}

// Call it if the pool had no reserved memory when it was read. A concurrent allocation raises the charge before it
// reads `holding`.
void note_empty(Pool &pool) noexcept {
    {
        const std::scoped_lock lock(registry().mutex);
        const bool was_holding = pool.holding.exchange(false, std::memory_order_seq_cst);
        if (pool.charged.load(std::memory_order_seq_cst) == 0 && !is_unread(pool)) return;
        pool.holding.store(was_holding, std::memory_order_seq_cst);
    }
    // Another thread may have found the pool empty too and removed it, before this one raised the charge.
    note_holding(pool);
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
    const Bytes raised = raise_charge(pool, again.value_or(0));
    const auto change = static_cast<std::int64_t>(raised - (lowered ? before - after : 0));
    if (change > 0) pool.device->ledger.charge(pool.kind, static_cast<Bytes>(change));
    if (change < 0) pool.device->ledger.credit(pool.kind, static_cast<Bytes>(-change));
    trace::books(*pool.device, pool.kind, change);
    if (again) unread.is_read();
    if (after == 0 && pool.kind != Kind::graphs)
        note_empty(pool);
    else if (raised != 0)
        note_holding(pool);  // another thread may have removed it since each_holding() collected it
}

void change_thresholds(Device &device, void (Threshold::*how)(CUmemoryPool) noexcept) noexcept {
    const RelaxedCapture relaxed;
    each_on(device, [=](Pool &pool) { (pool.threshold.*how)(pool.handle); });
}

}  // namespace

Bytes raise_charged(Pool &pool) noexcept {
    const Unread unread(pool);
    const auto now = reserved(pool);
    const Bytes raised = now ? raise_charge(pool, *now) : 0;
    if (raised != 0) pool.device->ledger.charge(pool.kind, raised);
    if (now) unread.is_read();
    return raised;
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

bool ahead_under_way(const Device &device) noexcept {
    // Read before the pools: threads that read a pool mark its units as read, then give them back.
    const std::uint64_t taken = device.ledger.ahead().taken;
    std::uint64_t returned = 0;
    const std::shared_lock lock(registry().mutex);
    for (const auto &[handle, pool] : registry().by_handle)
        if (pool->device == &device) returned += pool->used_ahead.load() - pool->read_ahead.load();
    return returned != taken;
}

void settle_ahead(Device &device) noexcept {
    device.ledger.take_back_ahead();
    if (device.ledger.ahead().bytes() == 0) return;
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    each_on(device, [](Pool &pool) {
        if (is_unread(pool)) trace::books(*pool.device, pool.kind, static_cast<std::int64_t>(raise_charged(pool)));
        pool.returning.wait(kMostMs);
    });
}

void reconcile(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    each_holding(device, [](Pool &pool) {
        set_charge(pool);
        pool.settling.wait(kMostMs);  // they may need two more driver calls
        pool.returning.wait(kMostMs);
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

IdleTry::IdleTry(Pool &pool, Bytes bytes) noexcept : device_(*pool.device), is_mine_(device_.tries_idle.take(kMostMs)) {
    if (!is_mine_) return;
    const RelaxedCapture relaxed;
    const Bytes all = reserved(pool).value_or(0);
    std::uint64_t used = 0;
    has_bytes_ = ask_twice<&Driver::cuMemPoolGetAttribute>(pool.handle.load(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                                           &used) == CUDA_SUCCESS &&
                 used <= all && bytes <= all - used;
}

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
