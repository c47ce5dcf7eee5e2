// The order in which all processes of a user that wait for room on a GPU are served: of those for which there is room,
// the first to come. Needs no daemon: each that waits has an empty file in the runtime directory, locked as long as it
// waits, so that a dead one is skipped.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"
#include "policy/size.hpp"

namespace curb::control {

// One place in the order. Used by one thread.
class Turn {
  public:
    // The longest that the order holds one back for which there is room. Those before it may be stopped.
    static constexpr std::chrono::seconds kLongest{5};

    // Joins those who wait for room on this GPU ("GPU-…"), as the last; it needs so many bytes. Without a runtime
    // directory that can be used there is no order, and it is always this one's turn. May throw std::bad_alloc.
    Turn(const Places &places, const std::string &uuid, policy::Bytes bytes);
    Turn(Turn &&) noexcept = default;
    Turn &operator=(Turn &&) = delete;
    ~Turn();

    // True unless one that came before waits for no more than `room`, the bytes that are free for it. Deletes the files
    // of dead processes. May throw std::bad_alloc.
    [[nodiscard]] bool has_come(policy::Bytes room);

    // True if another process waits for room on this GPU. May throw std::bad_alloc.
    static bool others_wait(const Places &places, const std::string &uuid);

  private:
    Descriptor folder_, file_;
    std::string begins_, name_;
    std::uint64_t held_back_since_ns_ = 0;  // 0: it is not held back
};

}  // namespace curb::control
