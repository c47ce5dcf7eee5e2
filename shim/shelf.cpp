#include "shelf.hpp"

namespace curb::shim {

bool Shelf::put(const Block &block) noexcept try {
    // What can fail comes first; then everything is spliced in.
    Pointers age{block.pointer}, size{block.pointer};
    const std::scoped_lock lock(mutex_);
    if (contexts::id_of(block.allocation.context) != block.context) return false;
    const auto [entry, added] = entries_.try_emplace(block.pointer, Entry{block, age.begin(), size.begin()});
    if (!added) return false;
    try {
        Pointers &alike = by_size_[{block.context, block.allocation.bytes}];
        alike.splice(alike.end(), size);
    } catch (...) {
        entries_.erase(entry);
        throw;
    }
    by_age_.splice(by_age_.end(), age);
    return true;
} catch (...) {
    return false;
}

Shelf::Block Shelf::remove(Entries::iterator entry) noexcept {
    const Entry &there = entry->second;
    const Block block = there.block;
    const auto alike = by_size_.find({block.context, block.allocation.bytes});
    alike->second.erase(there.in_size);
    if (alike->second.empty()) by_size_.erase(alike);
    by_age_.erase(there.in_age);
    entries_.erase(entry);
    return block;
}

std::optional<Shelf::Block> Shelf::take(contexts::Id context, Bytes bytes) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto alike = by_size_.find({context, bytes});
    if (alike == by_size_.end()) return std::nullopt;
    return remove(entries_.find(alike->second.back()));
}

std::optional<Shelf::Block> Shelf::take_oldest(std::uint64_t latest_ms, Visit &visit) noexcept {
    const std::scoped_lock lock(mutex_);
    for (const CUdeviceptr pointer : by_age_) {
        const auto entry = entries_.find(pointer);
        const Block &block = entry->second.block;
        if (block.since_ms > latest_ms) return std::nullopt;
        visit.emplace(block.allocation.context);
        if (visit->id() == block.context) return remove(entry);
    }
    return std::nullopt;
}

std::optional<Shelf::Block> Shelf::take_at(CUdeviceptr pointer, Visit &visit) noexcept {
    const std::scoped_lock lock(mutex_);
    const auto entry = entries_.find(pointer);
    if (entry == entries_.end()) return std::nullopt;
    visit.emplace(entry->second.block.allocation.context);
    if (visit->id() != entry->second.block.context) return std::nullopt;
    return remove(entry);
}

std::optional<Shelf::Block> Shelf::take_of(CUcontext context) noexcept {
    const std::scoped_lock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
        if (entry->second.block.allocation.context == context) return remove(entry);
    return std::nullopt;
}

std::optional<std::uint64_t> Shelf::oldest_ms() noexcept {
    const std::scoped_lock lock(mutex_);
    if (by_age_.empty()) return std::nullopt;
    return entries_.find(by_age_.front())->second.block.since_ms;
}

}  // namespace curb::shim
