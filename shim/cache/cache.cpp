#include "cache.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "activity.hpp"
#include "allocations.hpp"
#include "captures.hpp"
#include "clock.hpp"
#include "contexts.hpp"
#include "keep_errno.hpp"
#include "kept_blocks.hpp"
#include "leaked.hpp"
#include "limits.hpp"
#include "process_state.hpp"
#include "trace.hpp"
#include "wait_queue.hpp"

namespace curb::shim::cache {
namespace detail {
constinit std::atomic<std::size_t> kept{0};
}  // namespace detail

namespace {

using Block = KeptBlocks::Block;
constexpr std::uint64_t kAnyAge = ~std::uint64_t{0};

// Whether sweep() is to come again by itself, and what wakes whoever calls it.
constinit std::atomic<bool> armed{false};
constinit std::atomic<void (*)()> waker{nullptr};

// Never destroyed: threads may free memory until the process is gone.
KeptBlocks &kept_blocks_of(const Device &device) noexcept {
    return leaked<std::array<KeptBlocks, devices::kMost>>()[static_cast<std::size_t>(device.ordinal)];
}

void count(Device &device, bool more) noexcept {
    const std::size_t change = more ? 1 : ~std::size_t{0};
    device.kept.fetch_add(change, std::memory_order_seq_cst);
    detail::kept.fetch_add(change, std::memory_order_seq_cst);
}

policy::Cache terms(const Device &device) noexcept { return limits::in_force(device)->terms.cache; }

// Whether blocks may be kept, or be handed out again, at this moment. During a capture the driver itself is to say what
// an allocation or a free does to it. Beyond the limit, memory that is freed goes back, and none is handed out.
// Where part of a device has a context of its own (a green one), the memory is the primary context's and the work is
// not.
bool usable(Device &device, Bytes bytes) noexcept {
    const auto now = process::snapshot();
    return bytes <= now->of(device.ordinal).terms.cache.max && !device.peers.load(std::memory_order_relaxed) &&
           !captures::any() && !contexts::has_green() && !limits::must_shrink(device, *now);
}

// Waits until the context has done its work, as cuMemFree does; it does not wait for other contexts, which cannot reach
// the block (measured on an H200). False: the driver reported an error, a capture has begun, or it is about to go.
bool finished(CUcontext owner, contexts::Id id) noexcept {
    const CUcontext current = current_context();
    if (!current) return false;  // the driver is to say whether it frees without one
    // The thread's own is what its free would wait for, also while another thread destroys it.
    if (owner == current) return captures::synchronise_current_context() == CUDA_SUCCESS;
    const contexts::Pin visit(owner);
    const contexts::Current context(owner);
    return visit.id() == id && context && captures::synchronise_current_context() == CUDA_SUCCESS;
}

// Whether the current context has failed, so that the driver would refuse an allocation. It is asked (0.3 us) only if
// there was work since it was last waited for.
bool failed() noexcept {
    if (!detail::worked.load(std::memory_order_relaxed)) return false;
    const RelaxedCapture relaxed;
    const CUresult now = driver().cuStreamQuery(CU_STREAM_LEGACY);
    return now != CUDA_SUCCESS && now != CUDA_ERROR_NOT_READY;
}

void arm() noexcept {
    auto *wake = waker.load(std::memory_order_seq_cst);
    if (wake && !armed.load(std::memory_order_seq_cst) && !armed.exchange(true, std::memory_order_seq_cst)) wake();
}

// Among the kept blocks from here on. False: it is not, and in the books as the program's.
bool put(Device &device, const Block &block) noexcept {
    allocations::keep(block.pointer, block.allocation);
    count(device, true);
    if (kept_blocks_of(device).put(block)) return true;
    count(device, false);
    allocations::use_again(block.pointer, block.allocation);
    allocations::remember(block.pointer, block.allocation);
    return false;
}

// Whether the driver has no memory at this address: a free that returned an error of earlier work has freed it all the
// same. Under an error that every call returns it does not say, and the block stays until its context goes.
bool is_gone(CUdeviceptr pointer) noexcept {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    const CUresult result = driver().cuMemGetAddressRange_v2(&start, &bytes, pointer);
    return result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_INVALID_VALUE;
}

// Frees a block that has been taken from the kept blocks; the caller is in RelaxedCapture and visits its context. How
// many bytes of the device came back. None: the driver has refused, and the block is kept on, as the youngest.
std::optional<Bytes> free_now(const Block &block) noexcept {
    Device &device = *block.allocation.device;
    count(device, false);
    allocations::use_again(block.pointer, block.allocation);
    const Ledger::Operation operation(&device.ledger);
    const contexts::Current context(block.allocation.context);
    const auto freed_it = [&] {
        return driver().cuMemFree_v2(block.pointer) == CUDA_SUCCESS || is_gone(block.pointer);
    };
    if (freed_it() || freed_it()) {
        const Bytes freed = allocations::credit(block.pointer, block.allocation);
        trace::books(device, block.allocation.kind, -static_cast<std::int64_t>(freed));
        return freed;
    }
    // The program has forgotten it, so nobody else would free it. A broken context has it until it goes.
    put(device, {block.pointer, block.allocation, block.context, now_ms()});
    return std::nullopt;
}

// Frees the oldest block that was freed by then. False: there is none, or it could not be freed.
bool free_oldest(Device &device, std::uint64_t latest_ms, Bytes &freed) noexcept {
    KeptBlocks::Pin visit;
    const auto block = kept_blocks_of(device).take_oldest(latest_ms, visit);
    const auto came_back = block ? free_now(*block) : std::nullopt;
    freed += came_back.value_or(0);
    return came_back.has_value();
}

// Down to what the policy allows.
void trim(Device &device) noexcept {
    const auto too_much = [&] {
        const Bytes max = terms(device).max;
        return max == 0 || device.cached.load(std::memory_order_relaxed) > max;
    };
    if (!too_much()) return;
    const RelaxedCapture relaxed;
    for (Bytes freed = 0; too_much() && free_oldest(device, kAnyAge, freed);) {
    }
}

}  // namespace

CUdeviceptr detail::take(Device &device, Bytes bytes) noexcept {
    const KeepErrno keep_errno;
    if (!usable(device, bytes)) return 0;
    const contexts::Pin visit(owner_of_memory());
    if (!visit || failed()) return 0;
    const auto block = kept_blocks_of(device).take(visit.id(), bytes);
    if (!block) return 0;
    if (!allocations::remember(block->pointer, block->allocation)) {
        const RelaxedCapture relaxed;
        free_now(*block);
        return 0;
    }
    activity::note();
    count(device, false);
    allocations::use_again(block->pointer, block->allocation);
    return block->pointer;
}

bool keep(CUdeviceptr pointer) noexcept {
    if (!process::active() || !process::caches()) return false;
    const KeepErrno keep_errno;
    const auto known = allocations::find(pointer);
    if (!known || !known->reusable || known->shared || !usable(*known->device, known->bytes)) return false;
    Device &device = *known->device;
    // Asked before the pointer is forgotten: until then its context cannot have gone without taking the pointer along,
    // so this is the block's context, not a later one with the same handle.
    const contexts::Id owner = contexts::id_of(known->context);
    if (owner == 0) return false;
    // From before the wait: work that comes meanwhile is noted after it. Other contexts' work is not waited for.
    if (devices::contexts() == 1) detail::worked.store(false, std::memory_order_relaxed);
    if (!finished(known->context, owner)) {
        note_work();
        return false;
    }
    const std::uint64_t moment = trace::moment();
    const auto allocation = allocations::forget(pointer);
    if (!allocation) return false;  // freed by two threads at once: the driver tells the second
    if (*allocation != *known) {
        allocations::remember(pointer, *allocation);
        return false;
    }
    if (!put(device, {pointer, *allocation, owner, now_ms()})) return false;
    trace::freed(device, allocation->kind, pointer, allocation->bytes, 0, moment, true);
    activity::note();
    arm();
    trim(device);
    wait_queue::changed();  // whoever waits can have it
    return true;
}

bool detail::give_up(CUdeviceptr pointer) noexcept {
    const KeepErrno keep_errno;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        if (device.kept.load(std::memory_order_relaxed) == 0) continue;
        KeptBlocks::Pin visit;
        const auto block = kept_blocks_of(device).take_at(pointer, visit);
        if (!block) continue;
        const RelaxedCapture relaxed;
        free_now(*block);
        return true;
    }
    return false;
}

Bytes detail::give_up(Device &device, Bytes wanted) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    Bytes freed = 0;
    while (freed < wanted && free_oldest(device, kAnyAge, freed)) {
    }
    return freed;
}

void drop_context(CUcontext context) noexcept {
    if (detail::kept.load(std::memory_order_seq_cst) == 0) return;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        kept_blocks_of(device).take_all_of(context, [&](const Block &block) {
            count(device, false);
            allocations::use_again(block.pointer, block.allocation);
            const Bytes freed = allocations::credit(block.pointer, block.allocation);
            trace::books(device, block.allocation.kind, -static_cast<std::int64_t>(freed));
        });
    }
}

void share(CUdeviceptr address) noexcept {
    if (!process::active()) return;
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    CUdeviceptr start = address;
    std::size_t bytes = 0;
    if (driver().cuMemGetAddressRange_v2(&start, &bytes, address) != CUDA_SUCCESS) start = address;
    give_up(start);
    allocations::share(start);
}

void enforce() noexcept {
    if (detail::kept.load(std::memory_order_seq_cst) == 0) return;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) trim(devices::at(ordinal));
    // Blocks may be due earlier now.
    if (auto *wake = waker.load(std::memory_order_seq_cst)) wake();
}

std::optional<std::uint64_t> sweep() noexcept {
    const RelaxedCapture relaxed;
    for (;;) {
        std::optional<std::uint64_t> next;
        for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
            Device &device = devices::at(ordinal);
            if (device.kept.load(std::memory_order_seq_cst) == 0) continue;
            const auto idle = static_cast<std::uint64_t>(terms(device).idle.count());
            const std::uint64_t now = now_ms();
            Bytes freed = 0;
            while (now >= idle && free_oldest(device, now - idle, freed)) {
            }
            if (const auto oldest = kept_blocks_of(device).oldest_ms()) {
                const std::uint64_t due = *oldest + idle, later = now_ms();
                const std::uint64_t wait = std::max<std::uint64_t>(due > later ? due - later : 0, 1);
                next = std::min(next.value_or(wait), wait);
            }
        }
        if (next) return next;
        armed.store(false, std::memory_order_seq_cst);
        // What was kept since then wakes us, unless it came between the look and the line above.
        if (detail::kept.load(std::memory_order_seq_cst) == 0 || armed.exchange(true, std::memory_order_seq_cst))
            return std::nullopt;
    }
}

void on_first_kept(void (*wake)()) noexcept {
    waker.store(wake, std::memory_order_seq_cst);
    if (detail::kept.load(std::memory_order_seq_cst) != 0) arm();
}

}  // namespace curb::shim::cache
