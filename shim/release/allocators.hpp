// Frameworks whose allocator returns no memory before the process ends, so a release cannot free theirs.
// frameworks.steer makes them use another allocator.
#pragma once

#include <string>
#include <vector>

namespace curb::shim::allocators {

// Reads which allocator the environment chooses for each framework. Called at the first cuInit, in the program's
// thread: another thread may change the environment later.
void read_environment() noexcept;

// Returns the frameworks in this process whose allocator returns nothing, by name. Empty if most of the memory that the
// program has allocated is in pools, which are trimmed, or may be another framework's. Takes the loader's lock, so it
// is for curb's own threads. May throw std::bad_alloc.
std::vector<std::string> returning_nothing();

}  // namespace curb::shim::allocators
