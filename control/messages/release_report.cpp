#include "control/release_report.hpp"

#include <algorithm>
#include <cmath>

#include "policy/values/size.hpp"
#include "policy/values/words.hpp"

namespace curb::control {

std::int64_t freed(const ReleaseReport &report) {
    std::int64_t sum = 0;
    for (const StepReport &step : report.steps) sum = policy::plus(sum, step.freed);
    return sum;
}

std::string size_text(std::int64_t bytes) {
    const auto magnitude =
        bytes < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(bytes) : static_cast<std::uint64_t>(bytes);
    return (bytes < 0 ? "-" : "") + policy::format_human(magnitude);
}

std::string time_text(double milliseconds) {
    const double bounded = std::isfinite(milliseconds) ? std::clamp(milliseconds, 0.0, 1e12) : 0.0;
    // By hand rather than by llround, which would make libcurb.so need libm.
    const auto rounded = [](double value) { return (static_cast<long long>(value * 2) + 1) / 2; };
    if (bounded >= 10) return std::to_string(rounded(bounded)) + " ms";
    const long long tenths = rounded(bounded * 10);
    if (tenths % 10 == 0) return std::to_string(tenths / 10) + " ms";
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " ms";
}

std::string returns_nothing_text(const std::vector<std::string> &frameworks) {
    if (frameworks.empty()) return {};
    return policy::joined(frameworks, " and ", [](const std::string &one) { return policy::one_line(one) + "'s"; }) +
           (frameworks.size() > 1 ? " allocators return" : " allocator returns") +
           " nothing before the process ends; if it starts under a policy with \"frameworks\": { \"steer\": true }, it "
           "gets one that does";
}

std::string text(const ReleaseReport &report) {
    std::string out = "released " + size_text(freed(report)) + " in " + time_text(report.milliseconds);
    if (!report.trigger.empty()) out += " on " + policy::one_line(report.trigger);
    if (report.steps.empty()) return out + ": the policy has no release steps";
    std::string separator = ": ";
    for (const StepReport &step : report.steps) {
        out += separator + policy::step_name(step.step) + " " + size_text(step.freed);
        if (!step.reason.empty()) out += " (" + policy::one_line(step.reason) + ")";
        separator = ", ";
    }
    if (!report.returns_nothing.empty()) out += "; " + returns_nothing_text(report.returns_nothing);
    return out;
}

}  // namespace curb::control
