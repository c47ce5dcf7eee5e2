// Reads a device's memory figures from NVML, as nvidia-smi shows them. The ledger is reconciled with these.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "cuda_abi.h"
#include "nvml_thread.hpp"
#include "policy/values/size.hpp"

struct nvmlDevice_st;

namespace curb::shim {

using policy::Bytes;

enum class Figure : std::uint8_t { index, held, used, free, last_run, above_soft_limit };
inline constexpr std::size_t kFigures = 6;

// One device as NVML sees it.
class Meter {
  public:
    // Call it once, before the first reading. `gpu`: the GPU's UUID. `device`: the device's own UUID, which differs for
    // a MIG instance. `total`: its memory; readings above it are rejected.
    void identify(const CUuuid &gpu, const CUuuid &device, Bytes total) noexcept {
        gpu_ = gpu;
        own_ = device;
        total_ = total;
    }
    [[nodiscard]] bool is_mig() const noexcept { return std::memcmp(&gpu_, &own_, sizeof gpu_) != 0; }
    // The UUIDs as NVML and nvidia-smi spell them.
    [[nodiscard]] std::string gpu_uuid() const;
    [[nodiscard]] std::string mig_uuid() const;  // empty if the device is a whole GPU
    [[nodiscard]] std::string uuid() const { return is_mig() ? mig_uuid() : gpu_uuid(); }
    // Returns nvidia-smi's index of the GPU. nullopt if NVML is missing. Cached after the first success.
    std::optional<int> index() noexcept;
    // Returns the cached index; nullopt if there is none yet.
    [[nodiscard]] std::optional<int> known_index() const noexcept {
        const int known = index_.load(std::memory_order_relaxed);
        return known < 0 ? std::nullopt : std::optional(known);
    }

    // Returns the bytes this process holds, without managed memory (11 us on an H200). nullopt if NVML is missing or
    // does not see the process (another pid namespace, MIG).
    std::optional<Bytes> held_by_process() noexcept;
    // Returns the bytes all processes hold. nullopt if NVML is missing.
    std::optional<Bytes> used_by_all() noexcept;

    // Returns the free bytes of the device. nullopt if NVML is missing and no context is current.
    std::optional<Bytes> free() noexcept;

    // Returns how many milliseconds ago NVML last saw a kernel of this process run. nullopt if none ran within
    // `since_ms`, or if NVML is missing or does not see the process (MIG, another pid namespace). Takes 1.5 ms on an
    // H200.
    std::optional<std::uint64_t> last_run(std::uint64_t since_ms) noexcept;

    // Returns the bytes that the process's cgroup uses above its soft limit (dmem.min): as a candidate for eviction it
    // may be ended. nullopt if it has none, or the driver knows no such limits (before 615).
    std::optional<Bytes> above_soft_limit() noexcept;

    // Returns NVML's handle of the device; null if NVML is missing.
    nvmlDevice_st *device() noexcept;

    // Reads a figure from NVML on the calling thread, and may hang in NVML. nullopt if NVML has no such figure.
    std::optional<std::uint64_t> read(Figure figure, std::uint64_t since_ms) noexcept;
    nvml_thread::Question &question(Figure figure) noexcept { return questions_[static_cast<std::size_t>(figure)]; }

  private:
    std::optional<std::uint64_t> read_index() const noexcept;
    std::optional<std::uint64_t> read_held();
    std::optional<std::uint64_t> read_last_run(std::uint64_t since_ms);
    std::optional<std::uint64_t> read_above_soft_limit();

    CUuuid gpu_{};
    CUuuid own_{};
    Bytes total_ = ~Bytes{0};
    std::atomic<nvmlDevice_st *> device_{nullptr};
    std::atomic<int> index_{-1};
    std::array<nvml_thread::Question, kFigures> questions_;
};

}  // namespace curb::shim
