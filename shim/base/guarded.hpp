// An object that can be reached only under its lock.
#pragma once

#include <mutex>

#include "base/lifetime.hpp"

namespace curb::shim {

// The lock is a leaf: what runs under it takes no other lock and does not wait.
template <class T>
class Guarded : NoCopy {
  public:
    // Returns what `act(object)` returns.
    template <class Act>
    auto locked(Act act) {
        const std::scoped_lock lock(mutex_);
        return act(object_);
    }

  private:
    std::mutex mutex_;
    T object_;
};

}  // namespace curb::shim
