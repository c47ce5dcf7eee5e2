// Settings by variables, without a file: CURB_CAP, and those of flags.def. Thread-safe. May throw std::bad_alloc.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"
#include "policy/values/result.hpp"

namespace curb::policy {

// Reads CURB_CAP: "8GiB", "25%,6GiB", "cuda:1=4GiB,8GiB". The lowest cap that names a device is in force, which depends
// on the device's size. So the result keeps the lowest cap of each key and unit, in the order of the text.
Result<std::vector<CapFor>, std::string> parse_caps(std::string_view text);
// Writes them as parse_caps reads them.
std::string format(const std::vector<CapFor> &caps);
// Returns the lowest cap that names the device. nullopt if none does.
std::optional<Bytes> lowest_on(const std::vector<CapFor> &caps, const GpuIdentity &gpu, Bytes device_total);

enum class Flag : std::uint8_t {
#define CURB_FLAG(name, part, variable, option, shape, doc) name,
#include "policy/flags.def"
};
enum class FlagPart : std::uint8_t { gpu, job };  // of Flags
// Arrays instead of pointers: the loader would have to fill those in at every start of a program.
struct FlagRow {
    Flag flag;
    FlagPart part;
    char variable[16];  // "CURB_WAIT"
    char option[16];    // "--wait"
    char shape[24];     // of its value; "": it takes none, and the variable is 1
    char doc[96];
};
inline constexpr std::size_t kFlags = 0
#define CURB_FLAG(name, part, variable, option, shape, doc) +1
#include "policy/flags.def"
    ;
std::span<const FlagRow, kFlags> flags() noexcept;

// The settings of flags, which override every key and rule of the policy file.
struct Flags {
    GpuPolicy gpu;  // of every device
    Layer job;      // `gpu` is empty
    friend bool operator==(const Flags &, const Flags &) = default;
};
// Reads the text of one flag into `into`. Returns the error and a correct value; nullopt on success.
std::optional<std::string> read_flag(Flag flag, std::string_view text, Flags &into);

// Overrides each field of `under` that a flag sets: those of devices under every key of `under`, and under "*".
void lay_over(Layer &under, const Flags &over);

}  // namespace curb::policy
