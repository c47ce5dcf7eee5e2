// The one root of curb in this process: whether it is active, and the policy in force.
//
// States: asleep (a program that has not used CUDA: nothing is read, opened or started) -> active (after the first
// successful cuInit) -> passing (a fork child of an active process: the driver refuses it anyway, and the locks and
// threads it inherited are dead, so every call goes straight on). Reached without constructors: everything is
// constinit.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "config/load.hpp"
#include "in_force.hpp"
#include "policy/policy.hpp"

namespace curb::shim {

namespace process {

namespace detail {
enum class State : int { asleep, active, passing };
extern constinit std::atomic<State> state;
}  // namespace detail

inline bool active() noexcept { return detail::state.load(std::memory_order_acquire) == detail::State::active; }
// Where the policy came from. Only once active.
const config::Source &source() noexcept;

// The driver has been initialised: read the policy, find the devices, start the threads. Once; others pass. False:
// there is no host memory for it, and nothing has begun; it can be called again.
bool activate() noexcept;

// The process as rules see it: as it was at its first use of CUDA. Later some programs write over their arguments, to
// show a title, and over the environment behind them. Used by one thread at a time; only once active.
policy::Subject subject(bool with_user);

// When curb began to watch it, in milliseconds since 1970.
std::int64_t since() noexcept;
// The signal that the policy names for releases: "SIGUSR1", "none".
std::string release_signal();
// Why it asks for no release: "the program ignores SIGUSR1". Empty: it does, or the policy names none.
std::string signal_trouble();
// Logs that trouble if it is new. On the worker, after the program has set an action for the signal.
void signal_was_set() noexcept;

// Puts a policy in force from here on and says what has changed. Releases at once if a device holds more than its cap
// allows; whoever waits for room looks again. Calls no driver: the worker does what needs one. Returns what changed, a
// line each, and what in it has no effect.
struct Changed {
    std::vector<std::string> changes;
    std::vector<std::string> notes;
};
// Throws std::bad_alloc before anything has changed.
Changed enforce(const config::Loaded &loaded);

// The same with caps in the place of the policy's. By the control thread, so nothing in it waits.
control::Reply enforce(const policy::GpuKey &key, std::optional<policy::Size> cap) noexcept;
// On the worker: what a new policy or cap needs the driver for. `look_closely`: the books may not have told yet that
// more is held than a cap allows.
void settle(bool look_closely) noexcept;

// Memory was released: the allowances fall back to what is held.
void fall_back() noexcept;

}  // namespace process
}  // namespace curb::shim
