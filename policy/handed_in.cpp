#include "policy/handed_in.hpp"

#include <charconv>
#include <cstring>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

constexpr const char *kRequest = "NVIDIA_GPU_MEMORY_REQUEST";
constexpr const char *kVariables[] = {"NVIDIA_GPU_MEMORY_LIMIT",   kRequest,
                                      "GPU_MEMORY_LIMIT",          "CUDA_DEVICE_MEMORY_LIMIT",
                                      "CUDA_DEVICE_MEMORY_LIMIT_", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"};

// Returns the unit that "g", "M", "GiB", "kB" name. nullopt if the text names none.
std::optional<Bytes> unit_of(std::string_view text) {
    const std::string_view rest = text.substr(1);
    if (!rest.empty() && rest != "i" && rest != "iB" && rest != "B" && rest != "b") return std::nullopt;
    switch (text.front() | 0x20) {  // in lower case
        case 'k': return KiB;
        case 'm': return MiB;
        case 'g': return GiB;
        case 't': return 1024 * GiB;
        default: return std::nullopt;
    }
}

// Reads "4096", "4g", "4096M", "4GiB". `unit`: of a number without one. Returns nullopt if the text is no such size.
std::optional<Bytes> bytes_of(std::string_view text, Bytes unit) {
    Bytes number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number == 0) return std::nullopt;
    const std::string_view rest(end, text.size() - static_cast<std::size_t>(end - text.data()));
    if (!rest.empty()) {
        const auto named = unit_of(rest);
        if (!named) return std::nullopt;
        unit = *named;
    } else if (unit == 1 && number < MiB) {
        unit = MiB;
    }
    Bytes out = 0;
    return __builtin_mul_overflow(number, unit, &out) ? std::nullopt : std::optional(out);
}

std::string fault(const std::string &name, std::string_view text, const char *form) {
    return name + " is " + quote(text) + ", which is not a limit that curb can read (" + form + "); it is ignored";
}

std::optional<std::string> read_mps(const std::string &name, std::string_view text, HandedIn &into) {
    std::vector<HandedInCap> caps;
    for (bool more = true; more;) {
        const std::size_t end = text.find(','), sign = text.find('=');
        more = end != std::string_view::npos;
        const std::string_view one = text.substr(0, end);
        const std::string_view device = one.substr(0, sign);
        auto key = parse_gpu_key(device.find_first_not_of("0123456789") == std::string_view::npos
                                     ? "cuda:" + std::string(device)
                                     : std::string(device));
        const auto bytes = sign < one.size() ? bytes_of(one.substr(sign + 1), 1) : std::nullopt;
        if (!key || !bytes) return fault(name, one, "0=4G");
        caps.push_back({{{Size::Unit::bytes, *bytes}, std::move(key).value()}, name});
        text.remove_prefix(more ? end + 1 : text.size());
    }
    into.caps.insert(into.caps.end(), caps.begin(), caps.end());
    return std::nullopt;
}

}  // namespace

std::span<const char *const> handed_in_names() noexcept { return kVariables; }

bool hands_in_cap(const char *variable) noexcept {
    for (const char *name : kVariables) {
        if (*variable != *name || name == kRequest) continue;
        const std::size_t length = std::strlen(name);
        if (std::strncmp(variable, name, length) == 0 && (variable[length] == '=' || name[length - 1] == '_'))
            return true;
    }
    return false;
}

std::optional<std::string> read_handed_in(const std::string &name, std::string_view text, HandedIn &into) {
    if (name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") return read_mps(name, text, into);
    const bool in_mib = name.starts_with("NVIDIA_");
    const auto bytes = bytes_of(text, in_mib ? MiB : 1);
    if (!bytes) return fault(name, text, in_mib ? "MiB, as 8192" : "8g, 8192m, or bytes");
    const Size size{Size::Unit::bytes, *bytes};
    if (name == kRequest) {
        into.request = size;
        return std::nullopt;
    }
    constexpr std::string_view kOfOne = "CUDA_DEVICE_MEMORY_LIMIT_";
    auto key = name.starts_with(kOfOne) ? parse_gpu_key("cuda:" + name.substr(kOfOne.size())) : GpuKey();
    if (!key) return name + " names no device; it is ignored";
    into.caps.push_back({{size, std::move(key).value()}, name});
    return std::nullopt;
}

}  // namespace curb::policy
