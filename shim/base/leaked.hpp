// An object that threads may use until the process is gone, so it is never destroyed. It stands in static storage and
// is made at its first use, for which there is always memory: functions that must not throw may be that first use.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

namespace curb::shim {

// The one T. Its default constructor allocates nothing.
template <class T>
T &leaked() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    alignas(T) static std::byte room[sizeof(T)];
    static T &made = *new (room) T;
    return made;
}

}  // namespace curb::shim
