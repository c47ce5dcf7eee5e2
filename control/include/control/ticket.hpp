// The order in which processes that wait for memory of a GPU get it, of all users: first come, first served for the
// processes of one user; between users the one who holds less of that GPU goes first. Of two programs that take turns
// (suspend.turn) the one goes first that has been on the GPU for less time lately, and its user. A request that does
// not fit holds up none that does, and one that fits beside the earlier ones does not wait.
//
// A program whose turn has come does not know yet how much memory it will need: its claim keeps others from coming back
// until the turn is over.
//
// It needs no daemon: each request has a text link (text_link.hpp) in the public folder of its user. Who holds how much
// is on the board (board.hpp). Users need not trust each other: what others write delays a request by kLongest at most.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/runtime_dir.hpp"
#include "policy/values/size.hpp"

namespace curb::control {

// What a process that takes turns says with its request.
struct InTurns {
    std::chrono::milliseconds lately{};  // on the GPU (policy/decisions/turns.hpp)
    policy::Bytes keeps_free = 0;        // of the GPU, beside what it asks for
    bool is_seldom_busy = false;
    std::chrono::milliseconds patience{};  // with claims of others
};

// One request in the order. Used by one thread at a time. Uses no descriptor beyond a call.
class Ticket {
  public:
    // A request that fits waits at most this long: the processes before it may not take what is free.
    static constexpr std::chrono::seconds kLongest{5};
    // Whose requests are in the order.
    enum class Among : std::uint8_t { user, all };

    // Queues a request for `bytes` of this GPU ("GPU-…"). `shown`: other users see it; else they do not wait for it.
    // Without a usable folder, or without /proc, there is no order: it may always take. May throw std::bad_alloc.
    Ticket(Places places, const std::string &uuid, policy::Bytes bytes, Among among = Among::all, bool shown = true,
           std::optional<InTurns> in_turns = {});
    Ticket(Ticket &&other) noexcept;
    Ticket &operator=(Ticket &&) = delete;
    ~Ticket();

    // Call it at least once a second: after 5 s without it others go on as if this request were not there. Writes the
    // request anew if its file has been deleted.
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

    // The request has been served, and the process's turn begins: until the ticket ends, the process goes before all
    // others, and none takes what is free. May throw std::bad_alloc.
    void claim();
    [[nodiscard]] bool takes_turns() const noexcept { return in_turns_.has_value(); }

    // The first request in the order that does not fit into `room`, of any process, this one too. Those of a process
    // with a claim go before all others.
    struct Lacking {
        uid_t owner = 0;
        ProcessName process{};
        std::uint64_t pid_namespace = 0;
        policy::Bytes missing = 0;
        bool is_seldom_busy = false;
        std::chrono::milliseconds waits{};
    };
    // May throw std::bad_alloc.
    static std::optional<Lacking> first_lacking(const Places &places, const std::string &uuid, policy::Bytes room);

    // True if another process waits for memory of this GPU. May throw std::bad_alloc.
    static bool others_wait(const Places &places, const std::string &uuid, Among among = Among::all);
    // Deletes the files of dead processes that have waited for any GPU, in this folder of our own, as long as `goes_on`
    // returns true. May throw std::bad_alloc.
    static void remove_stale(const Descriptor &folder, bool (*goes_on)() noexcept);

  private:
    struct Entry;
    enum class State : std::uint8_t { waits, has_reserved, claims };
    // What each user has of the GPU, by the board.
    class Holdings {
      public:
        // True if `a` goes before `b`.
        bool goes_first(const Places &places, const std::string &begins, const Entry &a, const Entry &b);

      private:
        struct Holding {
            uid_t user = 0;
            policy::Bytes bytes = 0;
            std::chrono::milliseconds lately{};
        };
        void read(const Places &places, const std::string &begins);
        [[nodiscard]] Holding of(uid_t user) const;

        std::vector<Holding> all_;
        std::uint64_t read_ns_ = 0;
    };
    [[nodiscard]] Entry own() const;
    [[nodiscard]] bool is_held_back_for_long(bool is_held_back) noexcept;
    [[nodiscard]] bool heeds_claim(const std::vector<Entry> &all) noexcept;
    [[nodiscard]] std::vector<Entry> others() const;
    // False if that fails, or there is no usable folder. May throw std::bad_alloc.
    bool write(State state);

    Places places_;
    Among among_;
    std::string begins_, name_, path_;  // path_ is empty: there is no order
    bool is_public_;
    policy::Bytes bytes_;
    std::optional<InTurns> in_turns_;
    State state_ = State::waits;
    ProcessName process_{};  // read once: later the program may have no descriptor left for /proc
    std::uint64_t pid_namespace_ = 0, renewed_ns_ = 0;
    std::uint64_t held_back_since_ns_ = 0;  // when others began to delay it; 0: none does
    std::uint64_t claimed_since_ns_ = 0;    // when a claim of another process began to; 0: there is none
    Holdings holdings_;
};

}  // namespace curb::control
