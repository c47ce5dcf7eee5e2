// An unordered_map that keeps the node of the entry erased last for the next one, so that what comes and goes, as
// memory in a loop, does so without malloc and free. Not thread-safe.
#pragma once

#include <cstddef>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace curb::shim {

template <class Key, class Value>
class ReusingMap {
    using Map = std::unordered_map<Key, Value>;

  public:
    using iterator = typename Map::iterator;

    // As the map's own; `value` may be copied even if the key is there.
    std::pair<iterator, bool> try_emplace(const Key &key, const Value &value) {
        if (spare_.empty()) return map_.try_emplace(key, value);
        spare_.key() = key;
        spare_.mapped() = value;
        auto [position, inserted, node] = map_.insert(std::move(spare_));
        spare_ = std::move(node);
        return {position, inserted};
    }
    // The one after it, unless it was the last.
    iterator erase(iterator entry) noexcept {
        const iterator next = std::next(entry);
        spare_ = map_.extract(entry);
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
