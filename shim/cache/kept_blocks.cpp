#include "cache/kept_blocks.hpp"

#include <iterator>

namespace curb::shim {

bool KeptBlocks::put(const Block &block) noexcept try {
    const std::scoped_lock lock(mutex_);
    if (contexts::id_of(block.allocation.context) != block.context) return false;
    // Empty lists stay for sizes that come back, up to this many.
    constexpr std::size_t kPlaces = 64;
    if (by_size_.size() > kPlaces + 2 * entries_.size())
        std::erase_if(by_size_, [](const auto &size) { return size.second.empty(); });
    // Allocate first; the splices below cannot fail.
    while (spare_.size() < 2) spare_.push_back({});
    Pointers &alike = by_size_[{block.context, block.allocation.bytes}];
    const auto in_age = spare_.begin(), in_size = std::next(in_age);
    if (!entries_.try_emplace(block.pointer, {block, in_age, in_size}).second) return false;
    *in_age = *in_size = block.pointer;
    by_age_.splice(by_age_.end(), spare_, in_age);
    alike.splice(alike.end(), spare_, in_size);
    return true;
} catch (...) {
    return false;
}

KeptBlocks::Block KeptBlocks::remove(Entries::iterator entry, Pointers &alike) noexcept {
    const Entry &there = entry->second;
    const Block block = there.block;
    spare_.clear();
    spare_.splice(spare_.end(), by_age_, there.in_age);
    spare_.splice(spare_.end(), alike, there.in_size);
    entries_.erase(entry);
    return block;
}

KeptBlocks::Block KeptBlocks::remove(Entries::iterator entry) noexcept {
    const Block &block = entry->second.block;
    return remove(entry, by_size_.find({block.context, block.allocation.bytes})->second);
}

std::optional<KeptBlocks::Block> KeptBlocks::take(contexts::Id context, Bytes bytes) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto alike = by_size_.find({context, bytes});
    if (alike == by_size_.end() || alike->second.empty()) return std::nullopt;
    return remove(entries_.find(alike->second.back()), alike->second);
}

std::optional<KeptBlocks::Block> KeptBlocks::take_oldest(std::uint64_t latest_ms, Pin &pin) noexcept {
    const std::scoped_lock lock(mutex_);
    for (const CUdeviceptr pointer : by_age_) {
        const auto entry = entries_.find(pointer);
        const Block &block = entry->second.block;
        if (block.since_ms > latest_ms) return std::nullopt;
        pin.emplace(block.allocation.context);
        if (pin->id() == block.context) return remove(entry);
    }
    return std::nullopt;
}

std::optional<KeptBlocks::Block> KeptBlocks::take_at(CUdeviceptr pointer, Pin &pin) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto entry = entries_.find(pointer);
    if (entry == entries_.end()) return std::nullopt;
    pin.emplace(entry->second.block.allocation.context);
    if (pin->id() != entry->second.block.context) return std::nullopt;
    return remove(entry);
}

std::size_t KeptBlocks::take_some_of(CUcontext context, std::span<Block> some) noexcept {
    const std::scoped_lock lock(mutex_);
    std::size_t size = 0;
    for (auto entry = entries_.begin(); entry != entries_.end() && size != some.size();) {
        const auto one = entry++;
        if (one->second.block.allocation.context == context) some[size++] = remove(one);
    }
    return size;
}

std::optional<std::uint64_t> KeptBlocks::oldest_ms() noexcept {
    const std::scoped_lock lock(mutex_);
    if (by_age_.empty()) return std::nullopt;
    return entries_.find(by_age_.front())->second.block.since_ms;
}

}  // namespace curb::shim
