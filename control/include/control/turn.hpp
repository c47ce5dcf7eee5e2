// The order in which a user's processes that wait for memory of a GPU get it: first come, first served among those
// whose request fits. Needs no daemon: each request has an empty file in the runtime directory, locked while it waits,
// so that the others skip a dead process.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"
#include "policy/values/size.hpp"

namespace curb::control {

// One place in the order. Used by one thread.
class Turn {
  public:
    // A request that fits waits for its turn at most this long: the processes before it may be stopped.
    static constexpr std::chrono::seconds kLongest{5};

    // Queues a request for `bytes` of this GPU ("GPU-…"). Without a usable runtime directory there is no order: its
    // turn has always come. May throw std::bad_alloc.
    Turn(const Places &places, const std::string &uuid, policy::Bytes bytes);
    Turn(Turn &&) noexcept = default;
    Turn &operator=(Turn &&) = delete;
    ~Turn();

    // True unless an earlier request, of a process that is not suspended, fits into `room` too. `room`: the free bytes.
    // Such a request delays this one by kLongest at most. False for any time if others have reserved so much of `room`
    // that this request does not fit. Deletes the files of dead processes. May throw std::bad_alloc.
    [[nodiscard]] bool has_come(policy::Bytes room);

    // Reserves the bytes until the turn ends or gives the reservation up: other requests in the order leave them free.
    // False if they do not fit into `room` less what others have reserved. May throw std::bad_alloc.
    [[nodiscard]] bool reserve(policy::Bytes room);
    void give_up_reservation();
    // In a child of fork: closes its copy of the file, whose lock would outlive the process that waits.
    // Async-signal-safe.
    void close_in_fork_child() const noexcept;

    // True if another process, which is not suspended, waits for memory of this GPU. May throw std::bad_alloc.
    static bool others_wait(const Places &places, const std::string &uuid);

  private:
    void rename(const std::string &name);

    Descriptor folder_, file_;
    std::string begins_, name_;
    policy::Bytes bytes_;
    std::uint64_t held_back_since_ns_ = 0;  // when an earlier request that fits began to delay it; 0: none does
};

}  // namespace curb::control
