// How long objects live.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace curb::shim {

// Base of guards and of other objects that are never copied or moved.
class NoCopy {
  public:
    NoCopy(const NoCopy &) = delete;
    NoCopy &operator=(const NoCopy &) = delete;

  protected:
    constexpr NoCopy() noexcept = default;
};

// Returns the single T, constructed at first use and never destroyed: threads may use it until the process is gone. T's
// default constructor must not allocate. Thread-safe.
template <class T>
T &leaked() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    alignas(T) static std::byte storage[sizeof(T)];
    static T &object = *new (storage) T;
    return object;
}

}  // namespace curb::shim
