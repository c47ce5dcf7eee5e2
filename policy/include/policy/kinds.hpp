// What held memory is for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/size.hpp"

namespace curb::policy {

// `contexts` and `stack` are what the driver takes for a context and for the local memory of its threads: as much as
// was measured, or is known, before it is taken. `overhead` is not charged but measured: what the device's own figure
// for the process has beyond the charges.
enum class Kind : std::uint8_t {
#define CURB_KIND(name, text) name,
#include "policy/kinds.def"
};
inline constexpr std::size_t kKinds = 0
#define CURB_KIND(name, text) +1
#include "policy/kinds.def"
    ;
// Bytes of each kind, in their order.
using ByKind = std::array<Bytes, kKinds>;

// "plain"; as traces and JSON answers spell it.
const char *kind_name(Kind kind) noexcept;
// "allocations"; as people are told.
const char *kind_text(Kind kind) noexcept;
// None: there is no such kind.
std::optional<Kind> parse_kind(std::string_view name) noexcept;

}  // namespace curb::policy
