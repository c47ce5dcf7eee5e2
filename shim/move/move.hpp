// Moves memory of the program's GPUs to host memory and back by curb's own copy: what it maps by the driver's virtual
// memory management, so that it comes back to the same addresses. Needs neither a helper nor a driver that can move
// processes. The rest of the process stays, its contexts too.
//
// The host memory that a move has filled is kept until keep_at_most() gives it back (host_memory.hpp).
//
// Only on the thread curb-nap, while the gate is closed and no call of the program is under way. Calls the driver
// behind the gate. May throw std::bad_alloc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/devices.hpp"
#include "move/copy.hpp"
#include "move/host_memory.hpp"
#include "policy/values/result.hpp"

namespace curb::shim::move {

struct Moved {
    Bytes bytes = 0;    // that have left the GPUs
    Bytes copied = 0;   // of these, in host memory; the rest are pages of zeros
    std::string stays;  // what curb could not move, and why: "2.00 GiB that other processes may use"; empty: nothing
};

// True if there is memory that out() may move.
bool has_any();

// Waits until the work of all contexts has ended. False if it has not within this time, or an earlier one has not ended
// yet.
bool wait_for_work(std::uint64_t most_ms);

// Moves out what can be moved within so much host memory. Asks `goes_on` while it copies. If host memory runs out
// meanwhile, the blocks leave that are copied. Releases nothing before all is copied, but makes a block inaccessible
// once it is; so after an error the program's memory is as it was. (If the driver then refuses to map it, no error is
// returned, and is_out() is true until in().)
policy::Result<Moved, std::string> out(Bytes host_memory, const std::function<GoOn()> &goes_on);

// Returns the bytes of the device that in() needs. 0 if nothing of it is out.
Bytes needed(const Device &device) noexcept;
// Returns the free bytes of a device from which memory is out. 0 if the driver fails.
Bytes free_of(const Device &device) noexcept;
// True if memory is out.
bool is_out() noexcept;

enum class Back {
    done,
    no_room,  // the memory of a device has no room for it
    failed,   // it may be tried again
    broken,   // an error has ended a context, and its calls return that; the memory is there without its contents
};
// Brings back what is out. Unless it is done, what is not back is out as before.
Back in();

}  // namespace curb::shim::move
