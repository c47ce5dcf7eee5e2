// Host memory that moves fill: anonymous, in huge pages where the kernel gives them. It can be kept for the next move,
// because the kernel takes longer to give a page than the bus to fill it (one H200: 17 GiB/s into new memory, 49 into
// memory that was kept).
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "policy/decisions/move.hpp"

#ifndef MADV_POPULATE_WRITE  // since Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace curb::shim::move {

// A piece of so many chunks. Whole slabs are given back, so that a part of the memory can be.
class Slab {
  public:
    static constexpr std::size_t kChunks = 32;

    // Empty if the address space has no room, or a limit forbids it. Takes no memory before it is written.
    Slab() noexcept {
        // Begins at a huge page, so that each chunk is one. A fork child does not need the contents, and a core file
        // has none of a GPU's either.
        constexpr std::size_t kAlign = policy::kChunk;
        void *const whole =
            mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (whole == MAP_FAILED) return;
        mapped_ = static_cast<char *>(whole);
        begin_ = mapped_ + (kAlign - reinterpret_cast<std::uintptr_t>(mapped_) % kAlign) % kAlign;
        for (const int advice : {MADV_HUGEPAGE, MADV_DONTFORK, MADV_DONTDUMP}) madvise(mapped_, kSize, advice);
    }
    Slab(Slab &&other) noexcept { swap(other); }
    Slab &operator=(Slab &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Slab() {
        if (mapped_) munmap(mapped_, kSize);
    }

    explicit operator bool() const noexcept { return mapped_ != nullptr; }
    [[nodiscard]] char *chunk(std::size_t index) const noexcept { return begin_ + index * policy::kChunk; }
    // The first `chunks` are about to be filled.
    void note_filled(std::size_t chunks) noexcept { filled_ = std::max(filled_, chunks); }
    // Returns the bytes that it takes, at most.
    [[nodiscard]] policy::Bytes bytes() const noexcept { return filled_ * policy::kChunk; }

  private:
    static constexpr std::size_t kSize = (kChunks + 1) * policy::kChunk;

    void swap(Slab &other) noexcept {
        std::swap(mapped_, other.mapped_);
        std::swap(begin_, other.begin_);
        std::swap(filled_, other.filled_);
    }

    char *mapped_ = nullptr, *begin_ = nullptr;
    std::size_t filled_ = 0;  // chunks
};

// The host memory of one device's contents, by chunks.
class HostMemory {
  public:
    HostMemory() noexcept = default;
    // Takes kept memory first. Empty if the address space has no room. May throw std::bad_alloc.
    explicit HostMemory(std::size_t chunks);
    [[nodiscard]] bool empty() const noexcept { return slabs_.empty(); }
    // Gives back the memory of all but the first `chunks`.
    void cut(std::size_t chunks) noexcept {
        while (slabs_.size() * Slab::kChunks >= chunks + Slab::kChunks) slabs_.pop_back();
    }
    [[nodiscard]] char *chunk(std::size_t index) const noexcept {
        return slabs_[index / Slab::kChunks].chunk(index % Slab::kChunks);
    }
    // Keeps the memory for the next move, as far as there is memory to record it.
    void keep() &&noexcept;

    // Has the kernel give the pages at once, which is faster than a fault for each. False if there is no memory.
    static bool populate(char *at, std::size_t bytes) noexcept {
        return madvise(at, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;  // EINVAL: an older kernel
    }

  private:
    std::vector<Slab> slabs_;
};

struct Kept {
    policy::Bytes bytes = 0;
    std::uint64_t since_ms = 0;  // when a move last left some (now_ms())
};
// Returns what is kept. Thread-safe.
Kept kept() noexcept;
// Gives back all that is kept but so much. Thread-safe. May throw std::bad_alloc.
void keep_at_most(policy::Bytes bytes);

}  // namespace curb::shim::move
