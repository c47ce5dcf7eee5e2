// The gate that every allocation goes through: reserve, call the driver, then keep the charge or give it back.
#pragma once

#include <optional>
#include <utility>

#include "devices.hpp"
#include "wait_queue.hpp"

namespace curb::shim {

// Bytes that admission::reserve has reserved for one call of the driver. What is not kept goes back when it ends, and
// with it the operation.
class Charge {
  public:
    Charge(Device &device, Kind kind, Bytes bytes) noexcept : device_(device), kind_(kind), bytes_(bytes) {}
    Charge(const Charge &) = delete;
    Charge &operator=(const Charge &) = delete;
    ~Charge() {
        if (bytes_ != 0) device_.ledger.credit(kind_, bytes_);
        device_.ledger.end();
    }

    // The driver took `actual` bytes: they stay in the books, the rest goes back.
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

// Whether `bytes` more may be taken, reserving them if so. In this order: what the books say; what the device says;
// after releasing what can be released on the spot; by a growth step, if one is due; after waiting as long as the
// policy allows, `wait` being the time of the whole request. Never waits for another thread of ours. True: reserved,
// and a Charge is due.
bool reserve(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept;

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

// Reserve `worst`, `call` the driver, then `record` what it took. `record` is given the charge, keeps what is due, and
// returns the result; without its keep() everything goes back. Only the driver's own results leave here, and
// CUDA_ERROR_OUT_OF_MEMORY. `reserved`: the caller has reserved it already.
template <class Call, class Record>
CUresult charged(Device &device, Kind kind, Bytes worst, Call call, Record record, bool reserved = false) {
    wait_queue::Wait wait;
    do {
        if (!std::exchange(reserved, false) && !admission::reserve(device, kind, worst, wait))
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
