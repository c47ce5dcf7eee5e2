// Reads a device's memory figures from NVML, as nvidia-smi shows them. The ledger is reconciled with these.
//
// The thread curb-nvml (nvml_thread.cpp) calls NVML for all others: NVML hangs in the kernel if a GPU has failed or the
// driver is stuck, and such a call cannot be interrupted (docs/decisions/0032). Threads that want the same figure share
// one question. Each gets an answer whose reading began after it asked.
//
// Thread-safe. Keeps errno.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "abi/cuda_abi.h"
#include "policy/values/size.hpp"

struct nvmlDevice_st;

namespace curb::shim {

using policy::Bytes;

enum class Figure : std::uint8_t { index, held, largest_other, used, free, last_run, above_soft_limit };
inline constexpr std::size_t kFigures = 7;

// A query for one figure of one device. Guarded by the lock of nvml_thread.cpp. Readings are numbered from 1.
struct Question {
    bool wanted = false;                 // curb-nvml should read it again
    std::uint32_t begun = 0;             // the number of the reading that began last
    std::atomic<std::uint32_t> done{0};  // that of the last complete one; threads that ask poll it without the lock
    std::uint64_t argument = 0;
    std::optional<std::uint64_t> answer;
};

// One device as NVML sees it. A figure is nullopt also if NVML does not answer within 2 s (5 s until it has answered
// once). After that every figure is nullopt at once, until NVML has answered in the background.
class Meter {
  public:
    // Call it once, before the first reading. `gpu`: the GPU's UUID. `device`: the device's own UUID, which differs for
    // a MIG instance. `total`: its memory; readings above it are rejected. `is_hosts`: its memory is the host's, of
    // which NVML has no figures, or those of the host.
    void identify(const CUuuid &gpu, const CUuuid &device, Bytes total, bool is_hosts) noexcept {
        gpu_ = gpu;
        own_ = device;
        total_ = total;
        is_hosts_ = is_hosts;
        list();
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
        const int next = after_index_;
        return next == 0 ? std::nullopt : std::optional(next - 1);
    }

    // Returns the bytes this process holds, without managed memory (11 us on an H200). nullopt if NVML is missing or
    // does not see the process (another pid namespace, MIG).
    std::optional<Bytes> held_by_process() noexcept;
    // Returns the other process that holds the most. nullopt if NVML is missing or lists none.
    struct Holder {
        int pid = 0;
        Bytes bytes = 0;  // in whole MiB
    };
    std::optional<Holder> largest_other() noexcept;
    // Returns the bytes all processes hold. nullopt if NVML is missing, or if the memory is the host's.
    std::optional<Bytes> used_by_all() noexcept;

    // Returns the free bytes of the device. If its memory is the host's: what the kernel says that programs can still
    // allocate (MemAvailable). The driver's own figure leaves out the page cache, which it can have. nullopt if NVML or
    // /proc is missing and no context is current.
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

    // The rest is for curb-nvml. Reads a figure from NVML on the calling thread, and may hang in NVML. nullopt if NVML
    // has no such figure.
    std::optional<std::uint64_t> read(Figure figure, std::uint64_t since_ms) noexcept;
    Question &question(Figure figure) noexcept { return questions_[static_cast<std::size_t>(figure)]; }
    [[nodiscard]] Meter *next() const noexcept { return next_; }  // of all meters; null: this is the last

  private:
    // Has curb-nvml serve this meter.
    void list() noexcept;
    // Returns the result of read() on curb-nvml.
    std::optional<std::uint64_t> ask(Figure figure, std::uint64_t argument = 0) noexcept;
    std::optional<std::uint64_t> read_index() const noexcept;
    // Returns pick(list) for NVML's list of the processes on the device. nullopt if there is no list.
    template <class Pick>
    std::optional<std::uint64_t> read_processes(Pick pick);
    std::optional<std::uint64_t> read_last_run(std::uint64_t since_ms);
    std::optional<std::uint64_t> read_above_soft_limit();

    CUuuid gpu_{};
    CUuuid own_{};
    Bytes total_ = 0;
    bool is_hosts_ = false;
    std::atomic<nvmlDevice_st *> device_{nullptr};
    std::atomic<int> after_index_{0};  // the index + 1; 0: not known yet
    std::array<Question, kFigures> questions_;
    bool is_listed_ = false;
    Meter *next_ = nullptr;
};

}  // namespace curb::shim
