// The device's own figures, from NVML: what stands in nvidia-smi. The truth that the books are held against.
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
#include "policy/size.hpp"

struct nvmlDevice_st;

namespace curb::shim {

using policy::Bytes;

enum class Figure : std::uint8_t { index, held, used, free, last_run };
inline constexpr std::size_t kFigures = 5;

// One device as NVML sees it.
class Meter {
  public:
    // Once, before the first reading: the UUID of the GPU, that of the device itself, which is another one where it is
    // a MIG instance, and its memory, more than which no figure is believed.
    void identify(const CUuuid &gpu, const CUuuid &device, Bytes total) noexcept {
        gpu_ = gpu;
        own_ = device;
        total_ = total;
    }
    [[nodiscard]] bool is_mig() const noexcept { return std::memcmp(&gpu_, &own_, sizeof gpu_) != 0; }
    // As NVML and nvidia-smi spell them.
    [[nodiscard]] std::string gpu_uuid() const;
    [[nodiscard]] std::string mig_uuid() const;  // empty: the device is a whole GPU
    // nvidia-smi's index of the GPU; none: NVML is not there. Loads NVML, but asks it once.
    std::optional<int> index() noexcept;
    // The same where it has been asked already; none: not yet.
    [[nodiscard]] std::optional<int> known_index() const noexcept {
        const int known = index_.load(std::memory_order_relaxed);
        return known < 0 ? std::nullopt : std::optional(known);
    }

    // What this process holds, managed memory not counted (11 us on an H200). None: NVML is not there or does not see
    // the process (another pid namespace, MIG).
    std::optional<Bytes> held_by_process() noexcept;
    // What everybody holds. None: NVML is not there.
    std::optional<Bytes> used_by_all() noexcept;

    // What nobody holds. None: neither NVML nor, for want of a current context, the driver tells.
    std::optional<Bytes> free() noexcept;

    // How many milliseconds ago NVML last saw one of this process's kernels run, of those less than `since_ms` ago.
    // None: none ran, or NVML cannot tell (MIG, another pid namespace, not there). 1.5 ms on an H200.
    std::optional<std::uint64_t> last_run(std::uint64_t since_ms) noexcept;

    // NVML's handle of the device; null: NVML is not there.
    nvmlDevice_st *device() noexcept;

    // Asks NVML on the calling thread, which may hang in it. nullopt if NVML does not tell the figure.
    std::optional<std::uint64_t> read(Figure figure, std::uint64_t since_ms) noexcept;
    nvml_thread::Question &question(Figure figure) noexcept { return questions_[static_cast<std::size_t>(figure)]; }

  private:
    std::optional<std::uint64_t> read_index() const noexcept;
    std::optional<std::uint64_t> read_held();
    std::optional<std::uint64_t> read_last_run(std::uint64_t since_ms);

    CUuuid gpu_{};
    CUuuid own_{};
    Bytes total_ = ~Bytes{0};
    std::atomic<nvmlDevice_st *> device_{nullptr};
    std::atomic<int> index_{-1};
    std::array<nvml_thread::Question, kFigures> questions_;
};

}  // namespace curb::shim
