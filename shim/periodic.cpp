#include "periodic.hpp"

namespace curb::shim::periodic {

// Nothing has to be done from time to time in this version.
std::optional<std::uint64_t> run() noexcept { return std::nullopt; }

}  // namespace curb::shim::periodic
