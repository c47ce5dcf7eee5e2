// Reaching a socket by its path. Private to control/.
#pragma once

#include <cstddef>
#include <string>

#include "control/descriptor.hpp"

namespace curb::control {

// What sockaddr_un has room for, without its NUL.
inline constexpr std::size_t kLongestPath = 107;

// A connection, which does not block; none: `error` says why. ECONNREFUSED: nobody listens there any more. EAGAIN: too
// many others are being taken in just now. A path that is too long: ENAMETOOLONG.
Descriptor connect_to(const std::string &path, int &error);

}  // namespace curb::control
