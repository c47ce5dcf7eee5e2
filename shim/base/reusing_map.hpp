// An unordered_map that keeps the last erased node for the next insertion, so that a loop that allocates and frees GPU
// memory causes no malloc and free here. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace curb::shim {

template <class Key, class Value, class Hash = std::hash<Key>>
class ReusingMap {
    using Map = std::unordered_map<Key, Value, Hash>;

  public:
    using iterator = typename Map::iterator;

    // As std::unordered_map, but it may copy `value` even if the key exists.
    std::pair<iterator, bool> try_emplace(const Key &key, const Value &value) {
        if (spare_.empty()) return map_.try_emplace(key, value);
        spare_.key() = key;
        spare_.mapped() = value;
        auto [position, inserted, node] = map_.insert(std::move(spare_));
        spare_ = std::move(node);
        if (spare_) spare_.mapped() = Value{};
        return {position, inserted};
    }
    // Returns the entry after it.
    iterator erase(iterator entry) noexcept {
        const iterator next = std::next(entry);
        spare_ = map_.extract(entry);
        spare_.mapped() = Value{};  // else a shared_ptr in it would live on
        return next;
    }
    iterator find(const Key &key) noexcept { return map_.find(key); }
    iterator begin() noexcept { return map_.begin(); }
    iterator end() noexcept { return map_.end(); }
    [[nodiscard]] std::size_t size() const noexcept { return map_.size(); }

  private:
    Map map_;
    typename Map::node_type spare_;
};

}  // namespace curb::shim
