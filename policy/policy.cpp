#include "policy/policy.hpp"

#include <algorithm>

namespace curb::policy {

const char *step_name(Step step) noexcept {
    switch (step) {
#define CURB_STEP(name, text) \
    case Step::name:          \
        return #name;
#include "policy/release_steps.def"
#undef CURB_STEP
    }
    return "?";
}

const char *log_level_name(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::trace: return "trace";
        case LogLevel::debug: return "debug";
        case LogLevel::info: return "info";
        case LogLevel::warning: return "warning";
        case LogLevel::error: return "error";
        case LogLevel::off: return "off";
    }
    return "?";
}

std::optional<Bytes> cap_for(const Policy &policy, int ordinal, Bytes device_total) {
    // Rules are laid over each other field by field: one for "cuda:0" that says nothing of a cap leaves that of "*".
    const Size *cap = nullptr;
    bool specific = false;
    for (const GpuRule &rule : policy.gpu) {
        if (!rule.policy.cap || (rule.key.ordinal && *rule.key.ordinal != ordinal)) continue;
        if (specific && !rule.key.ordinal) continue;
        cap = &*rule.policy.cap;
        specific = rule.key.ordinal.has_value();
    }
    std::optional<Bytes> bytes;
    if (cap != nullptr) bytes = cap->on(device_total);
    if (policy.narrowed_to) {
        const Bytes narrowed = policy.narrowed_to->on(device_total);
        bytes = bytes ? std::min(*bytes, narrowed) : narrowed;
    }
    return bytes;
}

}  // namespace curb::policy
