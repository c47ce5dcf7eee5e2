// The environment that a policy sets before main, so that frameworks grow instead of taking the GPU at once.
#pragma once

namespace curb::shim::steer {

// Once, from the constructor, while there is one thread. Sets what is unset and leaves what is set. A program whose
// policy says nothing of frameworks pays for a look at the file; a policy that cannot be read is reported later, when
// the program uses CUDA. `environment` looks one variable up.
void set_environment(const char *(*environment)(const char *)) noexcept;

}  // namespace curb::shim::steer
