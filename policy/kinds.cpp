#include "policy/kinds.hpp"

namespace curb::policy {
namespace {

constexpr const char *kKindNames[] = {
#define CURB_KIND(name, text) #name,
#include "policy/kinds.def"
};
constexpr const char *kKindTexts[] = {
#define CURB_KIND(name, text) text,
#include "policy/kinds.def"
};

}  // namespace

const char *kind_name(Kind kind) noexcept { return kKindNames[static_cast<std::size_t>(kind)]; }
const char *kind_text(Kind kind) noexcept { return kKindTexts[static_cast<std::size_t>(kind)]; }

std::optional<Kind> parse_kind(std::string_view name) noexcept {
    for (std::size_t kind = 0; kind < kKinds; ++kind)
        if (name == kKindNames[kind]) return static_cast<Kind>(kind);
    return std::nullopt;
}

}  // namespace curb::policy
