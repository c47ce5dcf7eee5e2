// A process that makes its /proc/PID/maps as long as a hostile one can.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "temp_dir.hpp"

// Maps a file whose path has 3,000 bytes, thousands of times, until its end. Children have the mappings too.
class LongMaps {
  public:
    LongMaps() {
        const std::string name(250, 'x');
        int folder = ::open(dir_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
        for (int depth = 0; depth < 12; ++depth) {
            ::mkdirat(folder, name.c_str(), 0755);
            const int below = ::openat(folder, name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
            ::close(folder);
            folder = below;
        }
        const int file = ::openat(folder, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        // The same page each time, so that the kernel cannot join neighbours.
        for (std::size_t i = 0; i < kCount && ::ftruncate(file, kPage) == 0; ++i)
            pages_.push_back(::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, 0));
        ::close(file);
        ::close(folder);
    }
    ~LongMaps() {
        for (void *page : pages_) ::munmap(page, kPage);
    }
    LongMaps(const LongMaps &) = delete;
    LongMaps &operator=(const LongMaps &) = delete;

    static constexpr std::size_t kCount = 9'000, kBytes = kCount * 3000;  // of text, at least

  private:
    static constexpr std::size_t kPage = 4096;
    TempDir dir_;
    std::vector<void *> pages_;
};
