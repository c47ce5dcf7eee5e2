// Handles that are checked: a handle is a number that was never given out before, so that a stale or foreign one is
// found out instead of followed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

namespace curb::sim {

// Looks like an address, means nothing, is unique among handles of all types. Under the model's lock.
inline uint64_t next_handle() {
    static constinit uint64_t last = 0x10000;
    return last += 64;
}

template <class Handle>
Handle make_handle() {
    if constexpr (std::is_pointer_v<Handle>)
        return reinterpret_cast<Handle>(next_handle());  // NOLINT(performance-no-int-to-ptr): never followed
    else
        return next_handle();
}

// Owns objects that have a member `handle`.
template <class Handle, class Object>
class Registry {
  public:
    // Keeps the object's handle if it has one already.
    Object *add(std::unique_ptr<Object> object) {
        if (!object->handle) object->handle = make_handle<Handle>();
        return (objects_[object->handle] = std::move(object)).get();
    }
    Object *find(Handle handle) const {
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second.get();
    }
    std::unique_ptr<Object> release(Handle handle) {
        auto node = objects_.extract(handle);
        return node ? std::move(node.mapped()) : nullptr;
    }
    bool remove(Handle handle) { return objects_.erase(handle) != 0; }
    template <class Predicate>
    void remove_if(Predicate predicate) {
        std::erase_if(objects_, [&](const auto &entry) { return predicate(*entry.second); });
    }
    template <class Function>
    void each(Function function) const {
        for (const auto &[handle, object] : objects_) function(*object);
    }

  private:
    std::map<Handle, std::unique_ptr<Object>> objects_;
};

}  // namespace curb::sim
