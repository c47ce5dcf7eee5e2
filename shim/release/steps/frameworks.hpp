// What the step "frameworks" leaves behind for the step "pressure".
#pragma once

namespace curb::shim::release {

// Whether this framework gave back what it caches within the last seconds: there is nothing left to press for.
bool answered_just_now(const char *framework) noexcept;

}  // namespace curb::shim::release
