// Memory queries: CUDA and NVML show the program the capped device, with the same figures.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "accounting/reconcile.hpp"
#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "blocks/answers.hpp"
#include "blocks/applies.hpp"
#include "device/devices.hpp"
#include "device/sharers.hpp"
#include "driver/gate.hpp"
#include "driver/nvml.hpp"
#include "driver/stubs.hpp"
#include "host/process_state.hpp"
#include "limits/in_force.hpp"
#include "limits/limits.hpp"
#include "pools/pools.hpp"

namespace curb::shim {
namespace {

// The limits that a device is shown with, from one snapshot, so that `total` and `free` are consistent.
struct Shown {
    explicit Shown(const Device &device) noexcept : Shown(device, *in_force::snapshot()) {}
    Shown(const Device &device, const Snapshot &now) noexcept
        : nothing(now.unusable), unchanged(now.of(device.ordinal).terms.fields.report == policy::Report::device) {
        if (unchanged) return;
        const policy::GpuTerms &terms = now.of(device.ordinal).terms;
        cap = terms.job_cap ? std::min(*terms.job_cap, terms.cap.value_or(policy::kUnbounded)) : terms.cap;
        keep_free = now.of(device.ordinal).terms.growth.keep_free;
        if (blocks::takes_turns(now.policy.suspend)) others_leave = sharers::can_leave(device);
    }

    bool nothing;    // the policy is unusable
    bool unchanged;  // show the device as it is
    std::optional<Bytes> cap;
    Bytes keep_free = 0;
    Bytes others_leave = 0;  // what others take out of the device for this process's turn

    [[nodiscard]] bool changes_nothing() const noexcept {
        return !nothing && !cap && keep_free == 0 && others_leave == 0;
    }
};

struct Figures {
    Bytes total;
    Bytes free;
};

// Returns the figures to show instead of the device's own.
Figures figures_shown(Device &device, const Shown &shown, Figures actual) noexcept {
    if (shown.nothing) return {actual.total, 0};
    // The driver does not count as free what the page cache has, and curb grants it.
    if (device.shares_host_memory && !shown.changes_nothing()) actual.free = device.meter.free().value_or(actual.free);
    // Kept blocks are free to the program: they serve its next request, or are freed for it.
    const Bytes cached = device.kept.bytes;
    const Bytes unused = std::min(actual.total, policy::added(policy::added(actual.free, cached), shown.others_leave));
    const Bytes free = unused - std::min(unused, shown.keep_free);
    if (!shown.cap) return {actual.total, free};
    if (device.freshness.has_changed() || device.freshness.age_ms() >= policy::Staleness::kFarMs)
        reconcile(device);
    else if (device.ledger.has_unread())
        pools::read_ahead(device);
    // In a job, the others may have left less than the cap.
    const Bytes left = device.ledger.share.joined()
                           ? std::min(*shown.cap, limits::cap(device).value_or(policy::kUnbounded))
                           : *shown.cap;
    return {std::min(actual.total, *shown.cap), std::min(free, limits::room(device, left, cached))};
}

// Returns the device of an NVML handle. nullptr if this process does not use it or curb is not active.
Device *device_of(nvmlDevice_t handle) noexcept {
    if (!process::active()) return nullptr;
    for (Device &device : devices::all())
        if (device.meter.device() == handle) return &device;
    return nullptr;
}

// Returns NVML's function. If the program has not loaded NVML, returns the program's own stub, which loads it; without
// a stub, curb loads NVML. nullptr if NVML or the function is missing.
void *nvml_function(const char *symbol, const void *own, const stubs::Call &call) noexcept {
    const KeepErrno keep_errno;
    if (void *real = nvml::loaded(symbol)) return real;
    if (call.is_nested()) return nullptr;
    if (void *stub = stubs::definition(symbol, own, stubs::caller())) return stub;
    nvml::load();
    return nvml::loaded(symbol);
}

// NVML's last answers. While the process is out of its GPUs, its calls of NVML wait until it is back (measured on an
// H200). A thread that logs figures must neither hang nor bring the process back.
class LastAnswers {
  public:
    // `which`: distinguishes the questions of one function. Drops the answer if the table is full or in use.
    void remember(const void *function, nvmlDevice_t handle, unsigned which, const void *bytes,
                  std::size_t size) noexcept {
        if (busy_.exchange(true)) return;
        for (Answer &one : answers_) {
            if (one.function && !one.is(function, handle, which)) continue;
            one.function = function;
            one.handle = handle;
            one.which = which;
            std::memcpy(one.bytes.data(), bytes, size);
            break;
        }
        busy_ = false;
    }
    // False if there is none, or if the table stays in use for 100 ms.
    bool recall(const void *function, nvmlDevice_t handle, unsigned which, void *out, std::size_t size) noexcept {
        if (!poll_until([&] { return !busy_.exchange(true); }, 100)) return false;
        const auto found = std::find_if(answers_.begin(), answers_.end(),
                                        [=](const Answer &one) { return one.is(function, handle, which); });
        const bool is_known = found != answers_.end();
        if (is_known) std::memcpy(out, found->bytes.data(), size);
        busy_ = false;
        return is_known;
    }

  private:
    struct Answer {
        const void *function = nullptr;
        nvmlDevice_t handle = nullptr;
        unsigned which = 0;
        alignas(8) std::array<unsigned char, sizeof(nvmlMemory_v2_t)> bytes{};

        [[nodiscard]] bool is(const void *function_, nvmlDevice_t handle_, unsigned which_) const noexcept {
            return function == function_ && handle == handle_ && which == which_;
        }
    };
    std::atomic<bool> busy_{false};  // no lock: a fork child could find it taken
    std::array<Answer, 128> answers_{};
};
constinit LastAnswers last_answers;

// Returns the result of `ask`, which calls NVML. While the process is out of its GPUs, returns the last answer; without
// one it waits, as calls of CUDA do.
template <auto &Export, class Out, class Ask>
nvmlReturn_t figure(nvmlDevice_t handle, unsigned which, Out *out, Ask ask) noexcept {
    static_assert(sizeof(Out) <= sizeof(nvmlMemory_v2_t) && std::is_trivially_copyable_v<Out>);
    const auto *own = reinterpret_cast<const void *>(&Export);
    if (gate::is_closed()) {
        const KeepErrno keep_errno;
        if (out && last_answers.recall(own, handle, which, out, sizeof *out)) return NVML_SUCCESS;
        if (!gate::wait()) return NVML_ERROR_UNINITIALIZED;
    }
    const nvmlReturn_t result = ask();
    if (result == NVML_SUCCESS && out) last_answers.remember(own, handle, which, out, sizeof *out);
    return result;
}

// The same for a function whose answer curb does not change.
template <auto &Export, class Out, class... Args>
nvmlReturn_t passed_figure(const char *symbol, nvmlDevice_t handle, unsigned which, Out *out, Args... args) noexcept {
    return figure<Export>(handle, which, out, [&]() -> nvmlReturn_t {
        const auto *own = reinterpret_cast<const void *>(&Export);
        const stubs::Call call(own);
        const auto real = reinterpret_cast<decltype(&Export)>(nvml_function(symbol, own, call));
        return real ? real(handle, args..., out) : NVML_ERROR_UNINITIALIZED;
    });
}

// Calls NVML's own function and shows the capped device in `figures`, which has total, free and used.
template <auto &Export, class Memory>
nvmlReturn_t memory_info(const char *symbol, nvmlDevice_t handle, Memory *figures) {
    const auto *own = reinterpret_cast<const void *>(&Export);
    const stubs::Call call(own);
    const auto real = reinterpret_cast<decltype(&Export)>(nvml_function(symbol, own, call));
    if (!real) return NVML_ERROR_UNINITIALIZED;
    const nvmlReturn_t result = real(handle, figures);
    const KeepErrno keep_errno;
    Device *device = result == NVML_SUCCESS && figures ? device_of(handle) : nullptr;
    if (!device) return result;
    const Shown shown(*device);
    if (shown.changes_nothing() && device->kept.bytes == 0) return result;
    const Figures capped = figures_shown(*device, shown, {figures->total, figures->free});
    figures->total = capped.total;
    figures->free = capped.free;
    figures->used = capped.total - capped.free;
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    const CUresult result = driver().cuDeviceTotalMem_v2(bytes, ordinal);
    const Device *device = result == CUDA_SUCCESS ? devices::find(ordinal) : nullptr;
    if (device)
        if (const auto cap = Shown(*device).cap) *bytes = std::min<size_t>(*bytes, *cap);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    const CUresult result = driver().cuMemGetInfo_v2(free_bytes, total);
    if (Device *device = result == CUDA_SUCCESS ? devices::current() : nullptr) {
        const Figures capped = figures_shown(*device, Shown(*device), {*total, *free_bytes});
        *total = capped.total;
        *free_bytes = capped.free;
    }
    return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
    return blocks::address_range(start, bytes, address);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned flags) {
    return blocks::any_in(reinterpret_cast<CUdeviceptr>(host))
               ? CUDA_ERROR_INVALID_VALUE
               : driver().cuMemHostGetDevicePointer_v2(address, host, flags);
}

CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    return blocks::any_in(reinterpret_cast<CUdeviceptr>(host)) ? CUDA_ERROR_INVALID_VALUE
                                                               : driver().cuMemHostGetFlags(flags, host);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *figures) {
    return figure<::nvmlDeviceGetMemoryInfo>(handle, 0, figures, [=] {
        return memory_info<::nvmlDeviceGetMemoryInfo>("nvmlDeviceGetMemoryInfo", handle, figures);
    });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *figures) {
    return figure<::nvmlDeviceGetMemoryInfo_v2>(handle, figures ? figures->version : 0, figures, [=] {
        const nvmlReturn_t result =
            memory_info<::nvmlDeviceGetMemoryInfo_v2>("nvmlDeviceGetMemoryInfo_v2", handle, figures);
        // The capped device has no memory reserved by the system: total = free + used.
        if (result == NVML_SUCCESS && figures->total == figures->free + figures->used) figures->reserved = 0;
        return result;
    });
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates) {
    return passed_figure<::nvmlDeviceGetUtilizationRates>("nvmlDeviceGetUtilizationRates", handle, 0, rates);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t sensor, unsigned *degrees) {
    return passed_figure<::nvmlDeviceGetTemperature>("nvmlDeviceGetTemperature", handle, sensor, degrees, sensor);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts) {
    return passed_figure<::nvmlDeviceGetPowerUsage>("nvmlDeviceGetPowerUsage", handle, 0, milliwatts);
}
