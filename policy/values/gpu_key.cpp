#include "policy/values/gpu_key.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

constexpr std::string_view kCuda = "cuda:", kNvml = "nvml:", kGpu = "GPU-", kMig = "MIG-";
constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::size_t kUuidDigits = 32;
constexpr std::string_view kForms =
    R"(the keys are "*" (every device), "cuda:0" (as this process counts), "nvml:0" (as nvidia-smi counts), )"
    R"("GPU-8f3a" or "MIG-8f3a" (a UUID or its beginning) and "0000:3b:00.0" (a PCI id))";

// ---- PCI ids ----

std::optional<unsigned> hex(std::string_view digits, std::size_t width, unsigned most) {
    const auto value = digits.size() <= width ? parse_number<unsigned>(digits, 16) : std::nullopt;
    return value && *value <= most ? value : std::nullopt;
}

// Cuts off and returns the text after the last `mark`; the whole text if there is none.
std::string_view cut_last(std::string_view &text, char mark) {
    const std::size_t at = text.rfind(mark);
    const std::string_view last = text.substr(at + 1);  // npos + 1 is 0
    text = text.substr(0, at == std::string_view::npos ? 0 : at);
    return last;
}

// Normalizes [domain:]bus:device.function. Returns an empty text if it is no PCI id.
std::string pci_id(std::string_view text) {
    if (text.starts_with(':')) return {};
    const auto function = hex(cut_last(text, '.'), 1, 7);
    const auto device = hex(cut_last(text, ':'), 2, 0x1F);
    const auto bus = hex(cut_last(text, ':'), 2, 0xFF);
    const auto domain = text.empty() ? std::optional(0U) : hex(text, 8, 0xFFFFFFFF);
    if (!domain || !bus || !device || !function) return {};
    std::array<char, sizeof "00000000:00:00.0"> out{};
    std::snprintf(out.data(), out.size(), "%04x:%02x:%02x.%x", *domain, *bus, *device, *function);
    return out.data();
}

// ---- UUIDs ----

// Groups digits as UUIDs do, 8-4-4-4-12: "8f3a1b2c7" -> "8f3a1b2c-7".
std::string grouped(std::string_view digits) {
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i == 8 || i == 12 || i == 16 || i == 20) out += '-';
        out += digits[i];
    }
    return out;
}

// Returns the digits of a UUID or its prefix, wherever its dashes are. Empty if the text is not hexadecimal or too
// long.
std::string uuid_digits(std::string_view text) {
    std::string digits = lower_case(text);
    std::erase(digits, '-');
    return digits.size() > kUuidDigits || digits.find_first_not_of(kHex) != std::string::npos ? "" : digits;
}

// Makes a key of the text after "GPU-" or "MIG-". Returns nullopt if that is no UUID or prefix of one.
std::optional<GpuKey> uuid_key(GpuKey::Kind kind, std::string_view prefix, std::string_view text) {
    const std::string digits = uuid_digits(text);
    // "8f3a1b2c-" is a prefix of the same UUIDs as "8f3a1b2c".
    if (digits.empty() || !grouped(digits + "0").starts_with(lower_case(text))) return std::nullopt;
    return GpuKey{kind, 0, std::string(prefix) + grouped(digits)};
}

// Returns the error text for a bad key that begins like a UUID.
std::string uuid_fault(std::string_view key) {
    const std::string_view text = key.substr(kGpu.size());
    const std::string shown = quote(key, '"');
    if (text.find_first_not_of('-') == std::string_view::npos) {
        return shown + " is what every UUID begins with; write more of it, as nvidia-smi -L prints it";
    }
    if (text.starts_with(kGpu)) {
        return shown + " is how drivers before 470 named MIG instances; write the UUID that nvidia-smi -L prints";
    }
    const std::size_t bad = lower_case(text).find_first_not_of("0123456789abcdef-");
    if (bad == std::string_view::npos) return shown + " is longer than a UUID, which has 32 digits";
    return shown + " is neither a UUID nor its beginning: after " + quote(key.substr(0, kGpu.size() + bad), '"') +
           " a hexadecimal digit is expected";
}

// ---- suggestions ----

// Drops the separator after a word like "cuda": "cuda-0".
std::string_view without_mark(std::string_view text) {
    if (!text.empty() && std::string_view(":-_=#").find(text.front()) != std::string_view::npos) text.remove_prefix(1);
    return text;
}

// Returns the number without leading zeros: "00" -> "0". Empty if it is no number, or larger than any device index.
std::string_view device_number(std::string_view digits) {
    while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
    return digits.size() <= 2 && whole_number(digits) ? digits : std::string_view();
}

// Returns the key that an invalid one probably means; empty if unknown.
std::string meant_key(std::string_view key) {
    std::string text = lower_case(key);
    std::erase(text, ' ');
    if (text == "all" || text == "any") return "*";

    const std::size_t letters = std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), text.size());
    const std::string_view word = std::string_view(text).substr(0, letters);
    const std::string_view rest = without_mark(std::string_view(text).substr(letters));
    if (const std::string_view number = device_number(rest); !number.empty()) {
        constexpr std::array<std::string_view, 2> kNvmlWords{"nvml", "smi"};
        constexpr std::array<std::string_view, 3> kCudaWords{"cuda", "gpu", "device"};
        if (!nearest(word, kNvmlWords).empty()) return std::string(kNvml).append(number);
        if (word.empty() || !nearest(word, kCudaWords).empty()) return std::string(kCuda).append(number);
    }
    for (const std::string_view prefix : {kGpu, kMig}) {
        if (!begins_with(text, prefix.substr(0, 3))) continue;
        const std::string digits = uuid_digits(without_mark(std::string_view(text).substr(3)));
        if (!digits.empty()) return std::string(prefix) + grouped(digits);
    }
    if (const std::string digits = uuid_digits(text); digits.size() >= 8) return std::string(kGpu) + grouped(digits);

    std::string pci = word == "pci" ? std::string(rest) : text;
    if (std::string id = pci_id(pci); !id.empty()) return id;
    if (pci.size() >= 2 && pci[pci.size() - 2] == ':') {
        pci[pci.size() - 2] = '.';  // "3b:00:0"
    } else {
        pci += ".0";  // "3b:00"
    }
    return pci_id(pci);
}

}  // namespace

Result<GpuKey, std::string> parse_gpu_key(std::string_view key) {
    if (key == "*") return GpuKey{};
    for (const auto &[prefix, kind] : {std::pair(kCuda, GpuKey::Kind::cuda), std::pair(kNvml, GpuKey::Kind::nvml)}) {
        if (!key.starts_with(prefix)) continue;
        if (const auto number = whole_number(key.substr(prefix.size()))) return GpuKey{kind, *number, {}};
    }
    for (const auto &[prefix, kind] :
         {std::pair(kGpu, GpuKey::Kind::gpu_uuid), std::pair(kMig, GpuKey::Kind::mig_uuid)}) {
        if (!key.starts_with(prefix)) continue;
        if (auto uuid = uuid_key(kind, prefix, key.substr(prefix.size()))) return *std::move(uuid);
    }
    if (std::string id = pci_id(key); !id.empty()) return GpuKey{GpuKey::Kind::pci, 0, std::move(id)};

    if (const std::string near = meant_key(key); !near.empty()) {
        return quote(key, '"') + " is not a device; did you mean " + quote(near, '"') + "?";
    }
    if (key.starts_with(kGpu) || key.starts_with(kMig)) return uuid_fault(key);
    return quote(key, '"') + " is not a device; " + std::string(kForms);
}

std::string gpu_key_text(const GpuKey &key) {
    switch (key.kind) {
        case GpuKey::Kind::every: return "*";
        case GpuKey::Kind::cuda: return std::string(kCuda) + std::to_string(key.index);
        case GpuKey::Kind::nvml: return std::string(kNvml) + std::to_string(key.index);
        case GpuKey::Kind::pci:
        case GpuKey::Kind::gpu_uuid:
        case GpuKey::Kind::mig_uuid: return key.text;
    }
    return "?";
}

bool names(const GpuKey &key, const GpuIdentity &gpu) {
    switch (key.kind) {
        case GpuKey::Kind::every: return true;
        case GpuKey::Kind::cuda: return key.index == gpu.ordinal;
        case GpuKey::Kind::nvml: return key.index == gpu.nvml_index;
        case GpuKey::Kind::pci: return key.text == pci_id(gpu.pci);
        case GpuKey::Kind::gpu_uuid: return begins_with(gpu.gpu_uuid, key.text);
        case GpuKey::Kind::mig_uuid: return begins_with(gpu.mig_uuid, key.text);
    }
    return false;
}

std::string describe(const GpuIdentity &gpu) {
    std::string out = std::string(kCuda) + std::to_string(gpu.ordinal);
    std::string_view separator = " = ";
    const auto add = [&](const std::string &name) {
        if (name.empty()) return;
        out.append(separator).append(name);
        separator = ", ";
    };
    if (gpu.nvml_index) add(std::string(kNvml) + std::to_string(*gpu.nvml_index));
    add(pci_id(gpu.pci));
    add(gpu.gpu_uuid);
    add(gpu.mig_uuid);
    return out;
}

}  // namespace curb::policy
