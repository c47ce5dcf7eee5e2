// Who the simulated devices are, the same for CUDA and NVML.
#pragma once

#include <array>
#include <cstdio>

namespace curb::sim {

inline constexpr int kCudaVersion = 13000;
inline constexpr const char *kDriverVersion = "580.159.04";
inline constexpr const char *kDeviceName = "NVIDIA H100 80GB HBM3";

using Uuid = std::array<unsigned char, 16>;

inline Uuid device_uuid(int device) {
    return {0xc0, 0x7b, 0x51, 0x3d, 0x00, 0x00, 0x40, 0x00,
            0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, static_cast<unsigned char>(device)};
}

inline int pci_bus(int device) { return 0x10 + device; }

// In any spelling of the domain: "0000:10:00.0", "00000000:10:00.0", "10:00.0".
inline bool is_pci_bus_id(const char *text, int device) {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return false;
    }
    return domain == 0 && bus == static_cast<unsigned>(pci_bus(device)) && slot == 0 && function == 0;
}

}  // namespace curb::sim
