// The table of the driver's objects, and the guard that takes a record out of it for a driver call.

#include "base/table.hpp"

#include <atomic>
#include <memory>
#include <thread>

#include "catch.hpp"

using curb::shim::Table;

namespace {

using Numbers = Table<int, int>;

}  // namespace

TEST_CASE("A record is out of the table during a Removal, and back if the call failed") {
    Numbers table;
    table.put(1, 10);
    {
        Numbers::Removal removal = table.remove(1);
        REQUIRE(removal);
        CHECK(*removal == 10);
        CHECK(table.empty());
        CHECK_FALSE(table.remove(1));
    }
    CHECK(table.find(1) == 10);
}

TEST_CASE("A committed Removal leaves the record out and returns it") {
    Numbers table;
    table.put(1, 10);
    CHECK(table.remove(1).commit() == 10);
    CHECK(table.empty());
    CHECK_FALSE(table.find(1));
}

TEST_CASE("A record that another thread has put meanwhile stays") {
    Numbers table;
    table.put(1, 10);
    {
        const Numbers::Removal removal = table.remove(1);
        table.put(1, 20);
    }
    CHECK(table.find(1) == 20);
}

TEST_CASE("put returns the record of an object that ended without curb's knowledge") {
    Numbers table;
    CHECK_FALSE(table.put(1, 10));
    CHECK(table.put(1, 20) == 10);
    CHECK(table.find(1) == 20);
}

TEST_CASE("A record is made at its first change, and goes when a change returns false") {
    Numbers table;
    const auto add = [&](int change) {
        table.make_and_change(1, [=](int &record) { return (record += change) != 0; });
    };
    add(2);
    add(3);
    CHECK(table.find(1) == 5);
    add(-5);
    CHECK(table.empty());
    CHECK_FALSE(table.change(1, [](int &) { return true; }));
    add(1);
    CHECK(table.change(1, [](int &record) { return --record != 0; }));
    CHECK(table.empty());
}

TEST_CASE("All records that match go, however many, and each is handed out without the lock") {
    Numbers table;
    for (int i = 0; i < 1000; ++i) table.put(i, i % 3);
    int taken = 0;
    table.take_all([](int record) { return record == 1; },
                   [&](int key, int record) {
                       CHECK(record == 1);
                       CHECK_FALSE(table.find(key));  // would wait for ever under the lock
                       ++taken;
                   });
    CHECK(taken == 333);
    CHECK_FALSE(table.any_of([](int record) { return record == 1; }));
    CHECK(table.find(0) == 0);
    CHECK(table.find(998) == 2);
}

TEST_CASE("A record that has gone is not kept alive") {
    const auto held = std::make_shared<int>(1);
    Table<int, std::shared_ptr<int>> table;
    table.put(1, held);
    table.put(2, held);
    table.put(2, held);
    CHECK(held.use_count() == 3);
    table.take_all([](const auto &) { return true; }, [](int, const auto &) {});
    CHECK(held.use_count() == 1);
    table.make_and_change(1, [&](std::shared_ptr<int> &record) {
        record = held;
        return false;
    });
    CHECK(held.use_count() == 1);
    table.put(1, held);
    table.remove(1).commit();
    CHECK(held.use_count() == 1);
}

TEST_CASE("Of threads that free the same pointer, one gets its record") {
    Numbers table;
    std::atomic<int> frees{0};
    for (int round = 0; round < 1000; ++round) {
        table.put(1, round);
        const auto free = [&] {
            if (Numbers::Removal removal = table.remove(1)) {
                if (round % 2) removal.commit();
                ++frees;
            }
        };
        std::thread other(free);
        free();
        other.join();
        if (round % 2)
            CHECK(table.empty());
        else
            CHECK(table.take(1) == round);
    }
    CHECK(frees >= 1000);  // a free that failed may be followed by the other thread's
}
