#include "contexts/contexts.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <unordered_map>

#include "base/keep_errno.hpp"
#include "base/lifetime.hpp"
#include "base/recent.hpp"
#include "base/waiting.hpp"
#include "host/process_state.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim::contexts {

// Records are never destroyed, so that a thread that found one in `recent` may read it without the lock. By then it may
// belong to another context, as its handle shows. Atomic fields, except `pins`, are written under the lock.
struct Record {
    std::atomic<CUcontext> context{nullptr};  // null if unused
    std::atomic<Id> id{0};
    std::atomic<int> pins{0};
    std::atomic<int> closing{0};  // threads that are about to destroy the context
    Device *device = nullptr;
    bool is_primary = false;
    bool ending = false;    // a thread credits the memory in it
    int users = 1;          // by cuCtxAttach
    Bytes cost = 0;         // charged for the context at its creation
    Bytes first_limit = 0;  // the initial stack limit; 0 if not seen yet
    Bytes stack = 0;        // charged for the stack above the initial limit
    Bytes saved = 0;        // credited of `cost` for a stack below the initial limit
};

namespace {

using Records = std::list<Record>;

struct Registry {
    std::mutex mutex;
    std::unordered_map<CUcontext, Records::iterator> contexts;
    Records records, unused;
    std::unordered_map<CUgreenCtx, Green> greens;
    Id last_id = 0;
};

Registry &registry() noexcept { return leaked<Registry>(); }

constinit std::atomic<bool> any_green{false};

constinit Recent<CUcontext, Record> recent;

// The primary context of each device; null if unknown.
constinit std::array<std::atomic<CUcontext>, devices::kMost> primaries{};

std::atomic<CUcontext> &primary_handle(const Device &device) noexcept {
    return primaries[static_cast<std::size_t>(device.ordinal)];
}

// Returns the context's record; null if it is unknown. The caller holds the lock.
Record *known(CUcontext context) noexcept {
    const auto found = registry().contexts.find(context);
    return found == registry().contexts.end() ? nullptr : &*found->second;
}

// The same, without the lock if the context was used recently. The record may pass to another context at any moment.
Record *find_recent(CUcontext context) noexcept {
    Record *record = recent.at(context);
    if (record && record->context.load(std::memory_order_seq_cst) == context) return record;
    const std::scoped_lock lock(registry().mutex);
    record = known(context);
    if (record) recent.note(context, record);
    return record;
}

bool is_green(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto &greens = registry().greens;
    return std::any_of(greens.begin(), greens.end(),
                       [=](const auto &green) { return green.second.context == context; });
}

// The bytes by which a stack limit's memory exceeds, or falls below, that of the initial limit.
struct Stack {
    Bytes more = 0;
    Bytes less = 0;
};

Stack stack_of(const Record &record, Bytes limit) noexcept {
    // Stacks come in units of 16 bytes a thread (measured on an H200: a limit of 8200 reads back as 8208).
    constexpr Bytes kUnit = 16;
    const Bytes rounded = policy::round_up(limit, kUnit), threads = record.device->resident_threads;
    Bytes taken = 0;
    if (rounded <= record.first_limit) return {0, std::min(record.cost, (record.first_limit - rounded) * threads)};
    return {__builtin_mul_overflow(rounded - record.first_limit, threads, &taken) ? ~Bytes{0} : taken, 0};
}

}  // namespace

Id newest() noexcept {
    const std::scoped_lock lock(registry().mutex);
    return registry().last_id;
}

Added add(Device &device, const New &context) noexcept try {
    auto &[mutex, contexts, records, unused, greens, last_id] = registry();
    const std::scoped_lock lock(mutex);
    if (const Record *there = known(context.context))
        return there->id.load(std::memory_order_seq_cst) <= context.older ? Added::ended : Added::known;
    if (unused.empty()) unused.emplace_back();
    contexts.emplace(context.context, unused.begin());
    records.splice(records.begin(), unused, unused.begin());
    Record &record = records.front();
    record.device = &device;
    record.is_primary = context.is_primary;
    record.ending = false;
    record.users = 1;
    record.cost = context.cost;
    record.first_limit = record.stack = record.saved = 0;
    record.closing.store(0, std::memory_order_seq_cst);
    record.id.store(++last_id, std::memory_order_seq_cst);
    record.context.store(context.context, std::memory_order_seq_cst);
    return Added::recorded;
} catch (...) {
    return Added::no_memory;
}

void attached(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (Record *record = known(context)) ++record->users;
}

bool detached(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    Record *record = known(context);
    return !record || --record->users == 0;
}

bool claim_end(CUcontext context, Id id) noexcept {
    for (;; sleep_us(kMomentUs)) {
        const std::scoped_lock lock(registry().mutex);
        Record *record = known(context);
        const Id there = record ? record->id.load(std::memory_order_seq_cst) : 0;
        if (there == 0 || (id != 0 && there != id)) return false;
        id = there;
        if (record->ending) continue;
        record->ending = true;
        record->closing.fetch_add(1, std::memory_order_seq_cst);  // no new pins
        return true;
    }
}

bool remove(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().contexts.find(context);
    if (found == registry().contexts.end()) return false;
    Record &record = *found->second;
    const Bytes cost = record.cost - record.saved;
    const auto handle = reinterpret_cast<std::uint64_t>(context);
    const std::uint64_t moment = trace::moment();
    if (record.stack != 0) {
        record.device->ledger.credit(Kind::stack, record.stack);
        trace::freed(*record.device, Kind::stack, handle, record.stack, record.stack, moment);
    }
    record.device->ledger.credit(Kind::contexts, cost);
    trace::freed(*record.device, Kind::contexts, handle, record.cost, cost, moment);
    CUcontext primary = context;
    primary_handle(*record.device).compare_exchange_strong(primary, nullptr, std::memory_order_acq_rel);
    record.context.store(nullptr, std::memory_order_seq_cst);
    record.id.store(0, std::memory_order_seq_cst);
    registry().unused.splice(registry().unused.begin(), registry().records, found->second);
    registry().contexts.erase(found);
    return true;
}

// A Pin counts itself, then checks `closing`. A DestroyGuard raises `closing`, then checks the pins. So one of the two
// sees the other.
Pin::Pin(CUcontext context) noexcept {
    Record *record = find_recent(context);
    if (!record) return;
    record->pins.fetch_add(1, std::memory_order_seq_cst);
    // Check the handle last: if the record now belongs to another context, `closing` is that context's.
    if (record->closing.load(std::memory_order_seq_cst) == 0 &&
        record->context.load(std::memory_order_seq_cst) == context) {
        record_ = record;
        id_ = record->id.load(std::memory_order_seq_cst);
    } else {
        record->pins.fetch_sub(1, std::memory_order_seq_cst);
    }
}

Pin::~Pin() {
    if (record_) record_->pins.fetch_sub(1, std::memory_order_seq_cst);
}

DestroyGuard::DestroyGuard(CUcontext context) noexcept : context_(context) {
    if (!context) return;
    // A pinning thread may wait for the device inside a driver call, so yield first and then sleep.
    constexpr int kSpins = 100;
    for (int spins = 0;; ++spins) {
        {
            const std::scoped_lock lock(registry().mutex);
            Record *record = known(context);
            if (!record) return;
            // Another thread may have destroyed it, and a newer context may have the handle.
            if (const Id id = record->id.load(std::memory_order_seq_cst); id != id_) {
                record->closing.fetch_add(1, std::memory_order_seq_cst);
                id_ = id;
            }
            if (record->pins.load(std::memory_order_seq_cst) == 0) return;
        }
        if (spins < kSpins)
            sched_yield();
        else
            sleep_us(kMomentUs);
    }
}

DestroyGuard::~DestroyGuard() {
    if (id_ == 0) return;
    const std::scoped_lock lock(registry().mutex);
    // The record is still this context's only if the driver refused to destroy it.
    Record *record = known(context_);
    if (record && record->id.load(std::memory_order_seq_cst) == id_)
        record->closing.fetch_sub(1, std::memory_order_seq_cst);
}

Current::Current(CUcontext context) noexcept {
    if (current_context() == context) {
        current_ = true;
        return;
    }
    // A call that returns an error of earlier work may still have pushed. Check, so as not to push twice.
    const auto push = [&] {
        return driver().cuCtxPushCurrent_v2(context) == CUDA_SUCCESS || current_context() == context;
    };
    current_ = pushed_ = push() || push();
    if (pushed_) context_ = context;
}

Current::~Current() {
    const auto pop = [&] {
        CUcontext popped = nullptr;
        return driver().cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS || current_context() != context_;
    };
    if (pushed_ && !pop()) pop();
}

Id id_of(CUcontext context) noexcept {
    const Record *record = find_recent(context);
    if (!record) return 0;
    // Ids are unique, so fields read between two equal ids belong to one context.
    const Id id = record->id.load(std::memory_order_seq_cst);
    const bool is_live = record->closing.load(std::memory_order_seq_cst) == 0 &&
                         record->context.load(std::memory_order_seq_cst) == context;
    return is_live && record->id.load(std::memory_order_seq_cst) == id ? id : 0;
}

std::optional<All> on(const Device &device) noexcept {
    std::optional<All> all(std::in_place);
    const std::scoped_lock lock(registry().mutex);
    for (const Record &record : registry().records)
        if (record.device == &device &&
            (record.closing.load(std::memory_order_seq_cst) != 0 ||
             !all->add({record.context.load(std::memory_order_seq_cst), record.id.load(std::memory_order_seq_cst)})))
            return std::nullopt;
    return all;
}

Device *device_of(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const Record *record = known(context);
    return record ? record->device : nullptr;
}

Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept {
    const std::scoped_lock lock(registry().mutex);
    Record *record = known(context);
    if (!record) return 0;  // created without curb's knowledge
    if (record->first_limit == 0) record->first_limit = now;
    const Stack after = stack_of(*record, limit);
    const Bytes gone = record->saved - std::min(record->saved, after.less);  // of `saved`, taken again
    const Bytes more = after.more - std::min(after.more, record->stack);
    return more > ~Bytes{0} - gone ? ~Bytes{0} : more + gone;
}

StackChange stack_set(CUcontext context, Bytes limit) noexcept {
    const std::scoped_lock lock(registry().mutex);
    Record *record = known(context);
    if (!record) return {};
    const Stack after = stack_of(*record, limit);
    const auto change = [&](Kind kind, Bytes from, Bytes to) {
        if (to > from) record->device->ledger.charge(kind, to - from);
        if (to < from) record->device->ledger.credit(kind, from - to);
        return static_cast<std::int64_t>(to - from);
    };
    const StackChange out{change(Kind::stack, record->stack, after.more),
                          change(Kind::contexts, record->cost - record->saved, record->cost - after.less)};
    record->stack = after.more;
    record->saved = after.less;
    return out;
}

std::optional<bool> primary_is_active(const Device &device) noexcept {
    unsigned flags = 0;
    int active = 0;
    return ask_twice<&Driver::cuDevicePrimaryCtxGetState>(device.ordinal, &flags, &active) == CUDA_SUCCESS
               ? std::optional(active != 0)
               : std::nullopt;
}

CUcontext primary_of(const Device &device) noexcept {
    if (!primary_is_active(device).value_or(false)) return nullptr;
    CUcontext context = primary_handle(device).load(std::memory_order_acquire);
    if (context) return context;
    // A green context created it. Do not repeat a failed release: that could destroy the context under the program. At
    // worst a reference is left.
    const KeepErrno keep_errno;
    if (ask_twice<&Driver::cuDevicePrimaryCtxRetain>(&context, device.ordinal) != CUDA_SUCCESS) return nullptr;
    driver().cuDevicePrimaryCtxRelease_v2(device.ordinal);
    return context;
}

void note_primary(const Device &device, CUcontext context) noexcept {
    primary_handle(device).store(context, std::memory_order_release);
}

CUcontext recorded_primary(const Device &device) noexcept {
    const std::scoped_lock lock(registry().mutex);
    for (const Record &record : registry().records)
        if (record.device == &device && record.is_primary) return record.context.load(std::memory_order_seq_cst);
    return nullptr;
}

bool has_green() noexcept { return any_green.load(std::memory_order_acquire); }

void green_made(CUgreenCtx green, const Green &known) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().greens.insert_or_assign(green, known);
} catch (...) {
    // curb will miss the end of the primary context with it. The next reconcile corrects the ledger.
}

void note_green(CUgreenCtx green, CUcontext context) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    registry().greens[green].context = context;
    any_green.store(true, std::memory_order_release);
} catch (...) {
    // Frees are credited as usual. Only memory that ends with the primary context is missed; the next reconcile
    // corrects the ledger.
}

CUcontext owner_of(CUcontext context) noexcept {
    if (!has_green() || !is_green(context)) return context;
    const Device *device = devices::current();
    return device ? primary_of(*device) : context;
}

Green green_gone(CUgreenCtx green) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().greens.find(green);
    if (found == registry().greens.end()) return {};
    const Green known = found->second;
    registry().greens.erase(found);
    return known;
}

}  // namespace curb::shim::contexts

namespace curb::shim {

CUcontext current_context() noexcept {
    CUcontext context = nullptr;
    ask_twice<&Driver::cuCtxGetCurrent>(&context);
    return context;
}

CUcontext owner_of_memory() noexcept { return contexts::owner_of(current_context()); }

MemoryOwner memory_owner() noexcept {
    const CUcontext context = process::active() ? current_context() : nullptr;
    if (!context) return {};
    return {devices::count() == 1 ? &devices::at(0) : devices::current(), contexts::owner_of(context)};
}

}  // namespace curb::shim
