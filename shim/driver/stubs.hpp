// The program's own driver stubs: libraries that export the driver's names and open libcuda at first use, as
// TensorFlow's libtensorflow_framework.so does. A preload comes first in the search order, so such a program calls curb
// while libcuda is not loaded. curb then calls the stub. The stub opens libcuda where the program expects it (its run
// path, an absolute path), fails as without curb, and finds curb's wrapper by dlsym.
#pragma once

#include "base/lifetime.hpp"

namespace curb::shim::stubs {

// Returns the function that code at `caller` would reach as `symbol` if curb did not export it as `own`. Searches the
// rest of the global scope, the dependencies of the caller's library, then every loaded library. Returns nullptr if no
// library defines it. Thread-safe. Takes the loader's lock, as the stub does.
void *definition(const char *symbol, const void *own, const void *caller) noexcept;

// The same as dlsym(RTLD_DEFAULT) would find it: only in the global scope and the caller's dependencies. If it returns
// nullptr, dlerror() has the look-up's error.
void *definition_in_scope(const char *symbol, const void *own, const void *caller) noexcept;

// Returns the code outside libcurb.so that called into it on this thread; nullptr if the stack cannot be unwound.
const void *caller() noexcept;

// Guards one call of a stub on this thread. It detects a stub that calls curb again without having loaded libcuda,
// which would recurse for ever.
class Call : NoCopy {
  public:
    explicit Call(const void *function) noexcept;
    ~Call();

    [[nodiscard]] bool is_nested() const noexcept;

  private:
    const void *function_;
    const Call *outer_;
};

}  // namespace curb::shim::stubs
