// The program's own stubs of the driver: libraries that export the driver's names themselves and open libcuda on first
// use, as TensorFlow's libtensorflow_framework.so does. A preload stands before them in the search order, so a program
// with such a library calls curb first, while libcuda is not loaded. curb then calls the stub, which opens libcuda
// where the program expects it (its own run path, an absolute path), fails as it fails without curb, and finds curb's
// wrapper by dlsym.
#pragma once

namespace curb::shim::stubs {

// The function that code at `caller` would reach by the name `symbol` if curb did not export it as `own`: in the rest
// of the global scope, in what the caller's library depends on, or else in any loaded library. Returns nullptr if no
// library defines it. Thread-safe. Takes the loader's lock, as the stub does itself.
void *definition(const char *symbol, const void *own, const void *caller) noexcept;

// The same for dlsym(RTLD_DEFAULT): without the libraries that the caller does not depend on. Leaves the error of the
// failed look-up to dlerror().
void *definition_in_scope(const char *symbol, const void *own, const void *caller) noexcept;

// The code outside of libcurb.so that has called it on this thread. Returns nullptr if the stack cannot be walked.
const void *caller() noexcept;

// One call of a stub of `function` on this thread. A stub that comes back to curb without having loaded libcuda would
// call itself for ever.
class Call {
  public:
    explicit Call(const void *function) noexcept;
    ~Call();
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    [[nodiscard]] bool is_nested() const noexcept;

  private:
    const void *function_;
    const Call *outer_;
};

}  // namespace curb::shim::stubs
