#include "contexts.hpp"

#include <sched.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "allocations.hpp"
#include "leaked.hpp"
#include "trace.hpp"

namespace curb::shim::contexts {
namespace {

struct Record {
    Device *device = nullptr;
    Bytes cost = 0;         // charged for the context as it was made
    Bytes first_limit = 0;  // of the stack then; 0: not seen yet
    Bytes stack = 0;        // charged for what the stack has more than then
    Bytes saved = 0;        // given back of `cost` for what it has less
    Id id = 0;
    int visitors = 0;
    int closing = 0;  // threads that are about to destroy it
};

struct Books {
    std::mutex mutex;
    std::unordered_map<CUcontext, Record> contexts;
    std::unordered_set<CUcontext> green;
    std::unordered_map<CUgreenCtx, Device *> greens;
    Id last_id = 0;
};

// Never destroyed: threads may call the driver until the process is gone.
Books &books() noexcept { return leaked<Books>(); }

constinit std::atomic<bool> any_green{false};

// What the stack of a limit takes more, or less, than that of the beginning.
struct Stack {
    Bytes more = 0;
    Bytes less = 0;
};

Stack stack_of(const Record &record, Bytes limit) noexcept {
    // Stacks come in units of 16 bytes a thread (measured on an H200: a limit of 8200 reads back as 8208).
    constexpr Bytes kUnit = 16;
    const Bytes rounded = allocations::round_up(limit, kUnit), threads = record.device->resident_threads;
    Bytes taken = 0;
    if (rounded <= record.first_limit) return {0, std::min(record.cost, (record.first_limit - rounded) * threads)};
    return {__builtin_mul_overflow(rounded - record.first_limit, threads, &taken) ? ~Bytes{0} : taken, 0};
}

}  // namespace

Made made(CUcontext context, Device &device, Bytes cost) noexcept try {
    const std::scoped_lock lock(books().mutex);
    const auto [entry, added] = books().contexts.try_emplace(context);
    if (!added) return Made::known;
    entry->second.device = &device;
    entry->second.cost = cost;
    entry->second.id = ++books().last_id;
    return Made::recorded;
} catch (...) {
    return Made::no_memory;
}

bool gone(CUcontext context) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return false;
    const Record &record = found->second;
    const Bytes cost = record.cost - record.saved;
    const auto handle = reinterpret_cast<std::uint64_t>(context);
    const std::uint64_t moment = trace::moment();
    if (record.stack != 0) {
        record.device->ledger.give_back(Kind::stack, record.stack);
        trace::freed(*record.device, Kind::stack, handle, record.stack, record.stack, moment);
    }
    record.device->ledger.give_back(Kind::contexts, cost);
    trace::freed(*record.device, Kind::contexts, handle, record.cost, cost, moment);
    books().contexts.erase(found);
    return true;
}

Visit::Visit(CUcontext context) noexcept : context_(context) {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end() || found->second.closing != 0) return;
    ++found->second.visitors;
    id_ = found->second.id;
}

Visit::~Visit() {
    if (id_ == 0) return;
    const std::scoped_lock lock(books().mutex);
    --books().contexts.find(context_)->second.visitors;  // it is there as long as it has visitors
}

Closing::Closing(CUcontext context) noexcept : context_(context) {
    // A visitor may be waiting for the device in one call of the driver, as the destruction would.
    constexpr int kSpins = 100;
    constexpr timespec kMoment{0, 50'000};
    for (int spins = 0;; ++spins) {
        {
            const std::scoped_lock lock(books().mutex);
            const auto found = books().contexts.find(context);
            if (found == books().contexts.end()) return;
            if (id_ == 0) ++found->second.closing;
            id_ = found->second.id;
            if (found->second.visitors == 0) return;
        }
        if (spins < kSpins)
            sched_yield();
        else
            nanosleep(&kMoment, nullptr);
    }
}

Closing::~Closing() {
    if (id_ == 0) return;
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context_);
    // It is gone, or its handle is that of a newer one already, unless the driver refused.
    if (found != books().contexts.end() && found->second.id == id_) --found->second.closing;
}

OnTop::OnTop(CUcontext context) noexcept {
    const CUcontext current = current_context();
    pushed_ = current != context && insist([&] { return driver().cuCtxPushCurrent_v2(context); }) == CUDA_SUCCESS;
    current_ = pushed_ || current == context;
}

OnTop::~OnTop() {
    CUcontext popped = nullptr;
    if (pushed_) insist([&] { return driver().cuCtxPopCurrent_v2(&popped); });
}

Id id_of(CUcontext context) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    return found == books().contexts.end() || found->second.closing != 0 ? 0 : found->second.id;
}

std::optional<All> on(const Device &device) noexcept {
    std::optional<All> all(std::in_place);
    const std::scoped_lock lock(books().mutex);
    for (const auto &[context, record] : books().contexts)
        if (record.device == &device && (record.closing != 0 || !all->add({context, record.id}))) return std::nullopt;
    return all;
}

Device *device_of(CUcontext context) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    return found == books().contexts.end() ? nullptr : found->second.device;
}

Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return 0;  // it was made behind our back
    Record &record = found->second;
    if (record.first_limit == 0) record.first_limit = now;
    const Stack after = stack_of(record, limit);
    const Bytes gone = record.saved - std::min(record.saved, after.less);  // of what had come back
    const Bytes more = after.more - std::min(after.more, record.stack);
    return more > ~Bytes{0} - gone ? ~Bytes{0} : more + gone;
}

StackChange stack_set(CUcontext context, Bytes limit) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return {};
    Record &record = found->second;
    const Stack after = stack_of(record, limit);
    const auto change = [&](Kind kind, Bytes from, Bytes to) {
        if (to > from) record.device->ledger.charge(kind, to - from);
        if (to < from) record.device->ledger.give_back(kind, from - to);
        return static_cast<std::int64_t>(to - from);
    };
    const StackChange out{change(Kind::stack, record.stack, after.more),
                          change(Kind::contexts, record.cost - record.saved, record.cost - after.less)};
    record.stack = after.more;
    record.saved = after.less;
    return out;
}

void note_green(CUcontext context) noexcept try {
    const std::scoped_lock lock(books().mutex);
    books().green.insert(context);
    any_green.store(true, std::memory_order_release);
} catch (...) {
    // What is allocated there is credited when the program frees it, as ever; only the end of the primary context will
    // not be seen to take it along, which the device's figure puts right.
}

bool has_green() noexcept { return any_green.load(std::memory_order_acquire); }

bool is_green(CUcontext context) noexcept {
    if (!has_green()) return false;
    const std::scoped_lock lock(books().mutex);
    return books().green.contains(context);
}

void green_made(CUgreenCtx green, Device &device) noexcept try {
    const std::scoped_lock lock(books().mutex);
    books().greens.insert_or_assign(green, &device);
} catch (...) {
    // The end of the primary context with it will not be seen, which the device's figure puts right.
}

Device *green_gone(CUgreenCtx green) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().greens.find(green);
    if (found == books().greens.end()) return nullptr;
    Device *device = found->second;
    books().greens.erase(found);
    return device;
}

}  // namespace curb::shim::contexts
