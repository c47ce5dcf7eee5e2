// The books of one device, against a device whose figure the test sets itself.

#include "ledger.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "own_thread.hpp"
#include "wait_queue.hpp"

using namespace curb::shim;
using namespace std::chrono_literals;

void curb::shim::wait_queue::changed() noexcept {}  // nobody waits here
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
