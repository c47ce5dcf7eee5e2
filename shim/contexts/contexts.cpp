#include "contexts/contexts.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "base/keep_errno.hpp"
#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "host/process_state.hpp"
#include "policy/values/granule.hpp"
#include "trace/trace.hpp"

namespace curb::shim::contexts {

namespace {

struct Record {
    Device *device = nullptr;
    Id id = 0;
    bool is_primary = false;
    bool ending = false;  // a thread credits the memory in it
    int pins = 0;
    int closing = 0;        // threads that are about to destroy the context
    int users = 1;          // by cuCtxAttach
    Bytes cost = 0;         // charged for the context at its creation
    Bytes first_limit = 0;  // the initial stack limit; 0 if not seen yet
    Bytes stack = 0;        // charged for the stack above the initial limit
    Bytes saved = 0;        // credited of `cost` for a stack below the initial limit
};

struct Registry {
    std::mutex mutex;
    std::unordered_map<CUcontext, Record> records;
    std::array<CUcontext, devices::kMost> primaries{};  // the primary context of each device; null if unknown
    Id last_id = 0;
};

Registry &registry() noexcept { return leaked<Registry>(); }
Greens &greens() noexcept { return leaked<Greens>(); }

constinit std::atomic<bool> any_green{false};  // read by every allocation

// Holds the lock of the registry.
class Locked : NoCopy {
  public:
    Locked() noexcept : lock_(registry().mutex) {}
    Registry *operator->() const noexcept { return &registry(); }

    // Returns the context's record; null if it is unknown.
    [[nodiscard]] Record *find(CUcontext context) const noexcept {
        const auto found = registry().records.find(context);
        return found == registry().records.end() ? nullptr : &found->second;
    }
    // The same, if the handle is still that of the context with this Id.
    [[nodiscard]] Record *find(CUcontext context, Id id) const noexcept {
        Record *record = find(context);
        return record && record->id == id ? record : nullptr;
    }
    [[nodiscard]] CUcontext &primary(const Device &device) const noexcept {
        return registry().primaries[static_cast<std::size_t>(device.ordinal)];
    }

  private:
    const std::scoped_lock<std::mutex> lock_;
};

bool is_green(CUcontext context) noexcept {
    return greens().any_of([=](const Green &green) { return green.context == context; });
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

Id newest() noexcept { return Locked()->last_id; }

Added add(Device &device, const New &context) noexcept try {
    const Locked contexts;
    const auto [entry, is_new] = contexts->records.try_emplace(context.context);
    Record &record = entry->second;
    if (!is_new) return record.id <= context.older ? Added::ended : Added::known;
    record.device = &device;
    record.id = ++contexts->last_id;
    record.is_primary = context.is_primary;
    record.cost = context.cost;
    return Added::recorded;
} catch (...) {
    return Added::no_memory;
}

void attached(CUcontext context) noexcept {
    const Locked contexts;
    if (Record *record = contexts.find(context)) ++record->users;
}

bool detached(CUcontext context) noexcept {
    const Locked contexts;
    Record *record = contexts.find(context);
    return !record || --record->users == 0;
}

bool claim_end(CUcontext context, Id id) noexcept {
    for (;; sleep_us(kMomentUs)) {
        const Locked contexts;
        Record *record = contexts.find(context);
        if (!record || (id != 0 && record->id != id)) return false;
        id = record->id;
        if (record->ending) continue;
        record->ending = true;
        ++record->closing;  // no new pins
        return true;
    }
}

bool remove(CUcontext context) noexcept {
    const std::uint64_t moment = trace::moment();
    Record gone;
    {
        const Locked contexts;
        const Record *record = contexts.find(context);
        if (!record) return false;
        gone = *record;
        contexts->records.erase(context);
        CUcontext &primary = contexts.primary(*gone.device);
        if (primary == context) primary = nullptr;
    }
    const Bytes cost = gone.cost - gone.saved;
    const auto handle = reinterpret_cast<std::uint64_t>(context);
    if (gone.stack != 0) {
        gone.device->ledger.credit(Kind::stack, gone.stack);
        trace::freed(*gone.device, Kind::stack, handle, gone.stack, gone.stack, moment);
    }
    gone.device->ledger.credit(Kind::contexts, cost);
    trace::freed(*gone.device, Kind::contexts, handle, gone.cost, cost, moment);
    return true;
}

Pin::Pin(CUcontext context) noexcept : context_(context) {
    const Locked contexts;
    Record *record = contexts.find(context);
    if (!record || record->closing != 0) return;
    ++record->pins;
    id_ = record->id;
}

Pin::~Pin() {
    if (id_ == 0) return;
    const Locked contexts;
    if (Record *record = contexts.find(context_, id_)) --record->pins;
}

DestroyGuard::DestroyGuard(CUcontext context) noexcept : context_(context) {
    if (!context) return;
    // A pinning thread may wait for the device inside a driver call, so yield first and then sleep.
    constexpr int kSpins = 100;
    for (int spins = 0;; ++spins) {
        {
            const Locked contexts;
            Record *record = contexts.find(context);
            if (!record) return;
            // Another thread may have destroyed it, and a newer context may have the handle.
            if (record->id != id_) {
                ++record->closing;
                id_ = record->id;
            }
            if (record->pins == 0) return;
        }
        if (spins < kSpins)
            sched_yield();
        else
            sleep_us(kMomentUs);
    }
}

DestroyGuard::~DestroyGuard() {
    if (id_ == 0) return;
    const Locked contexts;
    // The record is still there only if the driver refused to destroy the context.
    if (Record *record = contexts.find(context_, id_)) --record->closing;
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
    const Locked contexts;
    const Record *record = contexts.find(context);
    return record && record->closing == 0 ? record->id : 0;
}

std::optional<std::vector<Known>> on(const Device &device) noexcept try {
    std::vector<Known> all;
    const Locked contexts;
    for (const auto &[context, record] : contexts->records) {
        if (record.device != &device) continue;
        if (record.closing != 0) return std::nullopt;
        all.push_back({context, record.id});
    }
    return all;
} catch (...) {
    return std::nullopt;
}

Device *device_of(CUcontext context) noexcept {
    const Locked contexts;
    const Record *record = contexts.find(context);
    return record ? record->device : nullptr;
}

Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept {
    const Locked contexts;
    Record *record = contexts.find(context);
    if (!record) return 0;  // created without curb's knowledge
    if (record->first_limit == 0) record->first_limit = now;
    const Stack after = stack_of(*record, limit);
    const Bytes gone = record->saved - std::min(record->saved, after.less);  // of `saved`, taken again
    const Bytes more = after.more - std::min(after.more, record->stack);
    return more > ~Bytes{0} - gone ? ~Bytes{0} : more + gone;
}

StackChange stack_set(CUcontext context, Bytes limit) noexcept {
    Device *device = nullptr;
    StackChange change;
    {
        const Locked contexts;
        Record *record = contexts.find(context);
        if (!record) return {};
        const Stack after = stack_of(*record, limit);
        device = record->device;
        change.stack = static_cast<std::int64_t>(after.more - record->stack);
        change.context = static_cast<std::int64_t>(record->saved - after.less);
        record->stack = after.more;
        record->saved = after.less;
    }
    const auto apply = [&](Kind kind, std::int64_t bytes) {
        if (bytes > 0) device->ledger.charge(kind, static_cast<Bytes>(bytes));
        if (bytes < 0) device->ledger.credit(kind, static_cast<Bytes>(-bytes));
    };
    apply(Kind::stack, change.stack);
    apply(Kind::contexts, change.context);
    return change;
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
    CUcontext context = Locked().primary(device);
    if (context) return context;
    // A green context created it. Do not repeat a failed release: that could destroy the context under the program. At
    // worst a reference is left.
    const KeepErrno keep_errno;
    if (ask_twice<&Driver::cuDevicePrimaryCtxRetain>(&context, device.ordinal) != CUDA_SUCCESS) return nullptr;
    driver().cuDevicePrimaryCtxRelease_v2(device.ordinal);
    return context;
}

void note_primary(const Device &device, CUcontext context) noexcept { Locked().primary(device) = context; }

CUcontext recorded_primary(const Device &device) noexcept {
    Id newest = 0;  // one that has ended may be there still
    CUcontext primary = nullptr;
    const Locked contexts;
    for (const auto &[context, record] : contexts->records) {
        if (record.device != &device || !record.is_primary || record.id < newest) continue;
        newest = record.id;
        primary = context;
    }
    return primary;
}

bool has_green() noexcept { return any_green; }

void green_made(CUgreenCtx green, Device &device) noexcept try {
    greens().put(green, {&device, nullptr});
} catch (...) {
    // curb will miss the end of the primary context with it. The next reconcile corrects the ledger.
}

void note_green(CUgreenCtx green, CUcontext context) noexcept try {
    greens().make_and_change(green, [=](Green &record) {
        record.context = context;
        return true;
    });
    any_green = true;
} catch (...) {
    // Frees are credited as usual. Only memory that ends with the primary context is missed; the next reconcile
    // corrects the ledger.
}

Greens::Removal remove_green(CUgreenCtx green) noexcept { return greens().remove(green); }

CUcontext owner_of(CUcontext context) noexcept {
    if (!has_green() || !is_green(context)) return context;
    const Device *device = devices::current();
    return device ? primary_of(*device) : context;
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
