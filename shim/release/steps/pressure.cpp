// Step "pressure": curb refuses the next large allocation once, if a loaded framework then frees its cache and retries.
// Nothing is freed before that allocation; curb logs the bytes then.

#include "admission/pressure.hpp"

#include <string>

#include "admission/caller_match.hpp"
#include "contexts/captures.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "release/release.hpp"

namespace curb::shim::release::step {
namespace {

std::string arm() {
    const caller_match::Known known = caller_match::inspect_libraries();
    std::string asked;
    bool any = false, left = false;
    for (const char *framework : known.frameworks) {
        if (!framework) continue;
        any = true;
        if (caller_match::answered_just_now(framework))
            asked += (asked.empty() ? "" : " and ") + std::string(framework);
        else
            left = true;
    }
    if (!any) return known.why_not;
    if (captures::any()) return kCapture;
    if (!left) return asked + (asked.find(' ') == std::string::npos ? " has" : " have") + " just been asked";
    bool armed = false;
    for (Device &device : devices::all()) {
        if (device.contexts.live > 0) armed |= Pressure::of(device).arm(now_ms());
    }
    return armed ? "waits for the program's next large allocation" : "an allocation was refused just now";
}

}  // namespace

Outcome pressure() { return untried(arm()); }

}  // namespace curb::shim::release::step
