// The kinds of held memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "policy/values/size.hpp"

namespace curb::policy {

// `contexts`: the driver's memory for contexts. `stack`: local memory of their threads. Both are charged by earlier
// measurements. `overhead` is not charged: it is NVML's figure for the process minus the charges.
enum class Kind : std::uint8_t {
#define CURB_KIND(name, text) name,
#include "policy/kinds.def"
};
inline constexpr std::size_t kKinds = 0
#define CURB_KIND(name, text) +1
#include "policy/kinds.def"
    ;
// Bytes of each kind, indexed by Kind.
using ByKind = std::array<Bytes, kKinds>;

// Returns the name in traces and JSON answers: "plain".
const char *kind_name(Kind kind) noexcept;
// Returns the name in messages: "allocations".
const char *kind_text(Kind kind) noexcept;
// Returns nullopt if there is no such kind.
std::optional<Kind> parse_kind(std::string_view name) noexcept;

}  // namespace curb::policy
