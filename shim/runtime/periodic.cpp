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

// While more is held than is allowed, pools keep nothing beyond the program's next synchronisation; then it keeps again
// what the program has set.
Next look_at_thresholds() noexcept {
    constexpr std::uint64_t kBetweenLooksMs = 100;
    static std::array<bool, devices::kMost> lowered{};
    bool any = false;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        bool &is_lowered = lowered[static_cast<std::size_t>(ordinal)];
        if (is_lowered) reconcile(device);  // what the program gave back at its synchronisation shows in this
        const bool beyond = device.ledger.of(Kind::pools) != 0 && limits::is_beyond(device, *process::snapshot());
        if (beyond) pools::lower_thresholds(device);
        if (is_lowered && !beyond) pools::restore_thresholds(device);
        is_lowered = beyond;
        any = any || beyond;
    }
    return any ? Next(kBetweenLooksMs) : std::nullopt;
}

Next sooner(Next a, Next b) noexcept {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
}

}  // namespace

Next run() noexcept {
    trace::log_error();
    if (signals::program_has_set()) process::signal_was_set();
    return sooner(sooner(cache::sweep(), idle::poll()), sooner(look_at_thresholds(), last_thread::poll()));
}

}  // namespace curb::shim::periodic
