// Memory of the program's own VMM calls, filled with words that it knows, between pages of zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "memory.hpp"

namespace scenario {

class Mapped {
  public:
    // Two pieces of physical memory side by side, and the first one a second time behind them. The handles are
    // released: the mappings keep the memory.
    explicit Mapped(std::uint64_t half) : half_(half) {
        MUST(cuMemAddressReserve(&at_, 3 * half, 0, 0, 0));
        const auto first = take_physical(half), second = take_physical(half);
        MUST(cuMemMap(at_, half, 0, first, 0));
        MUST(cuMemMap(at_ + half, half, 0, second, 0));
        MUST(cuMemMap(at_ + 2 * half, half, 0, first, 0));
        MUST(cuMemRelease(first));
        MUST(cuMemRelease(second));
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        MUST(cuMemSetAccess(at_, 3 * half, &access, 1));
        change();
    }
    // Fills it anew: each other MiB is zero.
    void change() {
        ++seed_;
        MUST(cuMemsetD8_v2(at_, 0, 2 * half_));
        for (std::uint64_t offset = 0; offset < 2 * half_; offset += 2 * MiB)
            MUST(cuMemcpyHtoD_v2(at_ + offset, words(offset).data(), MiB));
    }
    // Reads so many bytes in one copy.
    [[nodiscard]] bool is_right(std::uint64_t at_once = 2 * MiB) const {
        constexpr std::uint64_t kWords = MiB / sizeof(unsigned);
        std::vector<unsigned> found(at_once / sizeof(unsigned));
        const std::vector<unsigned> zeros(kWords);
        for (std::uint64_t begin = 0; begin < 3 * half_; begin += at_once) {
            MUST(cuMemcpyDtoH_v2(found.data(), at_ + begin, at_once));
            for (std::uint64_t piece = 0; piece < at_once; piece += 2 * MiB) {
                const unsigned *const words_at = found.data() + piece / sizeof(unsigned);
                const std::vector<unsigned> wanted = words((begin + piece) % (2 * half_));
                if (std::memcmp(wanted.data(), words_at, MiB) != 0 ||
                    std::memcmp(zeros.data(), words_at + kWords, MiB) != 0)
                    return false;
            }
        }
        return true;
    }
    [[nodiscard]] bool is_right_at_once() const { return is_right(3 * half_); }

  private:
    // The pages differ by their first word alone: a random number for each word takes ThreadSanitizer seconds.
    [[nodiscard]] std::vector<unsigned> words(std::uint64_t offset) const {
        std::minstd_rand random(static_cast<unsigned>(seed_ * 1'000'003 + offset));
        constexpr std::size_t kPage = 4096 / sizeof(unsigned);
        std::vector<unsigned> page(kPage), out;
        std::generate(page.begin(), page.end(), [&] { return static_cast<unsigned>(random()); });
        out.reserve(MiB / sizeof(unsigned));
        for (; out.size() < MiB / sizeof(unsigned); page.front() = static_cast<unsigned>(random()))
            out.insert(out.end(), page.begin(), page.end());
        return out;
    }

    CUdeviceptr at_ = 0;
    std::uint64_t half_, seed_ = 0;
};

// Returns all memory of the program that was mapped so.
inline std::deque<Mapped> &all_mapped() {
    static std::deque<Mapped> all;
    return all;
}

}  // namespace scenario
