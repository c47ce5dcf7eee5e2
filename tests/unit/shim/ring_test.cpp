// The ring between the program's threads and the thread that writes their trace.

#include "trace/ring.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include "catch.hpp"

using curb::shim::trace::Ring;

namespace {

struct Record {
    std::uint64_t producer;
    std::uint64_t number;
    std::uint64_t again;  // the same number: differs in a record that was read half written
    std::uint64_t figure;
};

constexpr std::size_t kPlaces = 64;

}  // namespace

TEST_CASE("A full ring takes no more records, and gives those that it has in order") {
    static Ring<Record, kPlaces> ring;  // never freed
    REQUIRE(ring.make());
    for (int lap = 0; lap < 3; ++lap) {
        for (std::uint64_t i = 0; i < kPlaces; ++i)
            CHECK(ring.put([=](Record &record) { record.number = i; }) == lap * kPlaces + i);
        CHECK_FALSE(ring.put([](Record &) { FAIL("there is no place"); }));
        std::uint64_t expected = 0;
        while (ring.take([&](const Record &record) { CHECK(record.number == expected++); })) {
        }
        CHECK(expected == kPlaces);
    }
}

TEST_CASE("A record cannot be taken before an earlier one is complete") {
    static Ring<Record, kPlaces> ring;  // never freed
    REQUIRE(ring.make());
    ring.put([&](Record &) {
        ring.put([](Record &record) { record.number = 2; });
        CHECK_FALSE(ring.take([](const Record &) {}));
    });
    CHECK(ring.take([](const Record &) {}));
    CHECK(ring.take([](const Record &record) { CHECK(record.number == 2); }));
}

TEST_CASE("Records of many threads come out whole, each thread's in its order, and none is lost or counted twice") {
    constexpr std::uint64_t kProducers = 8, kEach = 20'000;
    static Ring<Record, kPlaces> ring;  // never freed
    REQUIRE(ring.make());
    std::atomic<std::uint64_t> books{0}, running{kProducers};
    std::vector<std::thread> producers;
    for (std::uint64_t producer = 0; producer < kProducers; ++producer)
        producers.emplace_back([&, producer] {
            for (std::uint64_t i = 1; i <= kEach; ++i) {
                books.fetch_add(1, std::memory_order_acq_rel);
                const auto fill = [&](Record &record) {
                    record = {producer, i, i, books.load(std::memory_order_relaxed)};
                };
                if (!ring.put(fill)) ring.drop();
            }
            running.fetch_sub(1);
        });
    std::vector<std::uint64_t> last(kProducers, 0);
    std::uint64_t taken = 0, figure = 0, torn = 0, unordered = 0, behind = 0;
    for (bool more = true; more;) {
        more = running.load() != 0;
        while (ring.take([&](const Record &record) {
            torn += record.number != record.again;
            unordered += record.number <= last[record.producer];
            last[record.producer] = record.number;
            // A record's figure counts the additions before all earlier records.
            behind += record.figure < taken + 1;
            figure = record.figure;
            ++taken;
        })) {
        }
    }
    for (std::thread &producer : producers) producer.join();
    CHECK(torn == 0);
    CHECK(unordered == 0);
    CHECK(behind == 0);
    CHECK(taken + ring.dropped() == kProducers * kEach);
    CHECK(taken >= kPlaces);
    CHECK(figure >= taken);
}
