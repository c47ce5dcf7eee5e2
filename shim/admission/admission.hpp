// Every allocation goes through charged(): reserve, call the driver, then keep the charge or credit it.
#pragma once

#include <optional>
#include <utility>

#include "admission/pressure.hpp"
#include "cache/cache.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {

// Says if a kept block may serve the request. If so, curb may also keep the request's own block when that is freed.
class Reuse {
  public:
    static constexpr Reuse none() noexcept { return Reuse(nullptr, nullptr); }
    // `pointer` receives the address of a kept block of `context`.
    static constexpr Reuse into(CUdeviceptr *pointer, CUcontext context) noexcept { return Reuse(pointer, context); }
    [[nodiscard]] CUdeviceptr *pointer() const noexcept { return pointer_; }  // null for none()
    [[nodiscard]] CUcontext context() const noexcept { return context_; }

  private:
    constexpr Reuse(CUdeviceptr *pointer, CUcontext context) noexcept : pointer_(pointer), context_(context) {}
    CUdeviceptr *pointer_;
    CUcontext context_;
};

// One allocation, as its hook describes it to charged(). No member has a default, so that no hook forgets one.
struct Request {
    constexpr Request(Device &on, Kind of, Bytes asked, Bytes most, caller_match::Way retried_by, Reuse from) noexcept
        : device(on), kind(of), bytes(asked), worst(most), retry(retried_by), reuse(from) {}

    Device &device;
    Kind kind;
    Bytes bytes;              // that the program asks for
    Bytes worst;              // the most that the driver may take
    caller_match::Way retry;  // how a framework gets here when it retries a request that was refused for pressure
    Reuse reuse;
};

// Bytes that admission::reserve has reserved for one driver call. The destructor credits the bytes that were not kept
// and ends the ledger's operation.
class Charge : NoCopy {
  public:
    Charge(Device &device, Kind kind, Bytes bytes) noexcept : device_(device), kind_(kind), bytes_(bytes) {}
    ~Charge() {
        if (bytes_ != 0) device_.ledger.credit(kind_, bytes_);
        device_.ledger.end();
    }

    // Charges `actual`, the bytes that the driver took, and credits the rest.
    void keep(Bytes actual) noexcept {
        if (actual > bytes_) device_.ledger.charge(kind_, actual - bytes_);
        if (actual < bytes_) device_.ledger.credit(kind_, bytes_ - actual);
        bytes_ = 0;
    }
    [[nodiscard]] Device &device() const noexcept { return device_; }

  private:
    Device &device_;
    Kind kind_;
    Bytes bytes_;
};

namespace admission {

// Reserves `bytes` if the limits allow it. If they do not, tries in this order:
// 1. measure the device, if the ledger may be stale;
// 2. free kept blocks and trim pools;
// 3. take a growth step, if one is due;
// 4. wait, as long as the policy allows. `wait` is the time that the whole request has waited.
// Never waits for another thread of curb's. Calls the driver. True: reserved, and the caller must make a Charge. False:
// refused and reported. `retry`: see Request.
bool reserve(Device &device, Kind kind, Bytes bytes, caller_match::Way retry, wait_queue::Wait &wait) noexcept;

// Reports a granted request, if it has waited.
void granted(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept;

// Called when the driver is out of memory although the limits grant the request: other processes fill the device. Waits
// until the device may have `bytes` free. False if the policy's wait is over.
bool wait_for_device(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept;

// Returns the driver's result, or nullopt if the driver is out of memory.
inline std::optional<CUresult> unless_full(CUresult result) noexcept {
    return result == CUDA_ERROR_OUT_OF_MEMORY ? std::nullopt : std::optional(result);
}
// Calls `try_once()`, which calls the driver, until it returns a result. nullopt: the driver is out of memory although
// the limits grant the request. Waits then as wait_for_device() does, for the same `wait`.
template <class TryOnce>
CUresult until_served(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait, TryOnce try_once) {
    do {
        if (const std::optional<CUresult> result = try_once()) return *result;
    } while (wait_for_device(device, kind, bytes, wait));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Waits until a context of about `bytes` leaves keep_free bytes to others; no other limit applies before it is created.
// False if the policy's wait is over.
bool wait_beside_others(Device &device, Kind kind, Bytes bytes) noexcept;

// Reserves `bytes` of the job's cap for a first context, whose cost is known only once it is there. The ledger of this
// process does not show them. Frees kept blocks and waits as reserve() does. False: refused and reported. On true the
// caller must take them out of the device's share again.
bool hold_in_job(Device &device, Bytes bytes) noexcept;

// Reserves `bytes` without freeing, growing or waiting. False if the limits do not allow it now.
bool reserve_now(Device &device, Kind kind, Bytes bytes) noexcept;

// Reserves what a pool may grow by, up to `bytes`, although its idle memory seems to serve the request. May use what
// the limits keep for the driver's code. No limit refuses one unit of a pool, unless a capture is in progress: then
// curb could not trim an unwanted growth. False if the request must not be tried.
bool reserve_growth(Device &device, Kind kind, Bytes bytes) noexcept;

// Reserves bytes ahead of the next requests to this pool, if the process is far from its limits and the pool keeps its
// memory: see pools::Ahead. Call it after a request that has read the pool's size. Calls the driver.
void reserve_ahead(pools::Pool &pool) noexcept;

// True if the process holds more than cap + `by` bytes even after freeing unused memory: the caller must not load code.
// Reports the refusal, without a size: the size of code is unknown before it is loaded.
bool refuse_code_load(Device &device, Bytes by) noexcept;

// Frees kept blocks and trims pools, which is safe within an intercepted call. Calls the driver. False if nothing came
// back.
bool release_on_the_spot(Device &device) noexcept;

// Lowers the allowances to the bytes held, after a release, and logs it.
void fall_back() noexcept;

}  // namespace admission

// Serves a request: takes a kept block, or reserves `worst`, calls the driver, and records what it took. `record` gets
// the Charge, keeps what the driver took, and returns the result; bytes that it does not keep go back. Returns
// CUDA_ERROR_OUT_OF_MEMORY or the driver's result. `reserved`: the caller has already reserved `worst`.
template <class Call, class Record>
CUresult charged(const Request &request, Call call, Record record, bool reserved = false) {
    // No structured binding: clang 14 lets no lambda capture one.
    Device &device = request.device;
    const Kind kind = request.kind;
    const Bytes bytes = request.bytes, worst = request.worst;
    const caller_match::Way retry = request.retry;
    const Reuse reuse = request.reuse;
    if (reuse.pointer()) {
        if (const CUdeviceptr kept = cache::take(device, reuse.context(), bytes)) {
            *reuse.pointer() = kept;
            trace::allocated(device, kind, kept, bytes, 0, true);
            return CUDA_SUCCESS;
        }
    }
    if (retry != caller_match::Way::none && Pressure::of(device).refuses(device, bytes, retry))
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait_queue::Wait wait;
    return admission::until_served(device, kind, worst, wait, [&]() -> std::optional<CUresult> {
        if (!std::exchange(reserved, false) && !admission::reserve(device, kind, worst, retry, wait))
            return CUDA_ERROR_OUT_OF_MEMORY;
        Charge charge(device, kind, worst);
        CUresult result = call();
        // The device is full although the cap is not reached: this process's unused memory may suffice.
        if (result == CUDA_ERROR_OUT_OF_MEMORY && admission::release_on_the_spot(device)) result = call();
        if (result != CUDA_SUCCESS) return admission::unless_full(result);
        if (wait.began()) admission::granted(device, kind, worst, wait);
        return record(charge);
    });
}

}  // namespace curb::shim
