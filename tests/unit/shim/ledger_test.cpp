// The books of one device, against a device whose figure the test sets itself.

#include "device/ledger.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "threads/own_thread.hpp"

using namespace curb::shim;
using namespace std::chrono_literals;

bool curb::shim::own_thread::start(void (* /*body*/)(), const char * /*name*/) noexcept { return false; }  // no job

TEST_CASE(
    "What is left to the overhead while another thread looks at the device stays held until the device has it back") {
    constexpr Bytes kBlock = 2 * curb::policy::MiB, kContext = 512 * curb::policy::MiB;
    Ledger ledger;
    std::atomic<Bytes> device{kContext};
    std::atomic<bool> done{false};
    const auto look = [&] {
        ledger.reconcile([&] { return std::optional<Bytes>(device.load()); }, [](std::int64_t) {});
    };
    look();
    // More than there are cores, so that now and then one of them is held up between its look and what it makes of it.
    std::vector<std::thread> looks(2 * std::thread::hardware_concurrency() + 1);
    for (std::thread &one : looks)
        one = std::thread([&] {
            while (!done) look();
        });
    curb::policy::Terms no_limit;
    int lost = 0;
    for (const auto until = std::chrono::steady_clock::now() + 2s; std::chrono::steady_clock::now() < until;) {
        for (int i = 0; i < 100; ++i) {
            ledger.reserve(Kind::plain, kBlock, no_limit);  // begins an operation
            device += kBlock;
            ledger.end();
            {
                const Ledger::Operation freed_in_a_stream(&ledger);
                ledger.leave_to_overhead(Kind::plain, kBlock);
            }
            for (int reading = 0; reading < 200; ++reading) lost += ledger.held() < device;
            device -= kBlock;  // the stream was waited for
        }
    }
    done = true;
    for (std::thread &one : looks) one.join();
    CHECK(lost == 0);
    CHECK(ledger.held() == ledger.of(Kind::overhead));
    look();
    CHECK(ledger.held() == kContext);
}

TEST_CASE("What several threads charge at once is all counted") {
    constexpr Bytes kTimes = 200'000;
    Ledger ledger;
    std::vector<std::thread> threads(4);
    for (std::thread &one : threads)
        one = std::thread([&] {
            for (Bytes i = 0; i < kTimes; ++i) ledger.charge(Kind::plain, 1);
        });
    for (std::thread &one : threads) one.join();
    CHECK(ledger.held() == threads.size() * kTimes);
    CHECK(ledger.of(Kind::plain) == threads.size() * kTimes);
}

TEST_CASE("What another thread allocates and frees while the device is measured is not overhead") {
    constexpr Bytes kBlock = 2 * curb::policy::MiB, kContext = 512 * curb::policy::MiB;
    Ledger ledger;
    curb::policy::Terms no_limit;
    ledger.reserve(Kind::plain, kBlock, no_limit);
    ledger.end();
    const auto measure = [&] {
        ledger.reserve(Kind::plain, kBlock, no_limit);
        const Bytes figure = kContext + 2 * kBlock;
        for (int block = 0; block < 2; ++block) ledger.credit(Kind::plain, kBlock);
        ledger.end();
        return std::optional<Bytes>(figure);
    };
    CHECK(ledger.reconcile(
        measure, [](std::int64_t) {}, 1));
    CHECK(ledger.overhead() == kContext);
}

TEST_CASE("Memory of a kind that is credited before it is charged is not shown as a huge figure") {
    constexpr Bytes kBlock = 32 * curb::policy::MiB;
    Ledger ledger;
    // Two threads change a pool: the one that lowers its charge can reach the ledger before the one that raised it.
    ledger.credit(Kind::pools, kBlock);
    CHECK(ledger.of(Kind::pools) == 0);
    ledger.charge(Kind::pools, kBlock);
    CHECK(ledger.of(Kind::pools) == 0);
    CHECK(ledger.held() == 0);
}

namespace {

constexpr Bytes kCap = 4 * curb::policy::GiB;

// A ledger from which threads take for a second. Together they must never have more than the cap.
struct Contended {
    Contended() { terms.cap = kCap; }

    void take(Bytes bytes) { exceeded += taken.fetch_add(bytes) + bytes > kCap; }
    // Reserves the bytes and gives them back. False if they were refused.
    bool pair(Bytes bytes) {
        curb::policy::Terms mine = terms;
        if (ledger.reserve(Kind::plain, bytes, mine) != curb::policy::Verdict::grant) return false;
        take(bytes);
        taken -= bytes;
        ledger.credit(Kind::plain, bytes);
        ledger.end();
        return true;
    }
    // Calls each of them again and again, in a thread of its own.
    void run(const std::vector<std::function<void()>> &all) {
        std::atomic<bool> done{false};
        std::vector<std::thread> threads;
        threads.reserve(all.size());
        for (const auto &one : all)
            threads.emplace_back([&] {
                while (!done) one();
            });
        std::this_thread::sleep_for(1s);
        done = true;
        for (std::thread &one : threads) one.join();
        CHECK(exceeded == 0);
    }

    Ledger ledger;
    curb::policy::Terms terms;
    std::atomic<Bytes> taken{0};  // granted, and not yet returned
    std::atomic<int> exceeded{0};
};

}  // namespace

TEST_CASE("Requests and bytes reserved ahead of others never exceed the limit together") {
    Contended contended;
    Ledger &ledger = contended.ledger;
    curb::policy::Terms &terms = contended.terms;
    std::atomic<int> ahead{0}, large{0};
    const auto take_units = [&] {
        int units = 0;
        for (; ledger.take_ahead(); ++units) contended.take(Ledger::Ahead::kUnit);
        ahead += units != 0;
        for (; units != 0; --units) {
            contended.taken -= Ledger::Ahead::kUnit;
            ledger.give_back_ahead(1);
        }
    };
    // Only one of the two reserves, so that the other takes units at any moment of the reservation.
    const auto reserve_and_take = [&] {
        ledger.reserve_ahead(terms, ledger.ahead().take_backs);
        take_units();
    };
    const auto take_much = [&](Bytes bytes) {
        ledger.take_back_ahead();
        large += contended.pair(bytes);
    };
    contended.run(
        {reserve_and_take, take_units, [&] { take_much(kCap); }, [&] { take_much(kCap - 2 * Ledger::Ahead::kUnit); }});
    CHECK(ahead > 0);
    CHECK(large > 0);
    ledger.take_back_ahead();
    CHECK(ledger.ahead().bytes() == 0);
    CHECK(ledger.held() == 0);

    // While a request demands exact figures, and near the limit, nothing is reserved.
    {
        Ledger::NothingAhead nothing;
        nothing.begin(ledger);
        CHECK_FALSE(ledger.reserve_ahead(terms, ledger.ahead().take_backs));
    }
    // Nor by limits that were read before units were taken back.
    const std::uint64_t read = ledger.ahead().take_backs;
    ledger.take_back_ahead();
    CHECK_FALSE(ledger.reserve_ahead(terms, read));
    ledger.charge(Kind::plain, kCap - 768 * curb::policy::MiB);
    CHECK_FALSE(ledger.reserve_ahead(terms, ledger.ahead().take_backs));
    CHECK(ledger.ahead().bytes() == 0);
    ledger.credit(Kind::plain, 2 * curb::policy::GiB);
    CHECK(ledger.reserve_ahead(terms, ledger.ahead().take_backs));
    CHECK(ledger.ahead().bytes() == 512 * curb::policy::MiB);
    CHECK(ledger.held() == kCap - 768 * curb::policy::MiB - 2 * curb::policy::GiB);
}

TEST_CASE("Threads that allocate and free never exceed the limit together, and leave nothing held") {
    constexpr Bytes kBlock = 2 * curb::policy::MiB, kLarge = kCap - 4 * kBlock;
    Contended contended;
    Ledger &ledger = contended.ledger;
    std::atomic<int> small{0}, large{0};
    const auto take_blocks = [&] { small += contended.pair(kBlock); };
    // Nothing is on the device, so whatever is held is in the charges, and no reconcile may find any overhead.
    const auto reconcile = [&] {
        ledger.reconcile([] { return std::optional<Bytes>(0); }, [](std::int64_t) {});
        if (ledger.of(Kind::plain) > kCap) ++contended.exceeded;
    };
    contended.run(
        {take_blocks, take_blocks, take_blocks, take_blocks, [&] { large += contended.pair(kLarge); }, reconcile});
    CHECK(small > 0);
    CHECK(large > 0);
    CHECK(ledger.overhead() == 0);
    CHECK(ledger.held() == 0);
    CHECK(ledger.of(Kind::plain) == 0);
}

TEST_CASE("A refused request is shown the bytes that were taken, and a reconcile sets the overhead at rest only") {
    using curb::policy::MiB, curb::policy::Verdict;
    constexpr Bytes kBlock = 2 * MiB;
    Ledger ledger;
    curb::policy::Terms terms;
    terms.cap = kCap;
    CHECK(ledger.reserve(Kind::plain, kCap, terms) == Verdict::grant);
    ledger.end();
    Bytes seen = 0;
    CHECK(ledger.reserve(Kind::plain, kBlock, terms, &seen) != Verdict::grant);
    CHECK(seen == kCap);
    ledger.credit(Kind::plain, kCap - 2 * kBlock);
    CHECK(ledger.of(Kind::plain) == 2 * kBlock);
    std::int64_t changed = 1;
    CHECK(ledger.reconcile([&] { return std::optional<Bytes>(5 * kBlock); }, [&](std::int64_t by) { changed = by; }));
    CHECK(changed == 3 * static_cast<std::int64_t>(kBlock));
    CHECK(ledger.held() == 5 * kBlock);
    // While a request ahead is under way, a reconcile does not lower the overhead.
    CHECK(ledger.reconcile([&] { return std::optional(Ledger::Measured(4 * kBlock, false)); },
                           [](std::int64_t) { FAIL("changed"); }));
    CHECK(ledger.held() == 5 * kBlock);
}
