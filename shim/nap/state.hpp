// What is known of naps, under one lock. The thread curb-nap takes a nap; the worker begins it, the control socket
// turns it into a suspend and shows it, exit() ends it.
#pragma once

#include <cstdint>

#include "base/guarded.hpp"
#include "control/status.hpp"
#include "host/clock.hpp"

namespace curb::shim::nap {

// Not `none`: the thread curb-nap runs. A call of the program and stay_out() both end `out`; the first one decides.
enum class Phase : std::uint8_t { none, begun, leaving, out, coming_back, staying_out };

struct State {
    Phase phase = Phase::none;
    bool is_requested = false, was_requested = false;  // by begin_soon()
    bool by_request = false, by_turn = false;          // this nap
    bool is_deep = false;                              // the driver has moved the process, or is about to
    // curb suspend keeps a light nap out until then (now_ms()). kForGood: until curb resume.
    static constexpr std::uint64_t kForGood = ~std::uint64_t{0};
    std::uint64_t kept_out_until_ms = 0;
    bool was_kept_out = false;           // in this nap: the client may have had the driver move the process
    bool process_ends = false;           // exit() has begun
    int refusals = 0;                    // in a row
    bool is_refused = false;             // since the last poll()
    std::uint64_t no_room_since_ms = 0;  // since when it has waited for room to come back; 0: it does not wait
    control::NapStatus status;           // without `out` and `leaving`, which the phase shows
};
inline bool is_kept_out(const State &state) noexcept { return now_ms() < state.kept_out_until_ms; }
// Runs `act` with the state, under its lock.
template <class Act>
auto locked(Act act) {
    return leaked<Guarded<State>>().locked(act);
}

}  // namespace curb::shim::nap
