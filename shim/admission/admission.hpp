// The gate that every allocation goes through: reserve, call the driver, then keep the charge or give it back.
#pragma once

#include <optional>
#include <utility>

#include "cache.hpp"
#include "devices.hpp"
#include "pressure.hpp"
#include "trace.hpp"
#include "wait_queue.hpp"

namespace curb::shim {

// Whether a kept block may serve the request, and its own block may be kept when it is freed.
class Reuse {
  public:
    static constexpr Reuse none() noexcept { return Reuse(nullptr); }
    // `pointer` receives the address of the kept block.
    static constexpr Reuse into(CUdeviceptr *pointer) noexcept { return Reuse(pointer); }
    [[nodiscard]] CUdeviceptr *pointer() const noexcept { return pointer_; }  // null for none()

  private:
    explicit constexpr Reuse(CUdeviceptr *pointer) noexcept : pointer_(pointer) {}
    CUdeviceptr *pointer_;
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

// Bytes that admission::reserve has reserved for one call of the driver. What is not kept goes back when it ends, and
// with it the operation.
class Charge {
  public:
    Charge(Device &device, Kind kind, Bytes bytes) noexcept : device_(device), kind_(kind), bytes_(bytes) {}
    Charge(const Charge &) = delete;
    Charge &operator=(const Charge &) = delete;
    ~Charge() {
        if (bytes_ != 0) device_.ledger.give_back(kind_, bytes_);
        device_.ledger.end();
    }

    // The driver took `actual` bytes: they stay in the books, the rest goes back.
    void keep(Bytes actual) noexcept {
        if (actual > bytes_) device_.ledger.charge(kind_, actual - bytes_);
        if (actual < bytes_) device_.ledger.give_back(kind_, bytes_ - actual);
        bytes_ = 0;
    }
    [[nodiscard]] Device &device() const noexcept { return device_; }

  private:
    Device &device_;
    Kind kind_;
    Bytes bytes_;
};

namespace admission {

// Whether `bytes` more may be taken, reserving them if so. In this order: what the books say; what the device says;
// after releasing what can be released on the spot; by a growth step, if one is due; after waiting as long as the
// policy allows, `wait` being the time of the whole request. Never waits for another thread of ours. True: reserved,
// and a Charge is due. `retry`: see Request.
bool reserve(Device &device, Kind kind, Bytes bytes, caller_match::Way retry, wait_queue::Wait &wait) noexcept;

// The driver had no memory although the policy grants it: others have filled the device. Waits until so much may be
// there, as long as the policy allows. False: the time is up.
bool wait_for_device(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept;

// The same for a context of about `bytes`, which nothing but keep_free holds back before it is made.
bool wait_beside_others(Device &device, Kind kind, Bytes bytes) noexcept;

// The same without releasing, growing or waiting: only if there is room as it is.
bool reserve_now(Device &device, Kind kind, Bytes bytes) noexcept;

// Whether more than `by` bytes beyond the cap are held, also after releasing what can be released on the spot. True: it
// has been reported, as a refusal of code, which has no size before it is loaded.
bool refuses_code(Device &device, Bytes by) noexcept;

// What can be released within an intercepted call: blocks kept for reuse, and unused memory of pools. True: something
// came back.
bool release_on_the_spot(Device &device) noexcept;

// Memory was released: the allowances fall back to what is held.
void fall_back() noexcept;

}  // namespace admission

// Serves a request: takes a kept block, or reserves `worst`, calls the driver, and records what it took. `record` gets
// the Charge, keeps what the driver took, and returns the result; bytes that it does not keep go back. Returns
// CUDA_ERROR_OUT_OF_MEMORY or the driver's result. `reserved`: the caller has already reserved `worst`.
template <class Call, class Record>
CUresult charged(const Request &request, Call call, Record record, bool reserved = false) {
    const auto &[device, kind, bytes, worst, retry, reuse] = request;
    if (reuse.pointer()) {
        if (const CUdeviceptr kept = cache::take(device, bytes)) {
            *reuse.pointer() = kept;
            trace::allocated(device, kind, kept, bytes, 0, true);
            return CUDA_SUCCESS;
        }
    }
    if (retry != caller_match::Way::none && Pressure::of(device).refuses(device, bytes, retry))
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait_queue::Wait wait;
    do {
        if (!std::exchange(reserved, false) && !admission::reserve(device, kind, worst, retry, wait))
            return CUDA_ERROR_OUT_OF_MEMORY;
        Charge charge(device, kind, worst);
        CUresult result = call();
        // The device is full although the cap is not reached: what this process can do without may be what is missing.
        if (result == CUDA_ERROR_OUT_OF_MEMORY && admission::release_on_the_spot(device)) result = call();
        if (result == CUDA_SUCCESS) return record(charge);
        if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    } while (admission::wait_for_device(device, kind, worst, wait));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace curb::shim
