#include "admission/admission.hpp"

#include <algorithm>
#include <optional>

#include "accounting/reconcile.hpp"
#include "admission/pressure.hpp"
#include "admission/reports.hpp"
#include "base/keep_errno.hpp"
#include "blocks/applies.hpp"
#include "cache/cache.hpp"
#include "contexts/captures.hpp"
#include "device/sharers.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/limits.hpp"
#include "pools/pools.hpp"

namespace curb::shim::admission {
namespace {

using policy::Verdict;

// Fills the terms, after measuring the device if the ledger may be stale. True if it measured, which takes time.
// `measured`: this request has already reconciled the device.
bool measure_if_stale(Device &device, const Snapshot &now, Bytes bytes, policy::Terms &out,
                      bool measured = false) noexcept {
    limits::fill(device, now, out);
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    if (now.unusable || !gpu.limited()) return false;
    const auto room_under = [&](Bytes limit) {
        const Bytes room = policy::room(limit, out.kept_for_driver, device.ledger.held());
        return room - std::min(room, bytes);
    };
    bool asked = false;
    if (gpu.terms.growth.keep_free != 0 &&
        policy::measure_reach_again(room_under(out.limit_beside_others), bytes, device.freshness.reach_age_ms())) {
        measure_reach(device);
        asked = true;
    }
    const Bytes limit = policy::limit(out);
    if (limit != policy::kUnbounded) {
        const Bytes room = room_under(limit);
        if (room < policy::Staleness::kNear && device.ledger.ahead().bytes() != 0) pools::settle_ahead(device);
        switch (policy::measure_again(room, device.freshness.age_ms(), device.freshness.has_changed())) {
            case policy::Measure::not_yet: break;
            case policy::Measure::soon: devices::measure_soon(device); break;
            case policy::Measure::now:
                if (measured) break;
                reconcile_unless_fresh(device);
                asked = true;
                break;
        }
    }
    if (asked) limits::fill(device, now, out);
    return asked;
}

// From the first settle() to its end, no bytes of the device are reserved ahead. Before curb refuses a request, it
// gives the request these bytes.
class NothingAhead {
  public:
    explicit NothingAhead(Device &device) noexcept : device_(device) {}
    // Takes back what is reserved ahead, and what requests under way have returned meanwhile.
    void settle() noexcept {
        closed_.begin(device_.ledger);
        if (device_.ledger.ahead().bytes() != 0) pools::settle_ahead(device_);
    }

  private:
    Device &device_;
    Ledger::NothingAhead closed_;
};

// Returns the bytes that the request lacks; at least one.
Bytes shortfall(const policy::Terms &terms, Bytes held, Bytes bytes) noexcept {
    const Bytes beside = terms.limit_beside_others - std::min(terms.limit_beside_others, held);
    const Bytes room = std::min(policy::room(policy::limit(terms), terms.kept_for_driver, held), beside);
    return std::max<Bytes>(bytes - std::min(bytes, room), 1);
}

// Returns the bytes that are free for this process: of the device, or under the cap of its job.
Bytes room_in(wait_queue::Order order, Device &device, const policy::Growth &growth,
              const policy::Terms &asked) noexcept {
    const Bytes held = device.ledger.held();
    if (order == wait_queue::Order::job) {
        const Bytes others = device.ledger.share.others();
        return policy::room(asked.job_cap - std::min(asked.job_cap, others), asked.kept_for_driver, held);
    }
    return growth.keep_free != 0 ? asked.limit_beside_others - std::min(asked.limit_beside_others, held)
                                 : device.meter.free().value_or(policy::kUnbounded);  // unknown: no order
}

// Returns the limit at which an earlier request of another process waits for memory that is free now. nullopt if it is
// this request's turn.
std::optional<policy::Limit> behind_others(Device &device, const policy::Growth &growth, wait_queue::Wait &wait,
                                           Bytes bytes, const policy::Terms &asked) noexcept {
    for (const wait_queue::Order order : wait_queue::kOrders) {
        if (order == wait_queue::Order::job && asked.job_cap == 0) continue;
        if (!wait.is_in_order(order) && !wait_queue::others_wait(order, device)) continue;
        if (!wait.may_take(order, device, bytes, room_in(order, device, growth, asked)))
            return order == wait_queue::Order::job ? policy::Limit::job : policy::Limit::device;
    }
    return std::nullopt;
}

// True if the request waits for its turn on the device (suspend.turn): once others have left, it may be served.
bool awaits_turn(Device &device, const Snapshot &now, Bytes bytes, const reports::LimitHit &hit,
                 wait_queue::Wait &wait) noexcept {
    if (!reports::waits_for_turn(now.policy.suspend, hit.why)) return false;
    const Bytes wanted = policy::added(bytes, now.of(device.ordinal).terms.growth.keep_free);
    const Bytes own = device.ledger.held();
    const auto free = device.meter.free();
    if (!free || wanted > device.total - std::min(device.total, own)) return false;
    // What others say of themselves may be a second old.
    return wait.may_await_turn(wanted <= policy::added(*free, sharers::can_leave(device)));
}

// How often one request asks the other processes of the job: a third process may take the memory that one of them
// releases.
constexpr int kMostAsks = 8;

// How often a waiting request checks for memory freed by other processes; a free in this process wakes it at once.
constexpr std::uint64_t kPollMs = 20;

// What follows an attempt.
enum class Next {
    granted,
    again,
    wait,
    refuse,
    refused,  // and reported
};

// The end of an attempt.
struct Answer {
    Next next{};
    reports::LimitHit hit{};           // if it must wait or is refused
    std::uint64_t sleep_ms = kPollMs;  // at most
};

// Waits if the policy still allows it, and refuses else.
Answer wait_or_refuse(const wait_queue::Wait &wait, const Snapshot::Gpu &gpu, const reports::LimitHit &hit) noexcept {
    return {wait.left(gpu.terms.growth.wait) ? Next::wait : Next::refuse, hit};
}

// Calls `try_once(in_use, gpu)` with the snapshot and the device's part of it, until the request is granted or refused.
// Reports waits and refusals. Every request that waits for memory sleeps here, without a reference to the snapshot.
template <class TryOnce>
bool until_granted(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait, TryOnce try_once) noexcept {
    for (;;) {
        wait.attempt();
        auto in_use = in_force::snapshot();
        const Snapshot::Gpu &gpu = in_use->of(device.ordinal);
        const auto &[answer, hit, sleep_ms] = try_once(in_use, gpu);
        const bool waits_for_turn = answer == Next::refuse && awaits_turn(device, *in_use, bytes, hit, wait);
        const Next next = waits_for_turn ? Next::wait : answer;
        if (next == Next::granted) return true;
        if (next == Next::again) continue;
        if (next == Next::refuse) reports::refusal(device, gpu, bytes, hit);
        if (next != Next::wait) return false;
        if (!wait.began()) reports::waiting(device, gpu, bytes, hit);
        if (wait.becomes_long()) reports::waits_long(device, gpu, bytes, hit, wait);
        if (hit.why == policy::Limit::keep_free || hit.why == policy::Limit::device)
            wait.join(wait_queue::Order::device, device, bytes);
        if (hit.why == policy::Limit::job) wait.join(wait_queue::Order::job, device, bytes);
        in_use.let_go();
        wait.sleep({device.ordinal, kind, bytes, hit.why}, sleep_ms);
    }
}

// The attempts of one request to reserve bytes, and what it has tried for them.
class Attempts : NoCopy {
  public:
    Attempts(Device &device, Kind kind, Bytes bytes, caller_match::Way retry, wait_queue::Wait &wait) noexcept
        : device_(device), kind_(kind), bytes_(bytes), retry_(retry), wait_(wait) {}

    Answer next(InUse<Snapshot> &in_use, const Snapshot::Gpu &gpu) noexcept {
        Attempt now{in_use, gpu};
        if (!decide(now)) return {Next::again};
        if (now.verdict == Verdict::grant) return {Next::granted};
        using Self = Attempts;
        constexpr std::optional<Next> (Self::*kRemedies[])(Attempt &) noexcept = {
            &Self::take_back_ahead,     &Self::free_kept, &Self::release,
            &Self::refuse_for_pressure, &Self::grow,      &Self::ask_job};
        for (const auto remedy : kRemedies)
            if (const auto next = (this->*remedy)(now)) return {*next};
        if (now.verdict == Verdict::refuse) return {Next::refuse, limit_hit(now)};
        released_ = false;
        from_cache_ = asks_ = 0;
        return {Next::wait, limit_hit(now), now.until_step == 0 ? kPollMs : std::min(now.until_step, kPollMs)};
    }

  private:
    struct Attempt {
        InUse<Snapshot> &in_use;
        const Snapshot::Gpu &gpu;
        policy::Terms asked{};
        std::uint64_t until_step = 0;           // in ms
        std::optional<policy::Limit> behind{};  // earlier requests of other processes wait at this limit
        Verdict verdict{};
        Bytes seen = 0;  // held when the ledger decided
    };

    // Reserves the bytes if the limits grant them. False if a new policy came meanwhile.
    bool decide(Attempt &now) noexcept {
        const Snapshot &snapshot = *now.in_use;
        const policy::Growth &growth = now.gpu.terms.growth;
        policy::Terms &asked = now.asked;
        // Measuring takes time: start again if a new policy came meanwhile.
        if (measure_if_stale(device_, snapshot, bytes_, asked, released_) && !in_force::is_current(snapshot))
            return false;
        const bool grows = growth.start.has_value();
        now.until_step = grows ? policy::until_step(growth, now_ms(), now.gpu.allowance.last_step_ms()) : 0;
        asked.step_due = grows && now.until_step == 0 && policy::after_step(growth, asked.allowance) > asked.allowance;
        asked.release_before_growth = *snapshot.policy.release.before_growth;
        asked.may_wait = wait_.left(growth.wait);
        asked.released = released_;
        if (blocks::takes_turns(snapshot.policy.suspend) || wait_.left(growth.wait))
            now.behind = behind_others(device_, growth, wait_, bytes_, asked);
        now.verdict = now.behind ? Verdict::wait : device_.ledger.reserve(kind_, bytes_, asked, &now.seen);
        return true;
    }

    [[nodiscard]] reports::LimitHit limit_hit(const Attempt &now) const noexcept {
        return {kind_, now.behind ? *now.behind : policy::limit_hit(now.asked, now.seen, bytes_), now.seen,
                now.asked.kept_for_driver, now.behind.has_value()};
    }

    // The remedies. Each returns nullopt if it does not help; else the request tries again, or is refused.

    // Takes back the bytes that are reserved ahead. Helps unless there are none and were none when the ledger decided;
    // and at most kMost times, because requests of other threads that are under way may return some each time.
    std::optional<Next> take_back_ahead(Attempt &now) noexcept {
        constexpr int kMost = 16;
        if (taken_back_ == kMost ||
            (device_.ledger.ahead().bytes() == 0 && now.seen <= device_.ledger.held_until_sync()))
            return std::nullopt;
        ++taken_back_;
        nothing_ahead_.settle();
        return Next::again;
    }

    // Frees kept blocks: first for the bytes that the request lacks, then all.
    std::optional<Next> free_kept(Attempt &now) noexcept {
        if (now.verdict == Verdict::refuse || from_cache_ == 2) return std::nullopt;  // refuse: freeing would not help
        const Bytes missing = shortfall(now.asked, device_.ledger.held_until_sync(), bytes_);
        const Bytes freed = cache::free_kept(device_, from_cache_++ == 0 ? missing : policy::kUnbounded);
        return freed != 0 ? std::optional(Next::again) : std::nullopt;
    }

    std::optional<Next> release(Attempt &now) noexcept {
        if (now.verdict != Verdict::release_first) return std::nullopt;
        release_on_the_spot(device_);
        reconcile(device_);
        released_ = true;
        return Next::again;
    }

    // Refuses the request if its caller is a framework that frees its cache and retries when it is refused once. No
    // other release can free a framework's cache from within its allocator.
    std::optional<Next> refuse_for_pressure(Attempt &now) noexcept {
        if (now.verdict != Verdict::grow || !now.asked.release_before_growth || retry_ == caller_match::Way::none ||
            !Pressure::of(device_).refuses_growth(device_, bytes_, retry_))
            return std::nullopt;
        reports::refused_for_pressure(device_, now.gpu, bytes_, limit_hit(now));
        return Next::refused;
    }

    std::optional<Next> grow(Attempt &now) noexcept {
        if (now.verdict != Verdict::grow) return std::nullopt;
        if (now.gpu.allowance.step(now.gpu.terms.growth, now_ms())) {
            reports::allowance(device_, "may now hold", now.gpu.allowance.bytes());
            wait_queue::changed();
        }
        return Next::again;
    }

    // Has the other processes of the job release memory, if the job's cap is what the request exceeds.
    std::optional<Next> ask_job(Attempt &now) noexcept {
        if (now.behind || limit_hit(now).why != policy::Limit::job || now.asked.refuse_everything ||
            bytes_ > now.asked.alone)
            return std::nullopt;
        job::Share &share = device_.ledger.share;
        if (asks_ == kMostAsks || !share.may_ask_others()) return std::nullopt;
        ++asks_;
        const Bytes missing = shortfall(now.asked, device_.ledger.held_until_sync(), bytes_);
        now.in_use.let_go();
        share.ask_others(missing);
        return Next::again;
    }

    Device &device_;
    const Kind kind_;
    const Bytes bytes_;
    const caller_match::Way retry_;
    wait_queue::Wait &wait_;
    bool released_ = false;  // it has released memory since the last wait
    NothingAhead nothing_ahead_{device_};
    int taken_back_ = 0;  // how often it has taken back what was reserved ahead
    int from_cache_ = 0;  // how often it has freed kept blocks since the last wait
    int asks_ = 0;        // how often it has asked the job's other processes since the last wait
};

// Reserves `bytes` if `terms` grant them, and takes back for that what is reserved ahead.
bool reserve_under(policy::Terms &terms, Device &device, Kind kind, Bytes bytes) noexcept {
    if (device.ledger.reserve(kind, bytes, terms) == Verdict::grant) return true;
    if (device.ledger.ahead().bytes() == 0) return false;
    NothingAhead nothing_ahead(device);
    nothing_ahead.settle();
    return device.ledger.reserve(kind, bytes, terms) == Verdict::grant;
}

}  // namespace

bool reserve_now(Device &device, Kind kind, Bytes bytes) noexcept {
    const auto now = in_force::snapshot();
    policy::Terms asked;
    measure_if_stale(device, *now, bytes, asked);
    return reserve_under(asked, device, kind, bytes);
}

bool reserve_growth(Device &device, Kind kind, Bytes bytes) noexcept {
    const auto now = in_force::snapshot();
    policy::Terms asked;
    if (bytes <= policy::kPoolUnit && !captures::any())
        asked.refuse_everything = now->unusable;
    else
        measure_if_stale(device, *now, bytes, asked, true);
    asked.kept_for_driver = 0;
    const bool reserved = reserve_under(asked, device, kind, bytes);
    limits::update_job(device);  // to which the terms have said that nothing is kept
    return reserved;
}

void reserve_ahead(pools::Pool &pool) noexcept {
    Device &device = *pool.device;
    Ledger &ledger = device.ledger;
    const bool kept = pool.keeps();
    if (pool.kind != Kind::pools || (kept && ledger.ahead().offered != 0)) return;
    if (!kept && !pool.is_due_to_ask()) return;
    const std::uint64_t take_backs = ledger.ahead().take_backs;
    const auto now = in_force::snapshot();
    if (now->unusable || now->of(device.ordinal).beside_others || ledger.share.joined()) return;
    policy::Terms terms;
    limits::fill(device, *now, terms);
    if (ledger.reserve_ahead(terms, take_backs) || ledger.ahead().offered != 0) pool.ask_if_it_keeps();
}

bool reserve(Device &device, Kind kind, Bytes bytes, caller_match::Way retry, wait_queue::Wait &wait) noexcept {
    Attempts attempts(device, kind, bytes, retry, wait);
    return until_granted(device, kind, bytes, wait, [&](InUse<Snapshot> &in_use, const Snapshot::Gpu &gpu) noexcept {
        return attempts.next(in_use, gpu);
    });
}

void granted(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept {
    if (!wait.began()) return;
    wait.served();
    reports::waited(device, kind, bytes, wait);
}

bool wait_for_device(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept {
    const KeepErrno keep_errno;
    // Without NVML we do not know what is free, so retry the driver after this many polls.
    constexpr int kPollsBeforeRetry = 25;
    int polls = 0;
    const auto free_now = device.meter.free();
    const bool keeps_refusing = wait.driver_keeps_refusing(free_now && *free_now >= bytes);
    // The driver needs some memory of its own beside a request. The sizes of contexts and code are guesses.
    const bool has_size = kind != Kind::contexts && kind != Kind::overhead;
    const bool has_margin = has_size && free_now && *free_now >= policy::added(bytes, Bytes{policy::Staleness::kNear});
    const auto has_room = [&] {
        if (cache::free_kept(device, bytes) != 0) return true;  // other threads may have freed blocks meanwhile
        const auto free = device.meter.free();
        return (free && *free >= bytes) || polls == kPollsBeforeRetry;
    };
    return until_granted(device, kind, bytes, wait, [&](InUse<Snapshot> &, const Snapshot::Gpu &gpu) noexcept {
        if (polls != 0 && has_room()) return Answer{Next::granted};
        ++polls;
        const reports::LimitHit hit{
            .kind = kind, .why = policy::Limit::device, .held = device.ledger.held(), .has_room = has_margin};
        if (keeps_refusing && (has_margin || !wait.left(gpu.terms.growth.wait))) {
            reports::refusal(device, gpu, bytes, hit);  // without waiting for a turn
            return Answer{Next::refused};
        }
        // Programs probe for free memory with sizes that no device has.
        return bytes > device.total ? Answer{Next::refuse, hit} : wait_or_refuse(wait, gpu, hit);
    });
}

bool wait_beside_others(Device &device, Kind kind, Bytes bytes) noexcept {
    wait_queue::Wait wait;
    const bool has_room =
        until_granted(device, kind, bytes, wait, [&](InUse<Snapshot> &now, const Snapshot::Gpu &gpu) noexcept {
            if (gpu.terms.growth.keep_free == 0) return Answer{Next::granted};
            measure_reach(device);
            if (policy::added(device.ledger.held(), bytes) <= limits::terms(device, *now).limit_beside_others)
                return Answer{Next::granted};
            if (cache::free_kept(device) != 0) return Answer{Next::again};
            return wait_or_refuse(wait, gpu, {kind, policy::Limit::keep_free, device.ledger.held()});
        });
    if (has_room) granted(device, kind, bytes, wait);
    return has_room;
}

bool hold_in_job(Device &device, Bytes bytes) noexcept {
    job::Share &share = device.ledger.share;
    wait_queue::Wait wait;
    int tries = 0, asks = 0;  // since the last wait
    const auto try_once = [&](InUse<Snapshot> &in_use, const Snapshot::Gpu &gpu) noexcept {
        const reports::LimitHit hit{Kind::contexts, policy::Limit::job, device.ledger.held()};
        if (!share.joined()) return Answer{Next::refuse, hit};
        const Bytes cap = gpu.terms.job_cap.value_or(policy::kUnbounded);
        const auto answer = share.reserve(bytes, cap);
        if (answer == job::Share::Answer::reserved) return Answer{Next::granted};
        constexpr int kTries = 64;
        if (answer == job::Share::Answer::contended && ++tries < kTries) {
            share.let_others_pass(tries);
            return Answer{Next::again};
        }
        if (cache::free_kept(device) != 0) return Answer{Next::again};
        if (bytes > cap) return Answer{Next::refuse, hit};
        if (asks < kMostAsks && share.may_ask_others()) {
            ++asks;
            in_use.let_go();
            share.ask_others(bytes);
            return Answer{Next::again};
        }
        tries = asks = 0;
        return wait_or_refuse(wait, gpu, hit);
    };
    const bool reserved = until_granted(device, Kind::contexts, bytes, wait, try_once);
    if (reserved) granted(device, Kind::contexts, bytes, wait);
    return reserved;
}

bool refuse_code_load(Device &device, Bytes by) noexcept {
    const auto gpu = limits::in_force(device);
    const auto limit = limits::cap(device, *gpu);
    if (!limit) return false;
    const auto above = [&] { return device.ledger.held() > *limit && device.ledger.held() - *limit > by; };
    policy::Terms seen;
    measure_if_stale(device, *in_force::snapshot(), 0, seen);
    if (above() && release_on_the_spot(device)) reconcile(device);
    if (!above()) return false;
    const bool by_job = limit != gpu->terms.cap;
    reports::refusal(device, *gpu, 0,
                     {Kind::overhead, by_job ? policy::Limit::job : policy::Limit::cap, device.ledger.held()});
    return true;
}

bool release_on_the_spot(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    const bool from_cache = cache::free_kept(device) != 0;
    // A pool returns only memory whose work the host has seen complete. So wait for the queued work, as the driver does
    // before it reports out of memory.
    captures::synchronise_current_context();
    return pools::trim(device) > 0 || from_cache;
}

void fall_back() noexcept try {
    for (const int ordinal : in_force::fall_back())
        reports::allowance(devices::at(ordinal), "falls back to", in_force::snapshot()->of(ordinal).allowance.bytes());
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the allowance is not lowered after this release");
}

}  // namespace curb::shim::admission
