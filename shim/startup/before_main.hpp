// The environment that a policy sets before main, for frameworks that read from it how they allocate.
#pragma once

namespace curb::shim::before_main {

// Sets what is unset and leaves what is set. Called once, by the constructor, while there is one thread. A program
// whose policy does not mention frameworks pays for a search of the file's text, and for one variable if that mentions
// a cap. A policy that cannot be read is reported later, when the program uses CUDA. `environment` looks one variable
// up.
void set_environment(const char *(*environment)(const char *)) noexcept;

}  // namespace curb::shim::before_main
