#include "cache/cache.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "accounting/allocations.hpp"
#include "base/keep_errno.hpp"
#include "base/lifetime.hpp"
#include "blocks/blocks.hpp"
#include "cache/kept_blocks.hpp"
#include "contexts/captures.hpp"
#include "contexts/contexts.hpp"
#include "device/activity.hpp"
#include "device/wait_queue.hpp"
#include "host/clock.hpp"
#include "host/process_state.hpp"
#include "limits/limits.hpp"
#include "trace/trace.hpp"

namespace curb::shim::cache {
namespace {

using Block = KeptBlocks::Block;
constexpr std::uint64_t kAnyAge = ~std::uint64_t{0};

// The worker's timer, for sweep(). Each free that keeps a block looks here, so it takes no lock.
class Timer {
  public:
    void set(void (*call)()) noexcept { wake_ = call; }
    void wake() const noexcept {
        if (auto *call = wake_.load()) call();
    }
    // Wakes the worker, unless a sweep is due already.
    void start() noexcept {
        if (wake_.load() && !due_ && !due_.exchange(true)) wake();
    }
    // Call it when nothing is kept. False if a block was kept since then: that free did not wake the worker.
    bool stop() noexcept {
        due_ = false;
        return !any_kept() || due_.exchange(true);
    }

  private:
    std::atomic<bool> due_{false};
    std::atomic<void (*)()> wake_{nullptr};
};
constinit Timer timer;

KeptBlocks &kept_blocks_of(const Device &device) noexcept {
    return leaked<std::array<KeptBlocks, devices::kMost>>()[static_cast<std::size_t>(device.ordinal)];
}

policy::Cache terms(const Device &device) noexcept { return limits::in_force(device)->terms.cache; }

// True if blocks may be kept or handed out now. Not during a capture: the driver decides how an allocation or a free
// affects it. Not above the limit: freed memory must go back. Not with green contexts: the memory belongs to the
// primary context, but the work does not.
bool may_reuse(Device &device, Bytes bytes) noexcept {
    const auto now = in_force::snapshot();
    return bytes <= now->of(device.ordinal).terms.cache.max && !device.kept.peers && !captures::any() &&
           !contexts::has_green() && !limits::must_shrink(device, *now);
}

// Waits for the context's work, as cuMemFree does. Like cuMemFree, does not wait for other contexts, which cannot
// access the block (measured on an H200). False if the driver reported an error, a capture began, or the context is
// being destroyed.
bool wait_for_work(CUcontext owner, contexts::Id id) noexcept {
    const CUcontext current = current_context();
    if (!current) return false;  // the driver decides whether to free without one
    // cuMemFree waits for the thread's current context even while another thread destroys it.
    if (owner == current) return captures::synchronise_current_context() == CUDA_SUCCESS;
    const contexts::Pin pin(owner);
    const contexts::Current context(owner);
    return pin.id() == id && context && captures::synchronise_current_context() == CUDA_SUCCESS;
}

// True if the current context has failed, so that the driver would refuse an allocation. Calls the driver (0.3 us) only
// if work was launched since the last wait.
bool context_failed() noexcept {
    if (!detail::work_since_check) return false;
    const RelaxedCapture relaxed;
    const CUresult now = driver().cuStreamQuery(CU_STREAM_LEGACY);
    return now != CUDA_SUCCESS && now != CUDA_ERROR_NOT_READY;
}

// Counts a block that is kept no longer.
void left(const Block &block) noexcept {
    --block.allocation.device->kept.blocks;
    allocations::use_again(block.pointer, block.allocation);
}

// Adds the block to the kept blocks. False if that failed: then the block is recorded as the program's again. Counts it
// first, because drop_context() looks for it only then.
bool put(Device &device, const Block &block) noexcept {
    allocations::keep(block.pointer, block.allocation);
    ++device.kept.blocks;
    if (kept_blocks_of(device).put(block)) return true;
    left(block);
    allocations::remember(block.pointer, block.allocation);
    return false;
}

// True if the driver has no memory at this address. A free that returns an error of earlier work has still freed the
// block. With a sticky error we cannot tell, and the block stays until its context is destroyed.
bool is_freed(CUdeviceptr pointer) noexcept {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    const CUresult result = driver().cuMemGetAddressRange_v2(&start, &bytes, pointer);
    return result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_INVALID_VALUE;
}

// Credits a block whose memory the driver has freed. The program did so long before: the trace shows a change of the
// books. Returns the bytes that came back.
Bytes credit(const Block &block) noexcept {
    const Bytes freed = allocations::credit(block.pointer, block.allocation);
    trace::books(*block.allocation.device, block.allocation.kind, -static_cast<std::int64_t>(freed));
    return freed;
}

// Frees a block that was taken from the kept blocks. The caller holds a RelaxedCapture and a pin of the context.
// Returns the bytes that came back. nullopt if the driver refused; then the block stays kept, as the newest.
std::optional<Bytes> free_now(const Block &block) noexcept {
    Device &device = *block.allocation.device;
    left(block);
    const Ledger::Operation operation(&device.ledger);
    const contexts::Current context(block.allocation.context);
    const auto freed_it = [&] { return blocks::free(block.pointer) == CUDA_SUCCESS || is_freed(block.pointer); };
    if (freed_it() || freed_it()) return credit(block);
    // The program has already freed it, so only curb can try again. A broken context keeps it until it is destroyed.
    put(device, {block.pointer, block.allocation, block.context, now_ms()});
    return std::nullopt;
}

// Frees the oldest block, if the program freed it at `latest_ms` or before. False if there is none or the free failed.
bool free_oldest(Device &device, std::uint64_t latest_ms, Bytes &freed) noexcept {
    KeptBlocks::Pin pin;
    const auto block = kept_blocks_of(device).take_oldest(latest_ms, pin);
    const auto came_back = block ? free_now(*block) : std::nullopt;
    freed += came_back.value_or(0);
    return came_back.has_value();
}

// Frees the oldest blocks until the cache is within the policy's cache.max.
void trim(Device &device) noexcept {
    const auto too_much = [&] {
        const Bytes max = terms(device).max;
        return max == 0 || device.kept.bytes > max;
    };
    if (!too_much()) return;
    const RelaxedCapture relaxed;
    for (Bytes freed = 0; too_much() && free_oldest(device, kAnyAge, freed);) {
    }
}

}  // namespace

CUdeviceptr detail::take(Device &device, CUcontext context, Bytes bytes) noexcept {
    const KeepErrno keep_errno;
    if (!may_reuse(device, bytes)) return 0;
    const contexts::Pin pin(context);
    if (!pin || context_failed()) return 0;
    const auto block = kept_blocks_of(device).take(pin.id(), bytes);
    if (!block) return 0;
    if (!allocations::remember(block->pointer, block->allocation)) {
        const RelaxedCapture relaxed;
        free_now(*block);
        return 0;
    }
    activity::note();
    left(*block);
    return block->pointer;
}

bool keep(CUdeviceptr pointer) noexcept {
    if (!process::active() || !in_force::caches()) return false;
    const KeepErrno keep_errno;
    const auto known = allocations::find(pointer);
    if (!known || !known->reusable || known->is_shared() || !may_reuse(*known->device, known->bytes)) return false;
    Device &device = *known->device;
    // Read before the pointer is forgotten: until then the context cannot be destroyed without dropping the pointer, so
    // this is the block's context and not a later one with the same handle.
    const contexts::Id owner = contexts::id_of(known->context);
    if (owner == 0) return false;
    // Cleared before the wait, so that work launched meanwhile is noted. Only with one context: we wait for no other.
    if (devices::contexts() == 1) detail::work_since_check = false;
    if (!wait_for_work(known->context, owner)) {
        note_work();
        return false;
    }
    const std::uint64_t moment = trace::moment();
    allocations::Removal removal = allocations::remove(pointer);
    if (!removal) return false;  // another thread freed it too: let the driver report the double free
    if (*removal != *known) return false;
    const allocations::Allocation allocation = removal.commit();
    if (!put(device, {pointer, allocation, owner, now_ms()})) return false;
    trace::freed(device, allocation.kind, pointer, allocation.bytes, 0, moment, true);
    activity::note();
    timer.start();
    trim(device);
    wait_queue::changed();  // a waiting request can use it
    return true;
}

bool detail::free_kept(CUdeviceptr pointer) noexcept {
    const KeepErrno keep_errno;
    for (Device &device : devices::all()) {
        if (device.kept.blocks == 0) continue;
        KeptBlocks::Pin pin;
        const auto block = kept_blocks_of(device).take_at(pointer, pin);
        if (!block) continue;
        const RelaxedCapture relaxed;
        free_now(*block);
        return true;
    }
    return false;
}

Bytes detail::free_kept(Device &device, Bytes wanted) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    Bytes freed = 0;
    while (freed < wanted && free_oldest(device, kAnyAge, freed)) {
    }
    return freed;
}

void drop_context(CUcontext context) noexcept {
    if (!any_kept()) return;
    for (Device &device : devices::all()) {
        kept_blocks_of(device).take_all_of(context, [](const Block &block) {
            left(block);
            credit(block);
        });
    }
}

void share(CUdeviceptr address, bool exports) noexcept {
    if (!process::active()) return;
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    CUdeviceptr start = address;
    std::size_t bytes = 0;
    if (driver().cuMemGetAddressRange_v2(&start, &bytes, address) != CUDA_SUCCESS) start = address;
    free_kept(start);
    allocations::share(start, exports);
}

void enforce() noexcept {
    if (!any_kept()) return;
    for (Device &device : devices::all()) trim(device);
    // A shorter idle time may make blocks due earlier.
    timer.wake();
}

std::optional<std::uint64_t> sweep() noexcept {
    for (;;) {
        std::optional<std::uint64_t> next;
        for (Device &device : devices::all()) {
            if (device.kept.blocks == 0) continue;
            const RelaxedCapture relaxed;
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
        if (timer.stop()) return std::nullopt;
    }
}

void on_first_kept(void (*wake)()) noexcept {
    timer.set(wake);
    if (any_kept()) timer.start();
}

}  // namespace curb::shim::cache
