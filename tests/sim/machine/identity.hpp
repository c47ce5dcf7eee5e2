// The identity of the simulated GPUs, the same for CUDA and NVML.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include "environment.hpp"

namespace curb::sim {

inline constexpr const char *kDriverVersion = "580.159.04";
inline constexpr const char *kDeviceName = "NVIDIA H100 80GB HBM3";
inline constexpr unsigned kMultiprocessors = 132;
inline constexpr unsigned kResidentThreads = 2048;  // of each of them

// True if each GPU is divided. CUDA then sees one instance of it.
inline bool mig_mode() { return environment_is("CURB_SIM_MIG", "1"); }

using Uuid = std::array<unsigned char, 16>;

inline Uuid gpu_uuid(int gpu) {
    return {0xc0, 0x7b, 0x51, 0x3d, 0x00, 0x00, 0x40, 0x00,
            0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, static_cast<unsigned char>(gpu)};
}

inline Uuid mig_uuid(int gpu) {
    Uuid uuid = gpu_uuid(gpu);
    uuid[0] = 0x31;
    return uuid;
}

inline std::string uuid_text(const char *kind, const Uuid &uuid) {
    std::string text = kind;
    for (size_t i = 0; i < uuid.size(); ++i) {
        char byte[3];
        std::snprintf(byte, sizeof byte, "%02x", unsigned{uuid[i]});
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += byte;
    }
    return text;
}
inline std::string gpu_uuid_text(int gpu) { return uuid_text("GPU-", gpu_uuid(gpu)); }
inline std::string mig_uuid_text(int gpu) { return uuid_text("MIG-", mig_uuid(gpu)); }

inline int pci_bus(int gpu) { return 0x10 + gpu; }

// Accepts any spelling of the domain: "0000:10:00.0", "00000000:10:00.0", "10:00.0".
inline bool is_pci_bus_id(const char *text, int gpu) {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return false;
    }
    return domain == 0 && bus == static_cast<unsigned>(pci_bus(gpu)) && slot == 0 && function == 0;
}

}  // namespace curb::sim
