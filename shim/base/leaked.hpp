// A static object that is never destroyed, because threads may use it until the process is gone. Construction at first
// use needs no allocation, so functions that must not throw may be the first to use it.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace curb::shim {

// Returns the single T. T's default constructor must not allocate.
template <class T>
T &leaked() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    alignas(T) static std::byte storage[sizeof(T)];
    static T &object = *new (storage) T;
    return object;
}

}  // namespace curb::shim
