// The order in which processes that wait for memory of a GPU get it, of all users: first come, first served for the
// processes of one user; between users the one who holds less of that GPU goes first. A request that does not fit holds
// up none that does, and one that fits beside the earlier ones does not wait.
//
// It needs no daemon: each request has a text link (text_link.hpp) in the public folder of its user. Who holds how much
// is on the board (board.hpp). Users need not trust each other: what others write delays a request by kLongest at most.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "control/runtime_dir.hpp"
#include "policy/values/size.hpp"

namespace curb::control {

// One place in the order. Used by one thread. Uses no descriptor beyond a call.
class Ticket {
  public:
    // A request that fits waits at most this long: the processes before it may not take what is free.
    static constexpr std::chrono::seconds kLongest{5};
    // Whose requests are in the order.
    enum class Among : std::uint8_t { user, all };

    // Queues a request for `bytes` of this GPU ("GPU-…"). `shown`: other users see it; else they do not wait for it.
    // Without a usable folder there is no order: it may always take. May throw std::bad_alloc.
    Ticket(Places places, const std::string &uuid, policy::Bytes bytes, Among among = Among::all, bool shown = true);
    Ticket(Ticket &&other) noexcept;
    Ticket &operator=(Ticket &&) = delete;
    ~Ticket();

    // Call it at least once a second: after 5 s without it others go on as if this request were not there.
    void renew() noexcept;
    // True if this request fits into `room`, the free bytes, beside those that go first and fit too; they delay it by
    // kLongest at most. If it does not fit: true if none goes first. False for any time if others of this user have
    // reserved so much of `room` that this request does not fit. Deletes the files of this user's dead processes. May
    // throw std::bad_alloc.
    [[nodiscard]] bool may_take(policy::Bytes room);

    // Reserves the bytes until the ticket ends or gives the reservation up: other requests in the order leave them
    // free, those of other users for kLongest at most. False if they do not fit into `room` less what others have
    // reserved. May throw std::bad_alloc.
    [[nodiscard]] bool reserve(policy::Bytes room);
    void give_up_reservation();

    // True if another process waits for memory of this GPU. May throw std::bad_alloc.
    static bool others_wait(const Places &places, const std::string &uuid, Among among = Among::all);
    // Deletes the files of this user's dead processes that have waited for any GPU. May throw std::bad_alloc.
    static void remove_stale(const Places &places);

  private:
    struct Entry;
    [[nodiscard]] bool goes_first(const Entry &other, const Entry &own);
    [[nodiscard]] bool is_held_back_for_long(bool is_held_back) noexcept;
    [[nodiscard]] std::vector<Entry> others() const;
    bool write(bool reserved);

    Places places_;
    Among among_;
    std::string begins_, name_, path_;  // path_ is empty: there is no order
    policy::Bytes bytes_;
    std::uint64_t pid_namespace_ = 0, renewed_ns_ = 0;
    std::uint64_t held_back_since_ns_ = 0;  // when others began to delay it; 0: none does
    // What each user holds of the GPU, and when that was read.
    struct Holding {
        uid_t user = 0;
        policy::Bytes bytes = 0;
    };
    std::vector<Holding> holdings_;
    std::uint64_t holdings_read_ns_ = 0;
};

}  // namespace curb::control
