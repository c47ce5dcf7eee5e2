// Lets a request that does not fit wait for memory (growth.wait). Code that frees memory calls changed().
//
// A waiting thread holds no lock that a free, a release or a policy edit needs, and is in no ledger operation.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "base/lifetime.hpp"
#include "control/ticket.hpp"
#include "device/wake_waiting.hpp"
#include "policy/decisions/limit.hpp"
#include "policy/kinds.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"

namespace curb::shim {
struct Device;
}

namespace curb::shim::wait_queue {

// What the order among processes needs to know of this one.
struct Self {
    bool (*shares)() noexcept = nullptr;  // other users may see that it waits (`share`)
    // nullopt: it does not take turns.
    std::optional<control::InTurns> (*in_turns)(const Device &) noexcept = nullptr;
};
// Sets where that order is. Before there is none. Call it once.
void use(const control::Places &places, Self self) noexcept;
// Null before use().
const control::Places *places() noexcept;

// The orders in which processes are served: all that wait for room on a device, and those of a job that wait for room
// under its cap.
enum class Order { device, job };
inline constexpr Order kOrders[] = {Order::device, Order::job};

// A request that waits.
struct Request {
    int ordinal = 0;  // of the device
    policy::Kind kind{};
    policy::Bytes bytes = 0;
    policy::Limit why{};  // the limit that it exceeds
};

// A waiting thread's entry in the list.
struct Entry {
    Request request;  // guarded by the list's lock
    int thread = 0;   // its id
    std::uint64_t began_ms = 0;
    std::uint32_t seen = 0;  // value of `changes` before its latest attempt
    bool is_long = false;    // Wait::becomes_long() has returned true
    Entry *next = nullptr;

    [[nodiscard]] std::uint64_t milliseconds() const noexcept;
};

// The wait of one request, over all its attempts. Used by one thread. Costs nothing until it waits.
class Wait : NoCopy {
  public:
    Wait() noexcept = default;
    ~Wait() {
        if (entry_ || is_in_order(Order::device) || is_in_order(Order::job)) end();
    }

    // Call it before each attempt. A change after it ends the next sleep.
    void attempt() noexcept;
    // Joins the order. Processes that wait to come back to their GPUs are in Order::device too.
    void join(Order order, const Device &device, policy::Bytes bytes) noexcept;
    [[nodiscard]] bool is_in_order(Order order) const noexcept { return tickets_[static_cast<std::size_t>(order)]; }
    // Joins the order. False if an earlier request can be served with `room`, the bytes that are free now.
    [[nodiscard]] bool may_take(Order order, const Device &device, policy::Bytes bytes, policy::Bytes room) noexcept;
    // Reserves the request's bytes of `room` until the wait ends or gives the reservation up (control/ticket.hpp).
    // False if others have reserved them.
    [[nodiscard]] bool reserve(Order order, policy::Bytes room) noexcept;
    void give_up_reservation(Order order) noexcept;
    // Call it when the request has been served. If the process takes turns, and has waited for others to leave the
    // device, its turn begins: it claims what is free until end_claims().
    void served() noexcept;
    // True if the request may go on to wait for its turn: others can leave it enough room, or could a moment ago. What
    // others say of themselves may be older than that.
    [[nodiscard]] bool may_await_turn(bool is_in_reach) noexcept;
    // Call it when the driver has refused the request. True if the driver has refused it for a second, with room on the
    // device each time: the cause is another, such as a limit of the program's own pool.
    [[nodiscard]] bool driver_keeps_refusing(bool has_room) noexcept;
    // True if the request has waited less than `most` in total.
    [[nodiscard]] bool left(policy::Duration most) const noexcept;
    // Sleeps until a change since attempt(), at most `milliseconds`. The first call only registers the request and
    // returns at once, because the attempt before it may have missed a change.
    void sleep(const Request &request, std::uint64_t milliseconds) noexcept;
    // True if it has waited at all.
    [[nodiscard]] bool began() const noexcept { return entry_.has_value(); }
    // Returns the time since the wait began; 0 if it has not.
    [[nodiscard]] std::uint64_t milliseconds() const noexcept;
    // True once, after it has waited for a second.
    [[nodiscard]] bool becomes_long() noexcept;

  private:
    void end() noexcept;
    void begin_turn() noexcept;

    std::optional<Entry> entry_;
    control::Ticket *tickets_[std::size(kOrders)]{};
    bool was_served_ = false;
    std::uint64_t in_reach_ms_ = 0;  // when it last was; 0: may_await_turn() was not called yet
    std::uint64_t refused_ms_ = 0;   // since when the driver has refused it with room on the device; 0: it has not
};

// Renews the claims of this process. Returns how many turns have begun so far. On the worker.
std::uint64_t renew_claims() noexcept;
// Ends the claims, unless more turns than these have begun. Thread-safe.
void end_claims(std::uint64_t turns = ~std::uint64_t{0}) noexcept;

// True if another process waits in the order. Reads folders as often as policy::QueueCheck allows for each device, and
// else only the clock. Thread-safe.
bool others_wait(Order order, const Device &device) noexcept;

// A waiting request, as clients see it.
struct Waiting {
    Request request;
    int thread = 0;  // its id
    std::uint64_t milliseconds = 0;
};
// Returns how long the request has waited that has waited longest for room on a device. 0: none does. Thread-safe.
std::uint64_t longest_wait_ms() noexcept;
// Returns all waiting requests, the longest wait first. Thread-safe. May throw std::bad_alloc.
std::vector<Waiting> waiting();

}  // namespace curb::shim::wait_queue
