#include "job/job_ledger.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "control/proc.hpp"
#include "control/suspended.hpp"
#include "job/exports.hpp"
#include "job/segment.hpp"
#include "policy/decisions/growth.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::job {
namespace {

// The result of join(). Never destroyed.
struct Joined {
    bool tried = false;
    std::string name, fault;
    std::atomic<bool> has_name{false};  // other threads may read the name
};
Joined &joined() noexcept { return leaked<Joined>(); }

// ---- the slot ----

// This process's slot.
struct OwnSlot {
    enum State : std::uint32_t { starting, taken, none_free };
    std::atomic<std::uint32_t> state{starting};  // a futex
    std::atomic<std::uint32_t> word{0};          // the value of its owner's word; written after `mine`
    // The list that the kernel walks when the thread that called set_robust_list(2) ends. All of it is this process's
    // own memory, so that nothing in the segment can mislead the kernel or the C library; only the owner's word lies
    // there.
    robust_list entry{};
    robust_list_head robust{};

    void set(State now) noexcept {
        state.store(now);
        futex_wake(state);
    }
};
constinit OwnSlot own_slot{};

// Identifies the namespaces in which this process sees pids and start times: /proc shows the latter by the clock of the
// reader's namespace of time. 0: unknown.
std::uint64_t namespaces() noexcept {
    const auto inode = [](const char *path) noexcept -> std::uint64_t {
        struct stat status {};
        return stat(path, &status) == 0 ? status.st_ino : 0;
    };
    const std::uint64_t pids = inode("/proc/self/ns/pid");
    return pids == 0 ? 0 : pids | inode("/proc/self/ns/time") << 32;
}

// True if the pid and the start of the process in the slot say something here.
bool is_visible(const Member &member) noexcept {
    const std::uint64_t home = member.namespaces.load();
    return home != 0 && home == namespaces();
}

// Enters the job, and sets `life`. The process has taken its slot but does not count yet. If no other process counts,
// it begins a new life of the job, unless another one has entered since `before` was read.
void enter(std::uint32_t slot, std::uint32_t owner) noexcept {
    constexpr int kTries = 1000;  // a program that writes there without end does not keep us here
    for (int tries = 0; tries < kTries; ++tries) {
        std::uint64_t before = segment->life.load();
        bool is_empty = true;
        for_each_living([&](std::uint32_t) { is_empty = false; });
        if (!is_empty || segment->life.compare_exchange_strong(before, ((before >> 32) + 1) << 32)) break;
    }
    mine = slot;
    own_slot.word.store(owner);
    segment->owner[slot].store(owner);
    life = static_cast<std::uint32_t>(segment->life.fetch_add(1) >> 32);
    segment->member[slot].life.store(life);
}

// Clears the slot and makes its owner count. The caller has put `owner` and FUTEX_OWNER_DIED into its word.
void move_in(std::uint32_t slot, std::uint32_t owner) noexcept {
    Member &member = segment->member[slot];
    for (std::size_t i = 0; i < kGpus; ++i) {
        if (segment->gpus[i].load() == 0) continue;  // a row that no process has used is all zeroes
        Row &row = segment->row[i];
        for (auto *figures : {row.held, row.kept, row.asking}) figures[slot].store(0);
        row.answered[slot].store(row.wanted.load());
    }
    segment->exported[slot].end.store(0);
    segment->imported[slot].end.store(0);
    member.number.store(segment->joins.fetch_add(1) + 1);
    const KeepErrno keep_errno;
    member.pid.store(static_cast<std::uint32_t>(getpid()));
    const std::uint64_t start = control::suspended::start_of(getpid());
    member.start.store(start);
    member.namespaces.store(start == 0 ? 0 : namespaces());  // without a free descriptor /proc shows no start
    std::array<char, 16> name{};
    const int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);  // of the first thread
    const ssize_t length = file < 0 ? 0 : read(file, name.data(), name.size() - 1);
    if (file >= 0) close(file);
    if (length > 0 && name[static_cast<std::size_t>(length) - 1] == '\n')
        name[static_cast<std::size_t>(length) - 1] = '\0';
    for (std::size_t i = 0; i < 2; ++i) {
        std::uint64_t part = 0;
        std::memcpy(&part, name.data() + 8 * i, sizeof part);
        member.name[i].store(part);
    }
    std::uint32_t slots = segment->slots.load();
    while (slots <= slot && !segment->slots.compare_exchange_weak(slots, slot + 1)) {
    }
    enter(slot, owner);
}

std::uint64_t now_ms() noexcept {
    timespec now{};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);  // the true one, also beside libfaketime
    return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

// True if /proc shows that the process of this slot has ended, or if it was this one, before it called exec. False if
// that cannot be known.
bool has_ended(const Member &member) noexcept {
    const auto pid = static_cast<int>(member.pid.load());
    return is_visible(member) && (pid == getpid() || control::suspended::has_ended(pid, member.start.load()));
}

// When this process first saw the process of each slot dying. Not in the segment, since the clocks of two namespaces of
// time differ.
struct SeenDying {
    std::atomic<std::uint32_t> number{0};  // of the process
    std::atomic<std::uint64_t> since_ms{0};
};
constinit std::array<SeenDying, kSlots> seen_dying{};

// Milliseconds after which one that called exec, or one that /proc does not show here, no longer counts.
constexpr std::uint64_t kAlive = 500, kUnseen = 100;

// True if the driver has the memory of the dying process in this slot back. The kernel marks the slot when the first
// threads end, and the driver frees the memory when the last one closes its files, however long that takes.
bool is_gone(std::uint32_t slot) noexcept {
    const Member &member = segment->member[slot];
    if (has_ended(member)) return true;
    const bool is_seen = is_visible(member);
    if (is_seen && control::is_exiting(static_cast<int>(member.pid.load()))) return false;
    SeenDying &dying = seen_dying[slot];
    const std::uint32_t number = member.number.load();
    const std::uint64_t now = now_ms();
    if (dying.number.load() != number) {
        dying.since_ms.store(now);
        dying.number.store(number);
        return false;
    }
    return now - dying.since_ms.load() > (is_seen ? kAlive : kUnseen);
}

}  // namespace

bool clear_if_gone(std::uint32_t slot, std::uint32_t owner) noexcept {
    const KeepErrno keep_errno;
    const std::uint32_t number = segment->member[slot].number.load();
    if (!is_gone(slot)) return false;
    if (!segment->owner[slot].compare_exchange_strong(owner, 0)) return true;
    if (segment->member[slot].number.load() == number) return true;
    // Meanwhile another process has had the slot, and is dying too: the kernel marks all alike.
    std::uint32_t cleared = 0;
    segment->owner[slot].compare_exchange_strong(cleared, FUTEX_OWNER_DIED);
    return false;
}

namespace {

// Frees the slots of processes without the thread that have ended. True if there were any.
bool forget_ended() noexcept {
    const KeepErrno keep_errno;
    bool any = false;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        std::uint32_t owner = segment->owner[slot].load();
        if (!lives(owner) || (owner & kByPid) == 0 || (slot == mine && has_slot())) continue;
        if (has_ended(segment->member[slot])) any |= segment->owner[slot].compare_exchange_strong(owner, 0);
    }
    return any;
}

// If all processes of the job are dying, waits until they are gone, so that what they share ends with them. Waits a
// little longer than is_gone() counts those that /proc does not show as exiting.
void wait_for_dying() noexcept {
    poll_until(
        [] {
            bool is_dying_only = false;
            for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
                const std::uint32_t owner = segment->owner[slot].load();
                if (lives(owner)) return true;
                is_dying_only |= is_dying(owner) && !clear_if_gone(slot, owner);
            }
            return !is_dying_only;
        },
        kAlive + 100);
}

// Takes a slot for `owner`. `prepare(slot)` runs before each attempt. False if none is free.
template <class Prepare>
bool take_slot(std::uint32_t owner, Prepare prepare) noexcept {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        std::uint32_t before = segment->owner[slot].load();
        if (is_dying(before) && clear_if_gone(slot, before)) before = segment->owner[slot].load();
        if (!is_free(before)) continue;
        prepare(slot);
        if (!segment->owner[slot].compare_exchange_strong(before, owner | FUTEX_OWNER_DIED)) continue;
        move_in(slot, owner);
        return true;
    }
    return false;
}

// As futex_wait() and futex_wake(), between processes. The wait ends after a day.
void wait_for_others(std::atomic<std::uint32_t> &word, std::uint32_t value) noexcept {
    const KeepErrno keep_errno;
    const timespec most{86'400, 0};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}
void tell_others() noexcept {
    segment->changes.fetch_add(1);
    const KeepErrno keep_errno;
    syscall(SYS_futex, &segment->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

constinit Events events{};

// A request of Events::wanted: the row, and the number of the request.
constexpr std::uint64_t request_of(std::size_t row, std::uint32_t number) noexcept {
    return static_cast<std::uint64_t>(row) << 32 | number;
}

// Passes on the requests that this process has not answered, and changed live caps.
void pass_on_changes() noexcept {
    static std::array<std::uint32_t, kGpus> passed_on{};
    static std::array<Bytes, kGpus> live_caps{};
    bool caps_changed = false;
    for (std::size_t i = 0; i < kGpus; ++i) {
        if (!is_of_life(segment->gpus[i].load(), life)) continue;
        Row &row = segment->row[i];
        const Bytes live_cap = row.live_cap.in(life);
        caps_changed |= std::exchange(live_caps[i], live_cap) != live_cap;
        const std::uint32_t wanted = row.wanted.load(), before = std::exchange(passed_on[i], wanted);
        if (wanted == before) continue;
        // Several at once count as one of the others: this process may have made only the latest.
        const bool own = wanted % kSlots == mine && wanted / kSlots - before / kSlots == 1;
        if (own || row.held[mine].load() == 0)
            row.answered[mine].store(wanted);
        else
            events.wanted(row.wanted_bytes.load(), request_of(i, wanted));
    }
    if (caps_changed) events.caps_changed();
}

// The thread curb-job: holds the slot until the process ends, and passes on the requests of the others.
void hold_slot() {
    robust_list &entry = own_slot.entry;
    robust_list_head &robust = own_slot.robust;
    robust.list.next = &entry;
    entry.next = &robust.list;
    robust.futex_offset = 0;
    auto owner = static_cast<std::uint32_t>(syscall(SYS_gettid));
    if (syscall(SYS_set_robust_list, &robust, sizeof robust) != 0)  // a sandbox may forbid it
        owner = static_cast<std::uint32_t>(getpid()) | kByPid;
    const bool taken = take_slot(owner, [&](std::uint32_t slot) {
        robust.futex_offset =
            reinterpret_cast<char *>(&segment->owner[slot]) - reinterpret_cast<char *>(&entry);  // NOLINT
        std::atomic_signal_fence(std::memory_order_seq_cst);
    });
    own_slot.set(taken ? OwnSlot::taken : OwnSlot::none_free);
    if (!taken) return;
    for (;;) {
        const std::uint32_t seen = segment->changes.load();
        pass_on_changes();
        wait_for_others(segment->changes, seen);
        constexpr std::uint64_t kPauseMs = 10;  // a program that writes there without end does not keep it busy
        sleep_ms(kPauseMs);
    }
}

std::string take_own_slot() {
    constexpr const char *kFull = "all its 128 processes are taken";
    constexpr std::uint64_t kPatienceMs = 2000;
    forget_ended();
    wait_for_dying();
    if (own_thread::start(hold_slot, "curb-job")) {
        for (std::uint64_t waited = 0; own_slot.state.load() == OwnSlot::starting && waited < kPatienceMs;
             waited += 100)
            futex_wait(own_slot.state, OwnSlot::starting, 100);
        const std::uint32_t state = own_slot.state.load();
        if (state == OwnSlot::taken) return {};
        return state == OwnSlot::none_free ? kFull : "curb's thread for it does not start";
    }
    if (take_slot(static_cast<std::uint32_t>(getpid()) | kByPid, [](std::uint32_t) {})) return {};
    return kFull;
}

// ---- sums ----

std::uint32_t index_of(const Row &row) noexcept { return static_cast<std::uint32_t>(&row - segment->row); }

}  // namespace

bool has_slot() noexcept {
    const std::uint32_t word = own_slot.word.load();
    return word != 0 && segment->owner[mine].load() == word;
}

void answered(std::uint64_t request) noexcept {
    segment->row[request >> 32].answered[mine].store(static_cast<std::uint32_t>(request));
}

std::string join(std::string_view name, const Events &what) {
    Joined &out = joined();
    if (std::exchange(out.tried, true)) return out.fault;
    events = what;
    constexpr int kTries = 100;  // as often as others may make and remove segments between two calls
    for (int tries = 0; tries < kTries; ++tries) {
        bool again = false;
        out.fault = attach(key_of(name, geteuid()), hash_of(name), segment, again);
        if (!again) break;
    }
    if (out.fault.empty()) out.fault = take_own_slot();
    if (out.fault.empty()) {
        out.name = name;
        out.has_name.store(true);
    }
    return out.fault;
}

std::string name() { return joined().has_name.load() ? joined().name : ""; }

std::string key() { return std::to_string(hash_of(name())); }

bool Share::open(std::string_view uuid, Bytes held) noexcept {
    if (joined()) return true;
    const std::uint64_t gpu = gpu_in(life, uuid);
    for (std::size_t i = 0; i < kGpus; ++i) {
        std::uint64_t there = segment->gpus[i].load();
        if (!is_of_life(there, life) && segment->gpus[i].compare_exchange_strong(there, gpu)) there = gpu;
        if (there != gpu) continue;
        Row &row = segment->row[i];
        row.held[mine].fetch_add(held);
        row_.store(&row);
        return true;
    }
    return false;
}

void Share::add_joined(Bytes bytes) noexcept { row_.load()->held[mine].fetch_add(bytes); }

void Share::keep(Bytes bytes) const noexcept {
    Row *const row = row_.load();
    if (row && row->kept[mine].load() != bytes) row->kept[mine].store(bytes);
}

Share::Answer Share::reserve(Bytes bytes, Bytes cap) noexcept {
    Row &row = *row_.load();
    // A lower live cap applies at once, before this process has put it in force.
    if (const Bytes live = row.live_cap.in(life); live != 0) cap = std::min(cap, live - 1);
    if (bytes > cap) return Answer::over;
    row.asking[mine].fetch_add(bytes);
    row.held[mine].fetch_add(bytes);
    const auto sums = [&row] {
        struct {
            Bytes all = 0, asking = 0;
        } out;
        for_each_living([&](std::uint32_t slot) {
            out.asking = policy::added(out.asking, row.asking[slot].load());
            out.all = policy::added(out.all, policy::added(row.held[slot].load(), row.kept[slot].load()));
        });
        out.all = policy::added(out.all, left_behind(index_of(row)));  // after the sum: see exports.hpp
        return out;
    };
    auto now = sums();
    if (now.all > cap && forget_ended()) now = sums();
    const bool fits = now.all <= cap && has_slot();
    if (!fits) row.held[mine].fetch_sub(bytes);
    row.asking[mine].fetch_sub(bytes);
    if (fits) return Answer::reserved;
    const Bytes others_ask = now.asking - std::min(now.asking, bytes);
    return has_slot() && now.all - std::min(now.all, others_ask) <= cap ? Answer::contended : Answer::over;
}

Bytes Share::context_cost() const noexcept {
    const Row *const row = row_.load();
    return row ? row->context.in(life) : 0;
}

void Share::note_context_cost(Bytes bytes) const noexcept {
    if (Row *const row = row_.load()) row->context.set(bytes, life);
}

std::optional<Bytes> Share::live_cap() const noexcept {
    const Row *const row = row_.load();
    const Bytes cap = row ? row->live_cap.in(life) : 0;
    return cap == 0 ? std::nullopt : std::optional(cap - 1);
}

void Share::set_live_cap(std::optional<Bytes> cap) const noexcept {
    Row *const row = row_.load();
    if (!row) return;
    row->live_cap.set(cap ? policy::added(std::min(*cap, policy::kUnbounded - 1), 1) : 0, life);
    tell_others();
}

bool Share::may_ask_others() const noexcept { return joined() && may_ask_at_ms_.load() <= now_ms(); }

void Share::ask_others(Bytes bytes) noexcept {
    constexpr std::uint64_t kMostMs = 500, kAgainMs = 100, kUnansweredAgainMs = 10'000;
    if (asking_.exchange(true)) {
        poll_until([&] { return !asking_.load(); }, kMostMs);
        return;
    }
    Row &row = *row_.load();
    const Bytes before = others();
    const auto given = [&] { return before - std::min(before, others()); };
    row.wanted_bytes.store(bytes);
    std::uint32_t latest = row.wanted.load(), own = 0;
    do {
        own = (latest / kSlots + 1) * kSlots + mine;
    } while (!row.wanted.compare_exchange_weak(latest, own));
    tell_others();
    const auto is_answered = [&] {
        bool all = true;
        for_each_living([&](std::uint32_t slot) {
            const auto ahead = static_cast<std::int32_t>(row.answered[slot].load() - own);
            all &= slot == mine || row.held[slot].load() == 0 || ahead >= 0;
        });
        return all || given() >= bytes;
    };
    const bool all_answered = poll_until(is_answered, kMostMs);
    if (given() == 0) may_ask_at_ms_.store(now_ms() + (all_answered ? kAgainMs : kUnansweredAgainMs));
    asking_.store(false);
}

void Share::let_others_pass(int tries) const noexcept {
    for (std::uint32_t i = 0; i <= mine % 16; ++i) sched_yield();
    if (tries > 8) sleep_us(std::uint64_t{20} * (mine + 1));
}

Bytes Share::others() const noexcept {
    const Row *const row = row_.load();
    if (!row) return 0;
    if (!has_slot()) return policy::kUnbounded;
    Bytes out = 0;
    for_each_living([&](std::uint32_t slot) {
        if (slot != mine) out = policy::added(out, policy::added(row->held[slot].load(), row->kept[slot].load()));
    });
    return policy::added(out, left_behind(index_of(*row)));
}

Bytes Share::held_by_all() const noexcept {
    const Row *const row = row_.load();
    Bytes out = 0;
    if (!row) return out;
    for_each_living([&](std::uint32_t slot) { out = policy::added(out, row->held[slot].load()); });
    return policy::added(out, left_behind(index_of(*row)));
}

Bytes Share::kept_by_all() const noexcept {
    const Row *const row = row_.load();
    Bytes out = 0;
    if (row) for_each_living([&](std::uint32_t slot) { out = policy::added(out, row->kept[slot].load()); });
    return out;
}

std::optional<std::uint32_t> Share::row() const noexcept {
    const Row *const row = row_.load();
    return row ? std::optional(index_of(*row)) : std::nullopt;
}

std::vector<Share::Holder> Share::holders() const {
    const Row *const row = row_.load();
    std::vector<Holder> out;
    if (!row) return out;
    out.reserve(kSlots);
    std::array<Bytes, kSlots> imported{};
    for_each_left_behind(index_of(*row), [&](std::uint32_t slot, Bytes bytes) {
        imported[slot] = policy::added(imported[slot], bytes);
    });
    for_each_living([&](std::uint32_t slot) {
        const Member &member = segment->member[slot];
        const Bytes held = policy::added(row->held[slot].load(), imported[slot]);
        Holder one{.pid = member.pid.load(), .held = held, .self = slot == mine};
        for (std::size_t i = 0; i < 2; ++i) {
            const std::uint64_t part = member.name[i].load();
            std::memcpy(one.name.data() + 8 * i, &part, sizeof part);
        }
        one.name.back() = '\0';
        if (one.held != 0) out.push_back(one);
    });
    std::sort(out.begin(), out.end(), [](const Holder &a, const Holder &b) { return a.held > b.held; });
    return out;
}

}  // namespace curb::shim::job
