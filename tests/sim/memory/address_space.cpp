#include "address_space.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "machine.hpp"

namespace curb::sim {

namespace {

// More than any test takes at once, and room for it even in ThreadSanitizer's 1.5 TiB of application addresses.
constexpr uint64_t kArena = 512 * kGiB;
constexpr uint64_t kArenaAlignment = 2 * kMiB;

void *map_private(void *where, uint64_t size, int flags) {
    return ::mmap(where, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

}  // namespace

bool AddressSpace::grow(uint64_t size) {
    const uint64_t wanted = std::max(kArena, round_up(size, kArenaAlignment)) + kArenaAlignment;
    void *address = map_private(nullptr, wanted, 0);
    if (address == MAP_FAILED) return false;
    ::madvise(address, wanted, MADV_DONTDUMP);
    const CUdeviceptr start = round_up(reinterpret_cast<uint64_t>(address), kArenaAlignment);
    arenas_.emplace_back(start, wanted - kArenaAlignment);
    free_[start] = wanted - kArenaAlignment;
    return true;
}

CUdeviceptr AddressSpace::take(uint64_t size, uint64_t alignment, CUdeviceptr wish) {
    if (wish && wish % alignment == 0) {
        const auto after = free_.upper_bound(wish);
        if (after != free_.begin()) {
            const auto range = std::prev(after);
            if (wish + size <= range->first + range->second) {
                cut(free_, range, wish, size);
                return wish;
            }
        }
    }
    for (const bool grown : {false, true}) {
        if (grown && !grow(size + alignment)) return 0;
        for (auto range = free_.begin(); range != free_.end(); ++range) {
            const CUdeviceptr start = round_up(range->first, alignment);
            if (start + size > range->first + range->second) continue;
            cut(free_, range, start, size);
            return start;
        }
    }
    return 0;
}

void AddressSpace::give(CUdeviceptr start, uint64_t size) {
    drop_contents(start, size);
    put_back(free_, start, size);
}

bool AddressSpace::contains(CUdeviceptr address) const {
    return std::any_of(arenas_.begin(), arenas_.end(), [=](const auto &arena) {
        return address >= arena.first && address - arena.first < arena.second;
    });
}

bool share(CUdeviceptr start, uint64_t size, int file, uint64_t offset) {
    return ::mmap(host(start), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                  static_cast<off_t>(offset)) != MAP_FAILED;
}

void unshare(CUdeviceptr start, uint64_t size) { map_private(host(start), size, MAP_FIXED); }

bool empty(CUdeviceptr start, uint64_t size) {
    constexpr uint64_t kPage = 64 << 10;
    return start % kPage == 0 && size % kPage == 0 && ::madvise(host(start), size, MADV_REMOVE) == 0;
}
void drop_contents(CUdeviceptr start, uint64_t size) { ::madvise(host(start), size, MADV_DONTNEED); }

}  // namespace curb::sim
