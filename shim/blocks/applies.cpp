#include "blocks/applies.hpp"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/guarded.hpp"
#include "base/libraries.hpp"
#include "device/devices.hpp"
#include "host/log.hpp"
#include "host/process_state.hpp"
#include "limits/in_force.hpp"
#include "policy/decisions/ranks.hpp"

namespace curb::shim::blocks {
namespace {

// UCX, which loads this library when a program uses it with CUDA, gives peers the addresses of the program's memory.
// Not NVSHMEM: it shares a heap of its own, and PyTorch loads it for programs that never use it.
bool peers_map_memory() noexcept {
    return any_library([](const dl_phdr_info &info) {
        return std::string_view(info.dlpi_name ? info.dlpi_name : "").find("/libuct_cuda") != std::string_view::npos;
    });
}

bool all_have_vmm() noexcept {
    for (const Device &device : devices::all()) {
        int has = 0;
        const auto ask = [&] {
            return driver_behind_gate().cuDeviceGetAttribute(
                &has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device.ordinal);
        };
        if (ask_twice(ask) != CUDA_SUCCESS || has == 0) return false;
    }
    return true;
}

// Returns why not, for users. Empty if it applies.
const char *reason() noexcept {
    const auto now = in_force::snapshot();
    const policy::SuspendPolicy &policy = now->policy.suspend;
    if (!policy.idle && !policy.when_others_wait && !policy.turn)
        return "its policy had neither naps nor turns when it began";
    if (!policy.light.value_or(true)) return "its policy has \"light\": false";
    if (devices::sharing_host_memory()) return "a GPU shares the host's memory";
    if (policy::count_of_ranks(getenv)) return "it is one of several ranks, which map each other's memory";
    if (peers_map_memory()) return "UCX gives its peers the addresses of its memory";
    return all_have_vmm() ? "" : "a GPU has no virtual memory management";
}

struct Decision {
    bool is_made = false;
    const char *why_not = "it has allocated no memory yet";
    bool has_seen_illegal_address = false;
};

}  // namespace

bool applies() noexcept {
    static const bool decided = [] {
        const char *const why_not = reason();
        leaked<Guarded<Decision>>().locked([=](Decision &decision) {
            decision.is_made = true;
            decision.why_not = why_not;
        });
        return *why_not == '\0';
    }();
    return decided;
}

bool may_apply() noexcept {
    return !devices::sharing_host_memory() && leaked<Guarded<Decision>>().locked([](const Decision &decision) {
        return !decision.is_made || *decision.why_not == '\0';
    });
}

const char *why_not() noexcept {
    return leaked<Guarded<Decision>>().locked([](const Decision &decision) { return decision.why_not; });
}

void note_illegal_address() noexcept {
    if (!process::active()) return;
    const bool is_first = leaked<Guarded<Decision>>().locked([](Decision &decision) {
        return *decision.why_not == '\0' && !std::exchange(decision.has_seen_illegal_address, true);
    });
    if (!is_first) return;
    log::write(
        policy::LogLevel::warning,
        "the program has used an address on the GPU at which there is no memory (CUDA_ERROR_ILLEGAL_ADDRESS). If "
        "it does so only with naps, it reads past the end of a block: \"suspend\": { \"light\": false } in its "
        "policy gives it memory of cuMemAlloc, where the next block hides that");
}

bool has_seen_illegal_address() noexcept {
    return leaked<Guarded<Decision>>().locked(
        [](const Decision &decision) { return decision.has_seen_illegal_address; });
}

}  // namespace curb::shim::blocks
