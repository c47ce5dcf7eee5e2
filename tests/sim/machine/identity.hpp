// The identity of the simulated GPUs, the same for CUDA and NVML.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "environment.hpp"
#include "meminfo.hpp"

namespace curb::sim {

inline constexpr const char *kDriverVersion = "580.159.04";
inline const char *device_name() { return is_unified() ? "NVIDIA GB10" : "NVIDIA H100 80GB HBM3"; }
inline constexpr unsigned kMultiprocessors = 132;
inline constexpr unsigned kResidentThreads = 2048;  // of each of them

// True if each GPU is divided. CUDA then sees one instance of it.
inline bool mig_mode() { return environment_is("CURB_SIM_MIG", "1"); }

using Uuid = std::array<unsigned char, 16>;

// A number of this machine: CURB_SIM_MACHINE; else of the file with its books, or of the one process that uses it. By
// it the GPUs of two simulated machines differ, whose processes meet in the public folders of the real one.
inline uint32_t machine_number() {
    static const uint32_t number = [] {
        if (const char *set = environment("CURB_SIM_MACHINE"); *set != '\0')
            return static_cast<uint32_t>(std::strtoul(set, nullptr, 10));
        const char *books = environment("CURB_SIM_STATE");
        uint32_t hash = *books == '\0' ? static_cast<uint32_t>(::getpid()) : 0;
        for (; *books != '\0'; ++books) hash = (hash ^ static_cast<unsigned char>(*books)) * 16'777'619;
        return hash;
    }();
    return number;
}

inline Uuid gpu_uuid(int gpu) {
    const uint32_t machine = machine_number();
    const auto byte = [=](int at) { return static_cast<unsigned char>(machine >> (8 * at)); };
    return {0xc0, 0x7b,    0x51, 0x3d, byte(0), byte(1), 0x40, byte(2),
            0x80, byte(3), 0x00, 0x00, 0x00,    0x00,    0x00, static_cast<unsigned char>(gpu)};
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
