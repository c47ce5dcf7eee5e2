#include "contexts.hpp"

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "allocations.hpp"

namespace curb::shim::contexts {
namespace {

struct Record {
    Device *device = nullptr;
    Bytes cost = 0;
    Bytes stack = 0;
    Bytes first_limit = 0;  // 0: not seen yet
};

struct Books {
    std::mutex mutex;
    std::unordered_map<CUcontext, Record> contexts;
    std::unordered_set<CUcontext> green;
};

// Never destroyed: threads may call the driver until the process is gone.
Books &books() {
    static Books &made = *new Books;
    return made;
}

constinit std::atomic<bool> any_green{false};

// Stacks come in units of 16 bytes a thread (measured on an H200: a limit of 8200 reads back as 8208).
constexpr Bytes kStackUnit = 16;

}  // namespace

bool made(CUcontext context, Device &device, Bytes cost) noexcept try {
    const std::scoped_lock lock(books().mutex);
    return books().contexts.try_emplace(context, Record{&device, cost, 0, 0}).second;
} catch (...) {
    return false;  // no host memory for the record: what it takes shows in the device's figure
}

bool gone(CUcontext context) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return false;
    const Record &record = found->second;
    record.device->ledger.give_back(Kind::contexts, record.cost);
    record.device->ledger.give_back(Kind::stack, record.stack);
    books().contexts.erase(found);
    return true;
}

Bytes stack_for(CUcontext context, Bytes limit, Bytes now) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return 0;  // it was made behind our back
    Record &record = found->second;
    if (record.first_limit == 0) record.first_limit = now;
    const Bytes rounded = allocations::round_up(limit, kStackUnit);
    Bytes taken = 0;
    if (rounded <= record.first_limit) return 0;
    return __builtin_mul_overflow(rounded - record.first_limit, record.device->resident_threads, &taken) ? ~Bytes{0}
                                                                                                         : taken;
}

Bytes stack_of(CUcontext context) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    return found == books().contexts.end() ? 0 : found->second.stack;
}

void set_stack(CUcontext context, Bytes bytes) noexcept {
    const std::scoped_lock lock(books().mutex);
    const auto found = books().contexts.find(context);
    if (found == books().contexts.end()) return;
    Record &record = found->second;
    if (bytes > record.stack) record.device->ledger.charge(Kind::stack, bytes - record.stack);
    if (bytes < record.stack) record.device->ledger.give_back(Kind::stack, record.stack - bytes);
    record.stack = bytes;
}

void note_green(CUcontext context) noexcept try {
    const std::scoped_lock lock(books().mutex);
    books().green.insert(context);
    any_green.store(true, std::memory_order_release);
} catch (...) {
    // What is allocated there is credited when the program frees it, as ever; only the end of the primary context will
    // not be seen to take it along, which the device's figure puts right.
}

bool is_green(CUcontext context) noexcept {
    if (!any_green.load(std::memory_order_acquire)) return false;
    const std::scoped_lock lock(books().mutex);
    return books().green.contains(context);
}

}  // namespace curb::shim::contexts
