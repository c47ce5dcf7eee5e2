// /proc/meminfo of a machine whose GPU shares the host's memory: the file CURB_SIM_UNIFIED, which a test mounts over
// /proc/meminfo. It has the machine's figures at any time, whichever of its processes allocates.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "environment.hpp"

namespace curb::sim {

// True if the GPU shares the host's memory.
inline bool is_unified() { return !environment_is("CURB_SIM_UNIFIED", ""); }

// The part of the free memory that the page cache has. MemAvailable counts it as available; cuMemGetInfo does not count
// it as free, and the driver can have it (https://nvidia.custhelp.com/app/answers/detail/a_id/5728).
inline constexpr uint64_t kPageCache = uint64_t{256} << 20;

class Meminfo {
  public:
    // Maps the file, which it makes. Null if that fails or CURB_SIM_UNIFIED is not set. Never unmapped.
    static char *map() {
        const int file =
            is_unified() ? ::open(environment("CURB_SIM_UNIFIED"), O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
        void *address = MAP_FAILED;
        if (file >= 0 && ::ftruncate(file, kText.size()) == 0)
            address = ::mmap(nullptr, kText.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0) ::close(file);
        return address == MAP_FAILED ? nullptr : static_cast<char *>(address);
    }
    static void write(char *text, uint64_t total, uint64_t available) {
        if (text[0] != kText[0]) std::memcpy(text, kText.data(), kText.size());
        store(text + kTotal, total);
        store(text + kAvailable, available);
    }

  private:
    // The figures have eight digits at multiples of eight bytes, so that a reader sees each whole.
    static constexpr std::string_view kText =
        "MemTotal:       00000000 kB\n"
        "MemAvailable:       00000000 kB\n";
    static constexpr size_t kTotal = 16, kAvailable = 48;
    static_assert(kText.substr(kTotal, 8) == "00000000" && kText.substr(kAvailable, 8) == "00000000");

    static void store(char *at, uint64_t bytes) {
        char digits[9];
        std::snprintf(digits, sizeof digits, "%8u",
                      static_cast<unsigned>(std::min<uint64_t>(bytes / 1024, 99'999'999)));
        uint64_t word = 0;
        std::memcpy(&word, digits, sizeof word);
        std::atomic_ref(*reinterpret_cast<uint64_t *>(at)).store(word);
    }
};

}  // namespace curb::sim
