#include "pools.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "driver.hpp"

namespace curb::sim {

Pool::Pool(const CUmemPoolProps &its_properties) : properties(its_properties) {
    if (properties.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        file = ::memfd_create("curb-sim-pool", MFD_CLOEXEC);
}

Pool::~Pool() {
    while (!ranges.empty()) give_units(ranges.begin()->first, ranges.begin()->second.size);
    if (file >= 0) ::close(file);
}

void Pool::grow(uint64_t size) {
    if (properties.maxSize && reserved + size > properties.maxSize) throw CUDA_ERROR_OUT_OF_MEMORY;
    if (on_device()) charge(properties.location.id, Use::pools, size);
    const CUdeviceptr start = driver().addresses.take(size, kPoolUnit);
    if (!start) {
        if (on_device()) credit(properties.location.id, Use::pools, size);
        throw CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (managed_on_device()) charge(properties.location.id, Use::managed, size);
    ranges[start] = {size, file_size_};
    if (file >= 0) {
        file_size_ += size;
        if (::ftruncate(file, static_cast<off_t>(file_size_)) != 0 || !share(start, size, file, file_size_ - size)) {
            give_units(start, size);
            throw CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    reserved += size;
    reserved_high = std::max(reserved_high, reserved);
    insert_free(start, {size, 0, 0});
}

void Pool::give_units(CUdeviceptr start, uint64_t size) {
    const auto range = std::prev(ranges.upper_bound(start));
    const auto [first, whole] = *range;
    ranges.erase(range);
    const uint64_t before = start - first;
    if (whole.shared_id) {
        // Others may still have it. What is left of it is this process's alone.
        driver().machine->give_shared(whole.shared_id, device_at(properties.location.id).gpu, Use::pools, whole.size);
        if (size < whole.size) charge(properties.location.id, Use::pools, whole.size - size);
    }
    if (before) ranges[first] = {before, whole.offset};
    if (before + size < whole.size) ranges[start + size] = {whole.size - before - size, whole.offset + before + size};
    if (file >= 0) {
        unshare(start, size);
        if (!whole.shared_id)
            ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(whole.offset + before),
                        static_cast<off_t>(size));
    }
    driver().addresses.give(start, size);
    if (on_device() && !whole.shared_id) credit(properties.location.id, Use::pools, size);
    if (managed_on_device()) credit(properties.location.id, Use::managed, size);
    reserved -= size;
}

void Pool::insert_free(CUdeviceptr start, Free block) {
    const auto joins = [&](const Free &other) { return other.stream_id == block.stream_id; };
    if (const auto after = free.find(start + block.size); after != free.end() && joins(after->second)) {
        block.size += after->second.size;
        block.ticket = std::max(block.ticket, after->second.ticket);
        free.erase(after);
    }
    const auto next = free.lower_bound(start);
    if (next != free.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second.size == start && joins(before->second)) {
            before->second.size += block.size;
            before->second.ticket = std::max(block.ticket, before->second.ticket);
            return;
        }
    }
    free[start] = block;
}

// Applies the three reuse policies of cuMemPoolSetAttribute. Work is complete as soon as it is submitted, so the
// opportunistic one finds every free complete.
bool Pool::usable(const Free &block, const Stream &stream) const {
    if (!block.stream_id || block.stream_id == stream.id || reuse_opportunistic || reuse_internal) return true;
    if (!reuse_follow_events) return false;
    return covers(work_before(stream), block.stream_id, block.ticket);
}

CUdeviceptr Pool::take(uint64_t bytes, const Stream &stream) {
    if (bytes > kAbsurd) throw CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t size = round_up(bytes, kBlockAlignment);
    const auto best = [&] {
        auto found = free.end();
        for (auto block = free.begin(); block != free.end(); ++block)
            if (block->second.size >= size && (found == free.end() || block->second.size < found->second.size) &&
                usable(block->second, stream))
                found = block;
        return found;
    };
    auto block = best();
    if (block == free.end()) {
        grow(round_up(size, kPoolUnit));
        block = best();
    }
    const auto [first, whole] = *block;
    free.erase(block);
    if (whole.size > size) free[first + size] = {whole.size - size, whole.stream_id, whole.ticket};
    live[first] = size;
    used += size;
    used_high = std::max(used_high, used);
    return first;
}

void Pool::give(CUdeviceptr start, const Stream *stream) {
    const auto found = live.find(start);
    const uint64_t size = found->second;
    live.erase(found);
    if (stream) used -= size;  // the driver counts memory freed by cuMemFree as used for ever (docs/results/driver.md)
    insert_free(start, {size, stream ? stream->id : 0, stream ? ++driver().last_ticket : 0});
}

void Pool::seen_complete(const Progress &progress) {
    std::vector<std::pair<CUdeviceptr, Free>> complete;
    for (const auto &[start, block] : free)
        if (block.stream_id && covers(progress, block.stream_id, block.ticket)) complete.emplace_back(start, block);
    for (const auto &[start, block] : complete) {
        free.erase(start);
        insert_free(start, {block.size, 0, 0});
    }
}

void Pool::all_seen_complete() {
    Progress all;
    for (const auto &[start, block] : free) all[block.stream_id] = UINT64_MAX;
    seen_complete(all);
}

void Pool::trim(uint64_t keep) {
    std::vector<std::pair<CUdeviceptr, uint64_t>> blocks;
    for (const auto &[start, block] : free)
        if (!block.stream_id) blocks.emplace_back(start, block.size);
    for (const auto &[start, size] : blocks) {
        if (reserved <= keep) return;
        const CUdeviceptr first = round_up(start, kPoolUnit);
        const CUdeviceptr whole_end = round_down(start + size, kPoolUnit);
        if (first >= whole_end) continue;
        const CUdeviceptr end = std::min(whole_end, first + round_up(reserved - keep, kPoolUnit));
        free.erase(start);
        if (start < first) free[start] = {first - start, 0, 0};
        if (end < start + size) free[end] = {start + size - end, 0, 0};
        // A free block may span adjacent ranges that were taken separately.
        for (CUdeviceptr at = first; at < end;) {
            const auto &[range, what] = *std::prev(ranges.upper_bound(at));
            const uint64_t piece = std::min(end, range + what.size) - at;
            give_units(at, piece);
            at += piece;
        }
    }
}

bool reclaim_from_pools(int device) {
    bool found = false;
    all<Pool>().each([&](Pool &pool) {
        if (!pool.is_of(device)) return;
        const uint64_t before = pool.reserved;
        pool.trim(0);  // frees not seen complete stay, and the request fails (measured on an H200)
        found = found || pool.reserved < before;
    });
    return found;
}

// Ends destroyed pools whose allocations are all freed and seen complete by the host.
static void end_dying_pools() {
    std::erase_if(driver().dying_pools, [](const auto &pool) {
        return pool->live.empty() && std::all_of(pool->free.begin(), pool->free.end(),
                                                 [](const auto &block) { return block.second.stream_id == 0; });
    });
}

void release_above_thresholds(int device) {
    all<Pool>().each([=](Pool &pool) {
        if (!pool.on_device() || pool.is_of(device)) pool.trim(pool.release_threshold);
    });
    end_dying_pools();
}

void free_pool_allocation(CUdeviceptr start, const Stream *stream) {
    Pool *pool = find_allocation(start)->pool;
    driver().allocations.erase(start);
    pool->give(start, stream);
    end_dying_pools();
}

}  // namespace curb::sim
