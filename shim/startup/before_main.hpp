// Sets environment variables before main, from which frameworks choose their allocator.
#pragma once

namespace curb::shim::before_main {

// Sets the policy's variables that are not set yet. Called once, by the constructor, while there is one thread. Unless
// the policy's text mentions `frameworks`, it usually decides by the text alone, without parsing it. An invalid policy
// is reported later, when the program uses CUDA. `environment` returns a variable's value, `variables` are all of them:
// "NAME=value", the last null.
[[gnu::cold]] void set_environment(const char *(*environment)(const char *), const char *const *variables) noexcept;

}  // namespace curb::shim::before_main
