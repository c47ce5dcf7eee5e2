// Checked handles: a stale or foreign one is detected, not followed. The real driver reuses handles, which are
// addresses of its heap. So here a new object gets the handle of its type that was freed last. CURB_SIM_HANDLES=fresh:
// no handle is reused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi/cuda_abi.h"
#include "environment.hpp"

namespace curb::sim {

// Returns a number that looks like an address and is unique among handles of all types and ids. Under the model's lock.
inline uint64_t next_handle() {
    static constinit uint64_t last = 0x10000;
    return last += 64;
}

template <class Handle>
std::vector<Handle> &freed_handles() {
    static auto &all = *new std::vector<Handle>;
    return all;
}

template <class Handle>
Handle make_handle() {
    if (auto &freed = freed_handles<Handle>(); !freed.empty()) {
        const Handle again = freed.back();
        freed.pop_back();
        return again;
    }
    if constexpr (std::is_pointer_v<Handle>)
        return reinterpret_cast<Handle>(next_handle());  // NOLINT(performance-no-int-to-ptr): never followed
    else
        return next_handle();
}

template <class Handle>
void free_handle(Handle handle) {
    static const bool fresh = environment_is("CURB_SIM_HANDLES", "fresh");
    if (!fresh) freed_handles<Handle>().push_back(handle);
}

// Owns objects, by their member `handle`. Their `kUnknown` is the error of a call whose handle has no object.
template <class Object>
class Registry {
  public:
    using Handle = decltype(Object::handle);

    // Gives the object a handle unless it has one. A context has one, and its creator frees it.
    Object *add(std::unique_ptr<Object> object) {
        if (!object->handle) object->handle = make_handle<Handle>();
        return (objects_[object->handle] = std::move(object)).get();
    }
    Object *find(Handle handle) const {
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second.get();
    }
    // As find(), but throws if there is none.
    Object *at(Handle handle) const {
        Object *found = find(handle);
        return found ? found : throw Object::kUnknown;
    }
    // Throws if there is none.
    std::unique_ptr<Object> release(Handle handle) {
        auto node = objects_.extract(handle);
        if (!node) throw Object::kUnknown;
        if constexpr (!std::is_same_v<Handle, CUcontext>) free_handle(handle);
        return std::move(node.mapped());
    }
    void remove(Handle handle) {
        if (find(handle)) release(handle);
    }
    template <class Predicate>
    void remove_if(Predicate predicate) {
        for (auto one = objects_.begin(); one != objects_.end();) {
            const auto &[handle, object] = *one++;
            if (predicate(*object)) release(handle);
        }
    }
    template <class Function>
    void each(Function function) const {
        for (const auto &[handle, object] : objects_) function(*object);
    }

  private:
    std::map<Handle, std::unique_ptr<Object>> objects_;
};

// All objects of a type. Never destroyed, as the rest of the model.
template <class Object>
Registry<Object> &all() {
    static auto &registry = *new Registry<Object>;
    return registry;
}

}  // namespace curb::sim
