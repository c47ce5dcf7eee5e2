// Hand-made runs, replayed under other terms.
#include "trace/replay.hpp"

#include "policy/values/granule.hpp"
#include "recordings.hpp"

using namespace curb;
using namespace curb::cli;
using policy::Kind;
using policy::Limit;
using std::chrono::milliseconds;

namespace {

// Begins with 1 GiB of code: else the reserve for the first kernels would take an eighth of a small cap.
Recording warm(const std::vector<Happens> &events) {
    return Run({books(0, Kind::overhead, GiB)}).then(events).recording();
}

// The reserve under this cap that stays after 1 GiB of code.
constexpr policy::Bytes kept(policy::Bytes limit) { return policy::driver_reserve(limit, GiB, 0); }

ReplayTerms capped(policy::Bytes cap) {
    ReplayTerms out;
    out.gpu.cap = cap;
    out.total = 80 * GiB;
    return out;
}

ReplayTerms waiting(policy::Bytes cap, milliseconds wait) {
    ReplayTerms out = capped(cap);
    out.gpu.growth.wait = wait;
    return out;
}

ReplayTerms growing(policy::Bytes start, policy::Bytes step, milliseconds every = {}, milliseconds wait = {}) {
    ReplayTerms out;
    out.total = 80 * GiB;
    out.gpu.growth.start = start;
    out.gpu.growth.step = step;
    out.gpu.growth.every = every;
    out.gpu.growth.wait = wait;
    return out;
}

}  // namespace

TEST_CASE("A refused allocation is not held, and its free takes nothing from others") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB), alloc(2, 0x20, 3 * GiB), free(3, 0x20, 3 * GiB),
                           alloc(4, 0x30, GiB), alloc(5, 0x40, 2 * GiB)});
    const Replayed out = replay(run, 0, capped(5 * GiB));
    REQUIRE(out.refused == 2);
    CHECK(out.refusals[0].ns == 2 * kSecond);
    CHECK(out.refusals[0].held == 3 * GiB);
    CHECK(out.refusals[0].limit == 5 * GiB);
    CHECK(out.refusals[0].why == Limit::cap);
    CHECK(!out.refusals[0].recorded);
    CHECK(out.refused_bytes == 5 * GiB);
    CHECK(out.peak == 4 * GiB);
    CHECK(out.peak_ns == 4 * kSecond);
    CHECK(out.requests == 4);
}

TEST_CASE("A recorded free is that of its own allocation, if the replay served it") {
    struct Row {
        const char *what;
        Recording run;
        policy::Bytes cap;  // under which one request is refused
    };
    for (const auto &[what, run, cap] : std::vector<Row>{
             {"of an address that is given out again after a refusal",
              warm({alloc(1, 0x10, 7 * GiB), free(2, 0x10, 7 * GiB), alloc(3, 0x10, GiB), free(4, 0x10, GiB),
                    alloc(5, 0x20, 2 * GiB)}),
              4 * GiB},
             {"of memory without an address, whose kind shrinks",
              warm({alloc(1, 0, 4 * GiB, 1, Kind::graphs), books(2, Kind::graphs, 0), alloc(3, 0x20, 2 * GiB)}),
              4 * GiB},
             {"of a pool that could not grow here",
              warm({alloc_charged(1, 0x10, 4 * GiB, 4 * GiB, 1, Kind::pools), free(2, 0x10, 4 * GiB, 1, Kind::pools),
                    books(3, Kind::pools, 0), alloc(4, 0x20, 2 * GiB)}),
              4 * GiB},
             {"of a context, whose stacks have the same handle",
              warm({alloc(1, 0x10040, 500 * MiB, 1, Kind::contexts), alloc(2, 0x10040, 4 * GiB, 1, Kind::stack),
                    free(3, 0x10040, 500 * MiB, 1, Kind::contexts), alloc(4, 0x20, 2 * GiB)}),
              7 * GiB / 2},
         }) {
        INFO(what);
        const Replayed out = replay(run, 0, capped(cap));
        CHECK(out.refused == 1);
        CHECK(out.peak == 3 * GiB);
    }
}

TEST_CASE("A replay keeps the driver's reserve too, and small requests ask for whole granules") {
    const policy::Bytes cap = 4 * GiB;
    const policy::Bytes usable = cap - kept(cap);
    const auto with_room = [&](policy::Bytes left) {
        return warm({alloc(1, 0x10, usable - GiB - left), alloc_charged(2, 0x20, 4 * KiB, 0, 1, Kind::plain)});
    };
    CHECK(replay(with_room(2 * MiB), 0, capped(cap)).refused == 0);
    CHECK(replay(with_room(2 * MiB - 1), 0, capped(cap)).refused == 1);
}

TEST_CASE("Contexts are never refused, and may go over the cap") {
    const auto run = recorded({alloc(1, 0x10, 500 * MiB, 1, Kind::contexts)});
    const Replayed out = replay(run, 0, capped(400 * MiB));
    CHECK(out.refused == 0);
    CHECK(out.over_cap == 100 * MiB);
}

TEST_CASE("A refusal of the recorded run counts as a request") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB), stop(2, What::refuse, 4 * GiB), alloc(3, 0x20, GiB)});
    const Replayed narrow = replay(run, 0, capped(5 * GiB));
    REQUIRE(narrow.refused == 1);
    CHECK(narrow.refusals[0].recorded);
    CHECK(narrow.served_now == 0);
    const Replayed wide = replay(run, 0, capped(9 * GiB));
    CHECK(wide.refused == 0);
    CHECK(wide.served_now == 1);
    CHECK(wide.peak == 4 * GiB);  // how long the program would have kept it is not known
}

TEST_CASE("keep_free makes the device smaller") {
    ReplayTerms terms = capped(80 * GiB);
    terms.gpu.growth.keep_free = 76 * GiB;
    const auto run = warm({alloc(1, 0x10, 2 * GiB), alloc(2, 0x20, 2 * GiB)});
    const Replayed out = replay(run, 0, terms);
    REQUIRE(out.refused == 1);
    CHECK(out.refusals[0].why == Limit::keep_free);
    terms.total = 0;
    CHECK(replay(run, 0, terms).refused == 0);
}

TEST_CASE("The allowance grows by the steps that are due") {
    const auto run = warm({alloc(11, 0x10, 2 * GiB), alloc(12, 0x20, GiB), alloc(25, 0x30, GiB)});
    const Replayed out = replay(run, 0, growing(2 * GiB, 2 * GiB, milliseconds(10'000)));
    REQUIRE(out.steps.size() == 2);
    CHECK(out.steps[0] == std::pair(11 * kSecond, 4 * GiB));
    CHECK(out.steps[1] == std::pair(25 * kSecond, 6 * GiB));
    REQUIRE(out.refused == 1);
    CHECK(out.refusals[0].ns == 12 * kSecond);
    CHECK(out.refusals[0].why == Limit::allowance);
    CHECK(out.allowance == 6 * GiB);
}

TEST_CASE("After a recorded release the allowance falls back to the held bytes") {
    const auto run =
        warm({alloc(1, 0x10, 4 * GiB), free(2, 0x10, 4 * GiB), step(3, policy::Step::frameworks, 4 * GiB, "SIGUSR1")});
    const Replayed out = replay(run, 0, growing(2 * GiB, GiB));
    CHECK(out.steps.size() == 4);
    CHECK(out.allowance == 2 * GiB);
}

TEST_CASE("Unused memory of pools is released before a request is refused, and must be taken again") {
    const auto run =
        warm({alloc_charged(1, 0x10, 2 * GiB, 2 * GiB, 1, Kind::pools), free(2, 0x10, 2 * GiB, 1, Kind::pools),
              alloc(3, 0x20, 2 * GiB), alloc_charged(4, 0x30, GiB, 0, 1, Kind::pools)});
    const Replayed out = replay(run, 0, capped(9 * GiB / 2));
    CHECK(out.requests == 3);
    CHECK(out.releases == 1);
    CHECK(out.released == 2 * GiB);
    CHECK(out.refused == 0);
    CHECK(out.peak == 4 * GiB);  // 1 of code, 2 of the allocation, and 1 of the pool again
    const Replayed narrow = replay(run, 0, capped(7 * GiB / 2));
    REQUIRE(narrow.refused == 1);
    CHECK(narrow.refusals[0].kind == Kind::pools);
}

TEST_CASE("A pool's request is served from the pool's unused memory, whatever the cap") {
    const auto run = warm({alloc_charged(1, 0x10, 2 * GiB, 2 * GiB, 1, Kind::pools),
                           free(2, 0x10, 2 * GiB, 1, Kind::pools), alloc_charged(3, 0x20, 2 * GiB, 0, 1, Kind::pools)});
    CHECK(replay(run, 0, capped(3 * GiB + kept(3 * GiB) + 33 * MiB)).refused == 0);
}

TEST_CASE("A request waits until another thread's recorded free makes room, else it is refused when its time is over") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB, 1), alloc(2, 0x20, 2 * GiB, 2), free(4, 0x10, 2 * GiB, 1)});
    const Replayed served = replay(run, 0, waiting(4 * GiB, milliseconds(5'000)));
    CHECK(served.waits == 1);
    CHECK(served.refused == 0);
    CHECK(served.waited_ns == 2 * kSecond);
    CHECK(served.peak == 3 * GiB);
    const Replayed out = replay(run, 0, waiting(4 * GiB, milliseconds(1'500)));
    REQUIRE(out.refused == 1);
    CHECK(out.waits_timed_out == 1);
    CHECK(out.refusals[0].ns == 3'500'000'000);
    CHECK(out.refusals[0].waited_ns == 1'500'000'000);
    // Also at the end of the trace.
    const auto ends = warm({alloc(1, 0x10, 2 * GiB), alloc(2, 0x20, 2 * GiB)});
    CHECK(replay(ends, 0, waiting(4 * GiB, milliseconds(1'000))).waits_timed_out == 1);
}

TEST_CASE("A block is not freed before it is allocated, whichever thread frees it") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB, 1), alloc(2, 0x20, 2 * GiB, 2), free(3, 0x20, 2 * GiB, 3),
                           free(4, 0x10, 2 * GiB, 1), alloc(5, 0x30, 2 * GiB, 3)});
    const Replayed out = replay(run, 0, waiting(4 * GiB, milliseconds(5'000)));
    CHECK(out.waits == 1);
    CHECK(out.refused == 0);
    CHECK(out.peak == 3 * GiB);
}

TEST_CASE("A thread that waits frees nothing meanwhile, and makes up for it afterwards") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB, 1), alloc(2, 0x20, 2 * GiB, 1), free(3, 0x10, 2 * GiB, 1),
                           alloc(9, 0x30, 2 * GiB, 1)});
    const Replayed out = replay(run, 0, waiting(4 * GiB, milliseconds(5'000)));
    REQUIRE(out.refused == 1);
    CHECK(out.refusals[0].ns == 7 * kSecond);
    CHECK(out.peak == 3 * GiB);
}

TEST_CASE("A request that waited in the recorded run is held once, and only if it is granted here") {
    const auto run =
        recorded({alloc(1, 0x10, 518 * MiB, 1, Kind::contexts), alloc(2, 0x20, 100 * MiB),
                  stop(3, What::wait, 900 * MiB), stop(5, What::granted, 900 * MiB), alloc(5, 0x30, 900 * MiB)});
    const Replayed narrow = replay(run, 0, capped(GiB));
    CHECK(narrow.refused == 1);
    CHECK(narrow.peak == 618 * MiB);
    CHECK(narrow.over_cap == 0);
    CHECK(replay(run, 0, capped(4 * GiB)).peak == 1518 * MiB);
    CHECK(smallest_cap(run, 0, 80 * GiB) == 1518 * MiB + policy::kFirstKernels);
}

TEST_CASE("A wait ends when a growth step falls due") {
    const auto run = warm({alloc(1, 0x10, 2 * GiB), alloc(20, 0x20, MiB)});
    const Replayed out = replay(run, 0, growing(2 * GiB, 2 * GiB, milliseconds(4'000), milliseconds(30'000)));
    CHECK(out.refused == 0);
    REQUIRE(out.steps.size() == 1);
    CHECK(out.steps[0].first == 4 * kSecond);
    CHECK(out.longest_wait_ns == 3 * kSecond);
}

TEST_CASE("With the smallest cap nothing is refused, with a MiB less something is") {
    const auto run = warm(
        {alloc(1, 0x10, 2 * GiB), alloc(2, 0x20, 3 * GiB), free(3, 0x10, 2 * GiB), stop(4, What::refuse, 4 * GiB)});
    const auto least = smallest_cap(run, 0, 80 * GiB);
    REQUIRE(least);
    CHECK(*least == 8 * GiB + kept(*least) / MiB * MiB);
    CHECK(replay(run, 0, capped(*least)).refused == 0);
    CHECK(replay(run, 0, capped(*least - MiB)).refused == 1);
    CHECK(smallest_cap(recorded({alloc(1, 0x10, 500 * MiB, 1, Kind::contexts)}), 0, 80 * GiB) == 500 * MiB);
    CHECK(!smallest_cap(warm({stop(1, What::refuse, ~policy::Bytes{0} / 2)}), 0, 0));  // no cap is large enough
}

TEST_CASE("Refusals by the device, and requests larger than it, do not count for a cap") {
    const auto run = warm(
        {stop(1, What::refuse, GiB, Limit::device), stop(2, What::refuse, 100 * GiB, Limit::cap), alloc(3, 0x10, GiB)});
    const Replayed out = replay(run, 0, capped(40 * GiB));
    CHECK(out.device_refused == 2);
    CHECK(out.requests == 1);
    CHECK(out.refused == 0);
    CHECK(smallest_cap(run, 0, 80 * GiB) == 2 * GiB + kept(2 * GiB));
}

TEST_CASE("Events of another GPU do not count") {
    Recording run = warm({alloc(1, 0x10, 2 * GiB), alloc(2, 0x20, 2 * GiB)});
    run.events.back().gpu = 1;
    CHECK(replay(run, 0, capped(4 * GiB)).requests == 1);
    CHECK(replay(run, 1, capped(4 * GiB)).requests == 1);
}

TEST_CASE("A later context asks for its cost") {
    const auto run = recorded({alloc(1, 0x10, 500 * MiB, 1, Kind::contexts), alloc(2, 0x20, 400 * MiB),
                               alloc(3, 0x30, 500 * MiB, 1, Kind::contexts)});
    const Replayed out = replay(run, 0, capped(1400 * MiB));
    REQUIRE(out.refused == 1);
    CHECK(out.refusals[0].kind == Kind::contexts);
    CHECK(out.over_cap == 0);
    CHECK(smallest_cap(run, 0, 80 * GiB) == 1400 * MiB + policy::kFirstKernels);
}

TEST_CASE("A heap of kernels is asked for, and kept free until the driver takes it") {
    const auto heap = [](double seconds, policy::Bytes bytes) -> Happens {
        return [=](Run &run) { run.add(seconds, What::heap).bytes = static_cast<std::int64_t>(bytes); };
    };
    const auto least = [](const std::vector<Happens> &events) { return smallest_cap(recorded(events), 0, 80 * GiB); };
    CHECK(least({heap(1, GiB), alloc(2, 0x10, 2 * GiB)}) == 3 * GiB + policy::kFirstKernels);
    CHECK(least({heap(1, GiB), heap(2, 0), alloc(3, 0x10, 2 * GiB)}) == 2 * GiB + policy::kFirstKernels);
    CHECK(least({heap(1, 3 * GiB)}) == 3 * GiB + policy::kFirstKernels);
}

TEST_CASE("A release gives back the units of a pool in which no live block lies") {
    constexpr std::uint64_t unit = policy::kPoolUnit, first = 64 * unit;
    // Two blocks in units of their own, of which one is freed, and two in one unit, of which one is freed.
    const auto pool = [](double seconds, std::uint64_t pointer, policy::Bytes bytes, policy::Bytes charge) {
        return alloc_charged(seconds, pointer, bytes, charge, 1, Kind::pools);
    };
    const auto free_pool = [](double seconds, std::uint64_t pointer) {
        return free(seconds, pointer, 0, 1, Kind::pools);
    };
    const auto run = warm({pool(1, first, 24 * MiB, unit), pool(1, first + unit, 24 * MiB, unit),
                           pool(1, first + 2 * unit, 8 * MiB, unit), pool(1, first + 2 * unit + 8 * MiB, 8 * MiB, 0),
                           free_pool(2, first), free_pool(2, first + 2 * unit), alloc(3, 0x10, 3 * GiB)});
    const Replayed out = replay(run, 0, capped(4 * GiB + kept(4 * GiB) + 2 * unit));
    CHECK(out.refused == 0);
    CHECK(out.released == unit);
    CHECK(replay(run, 0, capped(4 * GiB + kept(4 * GiB) + unit)).refused == 1);
}

namespace {

// Returns the ranks of two processes on one GPU, the second of which begins `later` seconds after the first.
std::vector<Rank> two(const Recording &one, Recording &other, std::int64_t later, policy::Bytes job_cap) {
    other.header.unix_ns = one.header.unix_ns + later * static_cast<std::int64_t>(kSecond);
    ReplayTerms terms;
    terms.gpu.job_cap = job_cap;
    terms.total = 80 * GiB;
    return {{&one, 0, terms}, {&other, 0, terms}};
}
Happens ends(double seconds) {
    return [=](Run &run) { run.add(seconds, What::end).held = 0; };
}

}  // namespace

TEST_CASE("Two processes share the cap of their job, by their clocks") {
    const auto one = warm({alloc(1, 0x10, 2 * GiB), free(4, 0x10, 2 * GiB)});
    auto other = warm({alloc(1, 0x10, 3 * GiB)});
    const policy::Bytes cap = 7 * GiB;
    const policy::Bytes room = 2 * kept(cap);
    const ReplayedJob at_once = replay(two(one, other, 1, cap));
    CHECK(at_once.ranks[0].refused == 0);
    REQUIRE(at_once.ranks[1].refused == 1);
    CHECK(at_once.ranks[1].refusals[0].why == Limit::job);
    CHECK(at_once.ranks[1].refusals[0].held == 4 * GiB);  // by both
    CHECK(at_once.ranks[1].refusals[0].limit == cap);
    CHECK(at_once.peak == 4 * GiB);
    CHECK(replay(two(one, other, 1, cap + room)).is_served());
    const ReplayedJob later = replay(two(one, other, 5, cap));
    CHECK(later.is_served());
    CHECK(later.peak == 5 * GiB);
    CHECK(later.peak_unix_ns == one.header.unix_ns + 6 * static_cast<std::int64_t>(kSecond));
    const auto least = smallest_job_cap(two(one, other, 1, 0));
    REQUIRE(least);
    CHECK(replay(two(one, other, 1, *least)).is_served());
    CHECK(!replay(two(one, other, 1, *least - MiB)).is_served());
}

TEST_CASE("A request of a job waits for the others, has them release pools, and ends with them") {
    auto other = warm({alloc(3, 0x10, 3 * GiB)});
    const auto frees = warm({alloc(1, 0x10, 2 * GiB), free(5, 0x10, 2 * GiB)});
    auto ranks = two(frees, other, 0, 6 * GiB);
    for (Rank &rank : ranks) rank.terms.gpu.growth.wait = milliseconds(10'000);
    CHECK(replay(ranks).ranks[1].waited_ns == 2 * kSecond);
    const auto keeps = warm({alloc_charged(1, policy::kPoolUnit, 2 * GiB, 2 * GiB, 1, Kind::pools),
                             free(2, policy::kPoolUnit, 2 * GiB, 1, Kind::pools)});
    const ReplayedJob released = replay(two(keeps, other, 0, 6 * GiB));
    CHECK(released.is_served());
    CHECK(released.ranks[0].released == 2 * GiB);
    CHECK(!replay(two(warm({alloc(1, 0x10, 2 * GiB)}), other, 0, 6 * GiB)).is_served());
    CHECK(replay(two(warm({alloc(1, 0x10, 2 * GiB), ends(2)}), other, 0, 6 * GiB)).is_served());
}

TEST_CASE("A first context needs room under the job's cap for itself and for code") {
    const auto one = warm({alloc(1, 0x10, 2 * GiB)});
    auto other = recorded({alloc(2, 0x10, 500 * MiB, 1, Kind::contexts)});
    const policy::Bytes need = 3 * GiB + policy::kContext + policy::kFirstKernels;
    CHECK(replay(two(one, other, 0, need + kept(need))).is_served());
    CHECK(!replay(two(one, other, 0, need + kept(need) - MiB)).is_served());
}
