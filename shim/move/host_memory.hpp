// Host memory that a move fills: anonymous, in huge pages where the kernel gives them.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "policy/decisions/move.hpp"

#ifndef MADV_POPULATE_WRITE  // since Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace curb::shim::move {

class HostMemory {
  public:
    HostMemory() noexcept = default;
    // Empty if the address space has no room, or a limit forbids it. Takes no memory before it is written.
    explicit HostMemory(policy::Bytes bytes) noexcept {
        // Begins at a huge page, so that each chunk is one. A fork child does not need the contents, and a core file
        // has none of a GPU's either.
        constexpr std::size_t kAlign = policy::kChunk;
        void *const whole =
            mmap(nullptr, bytes + kAlign, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (whole == MAP_FAILED) return;
        mapped_ = static_cast<char *>(whole);
        size_ = bytes + kAlign;
        begin_ = mapped_ + (kAlign - reinterpret_cast<std::uintptr_t>(mapped_) % kAlign) % kAlign;
        madvise(begin_, bytes, MADV_HUGEPAGE);
        madvise(mapped_, size_, MADV_DONTFORK);
        madvise(mapped_, size_, MADV_DONTDUMP);
    }
    HostMemory(HostMemory &&other) noexcept { swap(other); }
    HostMemory &operator=(HostMemory &&other) noexcept {
        swap(other);
        return *this;
    }
    ~HostMemory() {
        if (mapped_) munmap(mapped_, size_);
    }

    [[nodiscard]] char *begin() const noexcept { return begin_; }
    explicit operator bool() const noexcept { return mapped_ != nullptr; }

    // Has the kernel give the pages at once, which is faster than a fault for each. False if there is no memory.
    static bool populate(char *at, std::size_t bytes) noexcept {
        return madvise(at, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;  // EINVAL: an older kernel
    }

  private:
    void swap(HostMemory &other) noexcept {
        std::swap(mapped_, other.mapped_);
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
    }

    char *mapped_ = nullptr, *begin_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace curb::shim::move
