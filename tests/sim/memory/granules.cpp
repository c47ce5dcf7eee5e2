#include "granules.hpp"

#include "driver.hpp"
#include "sharing.hpp"

namespace curb::sim {

GranuleHeap::~GranuleHeap() {
    for (const auto &[start, granule] : shared_) give_granules(start, kGranule);
    for (const auto &[start, size] : large_) give_granules(start, size);
}

CUdeviceptr GranuleHeap::take_granules(uint64_t size) {
    charge(device_, use_, size);
    const CUdeviceptr start = driver().addresses.take(size, kGranule);
    if (start) return start;
    credit(device_, use_, size);
    throw CUDA_ERROR_OUT_OF_MEMORY;
}

void GranuleHeap::give_granules(CUdeviceptr start, uint64_t size) {
    const uint64_t shared_id = end_sharing(start, size);
    driver().addresses.give(start, size);
    if (shared_id)
        credit_shared(shared_id, device_, use_, size);
    else
        credit(device_, use_, size);
}

CUdeviceptr GranuleHeap::take(uint64_t bytes) {
    if (bytes > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > kLargestShared) {
        const uint64_t size = round_up(bytes, kGranule);
        const CUdeviceptr start = take_granules(size);
        large_[start] = size;
        return start;
    }
    const uint64_t size = round_up(bytes, kBlockAlignment);
    const auto serve = [&](Shared &granule, Ranges::iterator range) {
        const CUdeviceptr start = range->first;
        cut(granule.free, range, start, size);
        granule.used[start] = size;
        return start;
    };
    for (auto &[base, granule] : shared_)
        for (auto range = granule.free.begin(); range != granule.free.end(); ++range)
            if (range->second >= size) return serve(granule, range);
    const CUdeviceptr base = take_granules(kGranule);
    Shared &granule = shared_[base];
    return serve(granule, granule.free.emplace(base, kGranule).first);
}

void GranuleHeap::give(CUdeviceptr start) {
    if (const auto large = large_.find(start); large != large_.end()) {
        give_granules(start, large->second);
        large_.erase(large);
        return;
    }
    const CUdeviceptr base = round_down(start, kGranule);
    Shared &granule = shared_.at(base);
    const auto used = granule.used.find(start);
    put_back(granule.free, start, used->second);
    granule.used.erase(used);
    if (!granule.used.empty()) return;
    shared_.erase(base);
    give_granules(base, kGranule);
}

void GranuleHeap::extent(CUdeviceptr block, CUdeviceptr *start, uint64_t *size) const {
    const auto large = large_.find(block);
    *start = large != large_.end() ? block : round_down(block, kGranule);
    *size = large != large_.end() ? large->second : kGranule;
}

}  // namespace curb::sim
