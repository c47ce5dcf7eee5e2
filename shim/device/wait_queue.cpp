#include "device/wait_queue.hpp"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "base/guarded.hpp"
#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "device/devices.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "policy/decisions/queue_check.hpp"
#include "threads/own_thread.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::wait_queue {

namespace {

constinit struct {
    std::mutex mutex;
    Entry *first = nullptr;  // the waiting threads, newest first
} queue;

void add(Entry &entry) noexcept {
    const std::scoped_lock lock(queue.mutex);
    entry.next = queue.first;
    queue.first = &entry;
}

void remove(const Entry &entry) noexcept {
    const std::scoped_lock lock(queue.mutex);
    Entry **at = &queue.first;
    while (*at != &entry) at = &(*at)->next;
    *at = entry.next;
}

constinit struct {
    std::atomic<const control::Places *> places{nullptr};
    Self self;  // set before `places`
} orders;

// The served requests with which this process's turn has begun, by device.
struct Claims {
    std::array<std::shared_ptr<control::Ticket>, devices::kMost> tickets;
    std::uint64_t turns = 0;  // begun so far
};
template <class Act>
auto with_claims(Act act) {
    return leaked<Guarded<Claims>>().locked(act);
}

// What is known about the processes that wait in one order for one device.
struct Others {
    bool wait = false;
    policy::QueueCheck check;
    Bytes credited = 0;       // by the ledger when the last check began
    bool has_waited = false;  // a request of this process, since then
};
// For each device and order.
constinit Guarded<std::array<std::array<Others, std::size(kOrders)>, devices::kMost>> others;

constexpr control::Ticket::Among among(Order order) noexcept {
    return order == Order::job ? control::Ticket::Among::user : control::Ticket::Among::all;
}

// "GPU-8f3a…", "job-1f0e…-GPU-8f3a…"
std::string name_of(Order order, const Device &device) {
    return (order == Order::job ? "job-" + job::key() + "-" : std::string()) + device.meter.uuid();
}

// True if this thread's request waits while the process is out of its GPUs: there it takes no memory, and others pass.
bool is_suspended() noexcept { return gate::is_closed() && !own_thread::is_own(); }

// Returns how long this thread has run.
std::uint64_t processor_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

using detail::waiters;

}  // namespace

void use(const control::Places &places, Self self) noexcept {
    orders.self = self;
    orders.places = &places;
}
const control::Places *places() noexcept { return orders.places; }

void Wait::end() noexcept {
    const KeepErrno keep_errno;
    if (was_served_ && entry_) begin_turn();
    for (const control::Ticket *ticket : tickets_) delete ticket;
    if (!entry_) return;
    remove(*entry_);
    others.locked([&](auto &all) {
        for (Others &one : all[static_cast<std::size_t>(entry_->request.ordinal)]) one.has_waited = true;
    });
    --waiters.listening;
    worker_signal::wake_up();
}

void Wait::attempt() noexcept {
    if (entry_) entry_->seen = waiters.changes;
}

void Wait::join(Order order, const Device &device, policy::Bytes bytes) noexcept try {
    const KeepErrno keep_errno;
    control::Ticket *&ticket = tickets_[static_cast<std::size_t>(order)];
    if (!places()) return;
    if (ticket && !is_suspended()) ticket->renew();
    if (ticket) return;
    ticket = new control::Ticket(*places(), name_of(order, device), bytes, among(order), orders.self.shares(),
                                 order == Order::device ? orders.self.in_turns(device) : std::nullopt);
} catch (...) {
    // Out of host memory: without an order.
}

bool Wait::may_take(Order order, const Device &device, policy::Bytes bytes, policy::Bytes room) noexcept try {
    const KeepErrno keep_errno;
    join(order, device, bytes);
    control::Ticket *ticket = tickets_[static_cast<std::size_t>(order)];
    return !ticket || is_suspended() || ticket->may_take(room);
} catch (...) {
    return true;
}

bool Wait::reserve(Order order, policy::Bytes room) noexcept try {
    const KeepErrno keep_errno;
    control::Ticket *ticket = tickets_[static_cast<std::size_t>(order)];
    return !ticket || ticket->reserve(room);
} catch (...) {
    return true;
}

void Wait::give_up_reservation(Order order) noexcept try {
    const KeepErrno keep_errno;
    if (control::Ticket *ticket = tickets_[static_cast<std::size_t>(order)]) ticket->give_up_reservation();
} catch (...) {
    // Out of host memory: it ends with the wait.
}

// The ticket becomes the claim before any other process can find it gone.
void Wait::begin_turn() noexcept try {
    control::Ticket *&ticket = tickets_[static_cast<std::size_t>(Order::device)];
    if (!ticket || !ticket->takes_turns()) return;
    ticket->claim();
    std::shared_ptr<control::Ticket> claim(std::exchange(ticket, nullptr));
    with_claims([&](Claims &claims) {
        claim.swap(claims.tickets[static_cast<std::size_t>(entry_->request.ordinal)]);
        ++claims.turns;
    });
} catch (...) {
    // Out of host memory: without a claim.
}

bool Wait::may_await_turn(bool is_in_reach) noexcept {
    constexpr std::uint64_t kMomentMs = 1500;
    const std::uint64_t now = now_ms();
    if (is_in_reach || in_reach_ms_ == 0) in_reach_ms_ = now;
    return now - in_reach_ms_ < kMomentMs;
}

bool Wait::driver_keeps_refusing(bool has_room) noexcept {
    constexpr std::uint64_t kLongMs = 1000;  // a race with others ends sooner
    const std::uint64_t now = now_ms();
    if (!has_room || refused_ms_ == 0) refused_ms_ = has_room ? now : 0;
    return has_room && now - refused_ms_ >= kLongMs;
}

void Wait::served() noexcept { was_served_ = true; }

std::uint64_t renew_claims() noexcept {
    const Claims now = with_claims([](const Claims &claims) { return claims; });
    for (const auto &ticket : now.tickets)
        if (ticket) ticket->renew();
    return now.turns;
}

void end_claims(std::uint64_t turns) noexcept {
    Claims ended;  // their files are deleted without the lock
    with_claims([&](Claims &claims) {
        if (claims.turns <= turns) ended.tickets.swap(claims.tickets);
    });
}

bool Wait::left(policy::Duration most) const noexcept {
    return static_cast<std::uint64_t>(most.count()) > milliseconds();
}

void Wait::sleep(const Request &request, std::uint64_t milliseconds) noexcept {
    if (!entry_) {
        entry_.emplace(
            Entry{.request = request, .thread = static_cast<int>(syscall(SYS_gettid)), .began_ms = now_ms()});
        add(*entry_);
        ++waiters.listening;
        worker_signal::wake_up();  // it posts the wait
        return;
    }
    {
        const std::scoped_lock lock(queue.mutex);
        entry_->request = request;
    }
    // The attempt itself may have released memory and so count as a change. Sleep at least 1 ms to avoid a busy loop.
    constexpr std::uint64_t kLeastMs = 1;
    std::uint64_t now = now_ms();
    const std::uint64_t until = now + std::max(milliseconds, kLeastMs);
    do {  // a signal may end it early
        futex_wait(waiters.changes, entry_->seen, until - now);
        now = now_ms();
    } while (now < until && waiters.changes == entry_->seen);
}

std::uint64_t Entry::milliseconds() const noexcept { return now_ms() - began_ms; }

std::uint64_t Wait::milliseconds() const noexcept { return entry_ ? entry_->milliseconds() : 0; }

bool Wait::becomes_long() noexcept {
    constexpr std::uint64_t kLong = 1000;
    if (!entry_ || entry_->is_long || milliseconds() < kLong) return false;
    entry_->is_long = true;
    return true;
}

bool others_wait(Order order, const Device &device) noexcept try {
    const Bytes credited = device.ledger.credited();
    // Calls `act` with what is known, under the lock.
    const auto update = [&](auto act) {
        return others.locked([&](auto &all) {
            return act(all[static_cast<std::size_t>(device.ordinal)][static_cast<std::size_t>(order)]);
        });
    };
    const std::optional<bool> known = update([&](Others &now) -> std::optional<bool> {
        if (!now.check.due(now_ms(), now.has_waited || now.credited != credited)) return now.wait;
        now.check.began(now_ms());
        now.has_waited = false;
        now.credited = credited;
        return std::nullopt;
    });
    if (known) return *known;
    const KeepErrno keep_errno;
    const std::uint64_t began_ns = processor_ns();
    const bool wait = places() && control::Ticket::others_wait(*places(), name_of(order, device), among(order));
    const std::uint64_t took_ns = processor_ns() - began_ns;
    update([&](Others &now) {
        now.wait = wait;
        now.check.ended(now_ms(), took_ns);
    });
    return wait;
} catch (...) {
    return false;
}

std::uint64_t longest_wait_ms() noexcept {
    std::uint64_t longest = 0;
    const std::scoped_lock lock(queue.mutex);
    for (const Entry *one = queue.first; one; one = one->next)
        if (one->request.why == policy::Limit::device || one->request.why == policy::Limit::keep_free)
            longest = std::max(longest, one->milliseconds());
    return longest;
}

std::vector<Waiting> waiting() {
    std::vector<Waiting> out;
    {
        const std::scoped_lock lock(queue.mutex);
        for (const Entry *one = queue.first; one; one = one->next)
            out.push_back({one->request, one->thread, one->milliseconds()});
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Waiting &a, const Waiting &b) { return a.milliseconds > b.milliseconds; });
    return out;
}

}  // namespace curb::shim::wait_queue
