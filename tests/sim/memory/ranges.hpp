// Free ranges of addresses, by start. Adjacent ranges are merged.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "abi/cuda_abi.h"

namespace curb::sim {

using Ranges = std::map<CUdeviceptr, uint64_t>;  // start -> size

// Takes a part out of the range that holds it.
inline void cut(Ranges &ranges, Ranges::iterator range, CUdeviceptr start, uint64_t size) {
    const auto [first, whole] = *range;
    ranges.erase(range);
    if (start > first) ranges[first] = start - first;
    if (start + size < first + whole) ranges[start + size] = first + whole - start - size;
}

// Puts a range back, merged with its neighbours.
inline void put_back(Ranges &ranges, CUdeviceptr start, uint64_t size) {
    auto after = ranges.upper_bound(start);
    if (after != ranges.end() && start + size == after->first) {
        size += after->second;
        after = ranges.erase(after);
    }
    const auto before = after == ranges.begin() ? ranges.end() : std::prev(after);
    if (before != ranges.end() && before->first + before->second == start)
        before->second += size;
    else
        ranges[start] = size;
}

}  // namespace curb::sim
