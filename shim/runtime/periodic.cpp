#include "periodic.hpp"

#include <algorithm>
#include <array>

#include "cache.hpp"
#include "devices.hpp"
#include "idle.hpp"
#include "last_thread.hpp"
#include "limits.hpp"
#include "pools.hpp"
#include "process.hpp"
#include "reconcile.hpp"
#include "signals.hpp"
#include "trace.hpp"

namespace curb::shim::periodic {
namespace {

using Next = std::optional<std::uint64_t>;

// While the process holds more than it may, lowers the pools' release thresholds, so that they return all unused memory
// at the program's next synchronisation. Then restores the program's thresholds.
Next adjust_thresholds() noexcept {
    constexpr std::uint64_t kPollMs = 100;
    static std::array<bool, devices::kMost> lowered{};
    bool any = false;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        bool &is_lowered = lowered[static_cast<std::size_t>(ordinal)];
        if (is_lowered) reconcile(device);  // to see the memory returned at a synchronisation
        const bool beyond = device.ledger.of(Kind::pools) != 0 && limits::must_shrink(device, *process::snapshot());
        if (beyond) pools::lower_thresholds(device);
        if (is_lowered && !beyond) pools::restore_thresholds(device);
        is_lowered = beyond;
        any = any || beyond;
    }
    return any ? Next(kPollMs) : std::nullopt;
}

Next sooner(Next a, Next b) noexcept {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
}

}  // namespace

Next run() noexcept {
    trace::log_error();
    if (signals::program_has_set()) process::check_signal();
    return sooner(sooner(cache::sweep(), idle::poll()), sooner(adjust_thresholds(), last_thread::poll()));
}

}  // namespace curb::shim::periodic
