// Our threads: one runs releases when it is woken, one watches the policy file. Started by the first successful cuInit,
// never joined: they end with the process.
#pragma once

namespace curb::shim::worker {

void start() noexcept;

// The release signal came. Async-signal-safe: one write to an eventfd.
void wake() noexcept;

// Asks for a release for another reason, a string that lives for ever ("cap lowered"). Does not wait.
void release(const char *trigger) noexcept;

}  // namespace curb::shim::worker
