// The ledger of a job: one cap for all its processes, and what they ask of each other.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "control/suspended.hpp"
#include "job_process.hpp"
#include "policy/decisions/growth.hpp"

TEST_CASE("The others of a job release what a request lacks") {
    const Job job;
    const Process a = job.process(), b = job.process(), c = job.process();
    REQUIRE(a.reserve(600, 1000));
    REQUIRE(b.reserve(300, 1000));
    a.ask(Order::cache, 500);
    CHECK_FALSE(c.reserve(200, 1000));
    CHECK(c.ask(Order::want, 100) == 1);
    CHECK(c.reserve(200, 1000));
    CHECK(c.ask(Order::others) == 800);  // not more than it lacked

    // After something was given, more can be asked for at once.
    CHECK(c.ask(Order::want, 100) == 1);
    CHECK(c.ask(Order::others) == 700);
    CHECK(b.ask(Order::want, 300) == 1);
    CHECK(b.ask(Order::others) == 300);

    // After nothing was, a moment later.
    CHECK(c.ask(Order::want, 100) == 1);
    CHECK(c.ask(Order::want, 100) == 0);
    a.ask(Order::cache, 100);
    std::this_thread::sleep_for(200ms);
    CHECK(c.ask(Order::want, 100) == 1);
    CHECK(c.ask(Order::others) == 300);
}

TEST_CASE("A request that comes together with one of the process's own is passed on") {
    const Job job;
    const Process a = job.process(), b = job.process();
    REQUIRE(a.reserve(600, 1000));
    a.ask(Order::cache, 500);
    // b's request; nothing has woken a's thread yet.
    std::atomic<std::uint32_t> &wanted = job.segment().row[0].wanted;
    wanted = (wanted / job::kSlots + 1) * job::kSlots + 1;
    a.ask(Order::want, 100);
    CHECK(within(10s, [&] { return b.ask(Order::others) == 500; }));
}

TEST_CASE("A process that does not answer holds a request up for half a second") {
    const Job job;
    const Process stopped = job.process(), b = job.process();
    REQUIRE(stopped.reserve(600, 1000));
    stopped.signal(SIGSTOP);
    const auto began = std::chrono::steady_clock::now();
    CHECK(b.ask(Order::want, 500) == 1);
    CHECK(std::chrono::steady_clock::now() - began >= 450ms);
    CHECK(b.ask(Order::others) == 600);
    stopped.signal(SIGCONT);
    CHECK(b.ask(Order::want, 500) == 0);  // not for ten seconds
}

TEST_CASE("A live cap is that of all processes of the job, also of later ones") {
    const Job job;
    const Process a = job.process(), b = job.process();
    CHECK(a.ask(Order::live_cap) == kNone);
    a.ask(Order::set_live_cap, 700);
    CHECK(b.ask(Order::live_cap) == 700);
    const auto heard = [&](std::uint64_t times) { return within(10s, [&] { return b.ask(Order::changes) == times; }); };
    CHECK(heard(1));
    const Process later = job.process();
    CHECK(later.ask(Order::live_cap) == 700);
    later.ask(Order::set_live_cap, 0);
    CHECK(a.ask(Order::live_cap) == 0);
    CHECK(heard(2));
    later.ask(Order::set_live_cap, kNone);
    CHECK(a.ask(Order::live_cap) == kNone);
    CHECK(heard(3));
}

TEST_CASE("One cap holds for all processes of a job") {
    const Job job;
    const Process a = job.process(), b = job.process();
    CHECK(a.reserve(600, 1000));
    CHECK_FALSE(b.reserve(401, 1000));
    CHECK(b.reserve(400, 1000));
    CHECK(a.ask(Order::others) == 400);
    CHECK(b.ask(Order::others) == 600);
    CHECK(a.ask(Order::holders) == 2);
    CHECK_FALSE(a.reserve(1, 1000));
    CHECK(b.ask(Order::free, 100) == 1);
    CHECK(a.reserve(100, 1000));
    CHECK_FALSE(a.reserve(~Bytes{0}, 1000));
    CHECK(a.ask(Order::others) == 300);
}

TEST_CASE("Bytes that a process keeps for the driver's code count for the others") {
    const Job job;
    const Process a = job.process(), b = job.process();
    a.ask(Order::keep, 300);
    CHECK_FALSE(b.reserve(701, 1000));
    CHECK(b.reserve(700, 1000));
    a.ask(Order::keep, 0);
    CHECK(b.reserve(300, 1000));
}

TEST_CASE("Two jobs do not see each other") {
    const Job one, other;
    const Process a = one.process(), b = other.process();
    CHECK(a.reserve(1000, 1000));
    CHECK(b.reserve(1000, 1000));
    CHECK(a.ask(Order::others) == 0);
}

TEST_CASE("The bytes that a killed process held are free for the others within 100 ms") {
    const Job job;
    const Process survivor = job.process();
    constexpr Bytes kCap = 1000;
    std::mt19937 random(1);
    double longest = 0;
    const std::size_t kills = times(200);
    for (std::size_t i = 0; i < kills; ++i) {
        Process victim = job.process();
        victim.ask(Order::reserve, 100, kCap);
        victim.tell(Order::reserve, 700, kCap);  // it may die in the middle
        if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        victim.kill();
        longest = std::max(longest, whole_cap_again(survivor, kCap));
    }
    WARN(kills << " kills, the whole cap was free again after " << longest << " ms at most");
    CHECK(longest < 1000);  // 100 ms, had it a core of its own
    CHECK(survivor.ask(Order::others) == 0);
}

TEST_CASE("A stopped process keeps what it holds and holds up no other") {
    const Job job;
    const Process a = job.process(), b = job.process();
    CHECK(a.reserve(600, 1000));
    a.signal(SIGSTOP);
    CHECK_FALSE(b.reserve(500, 1000));
    CHECK(b.reserve(400, 1000));
    a.signal(SIGCONT);
    CHECK(a.ask(Order::others) == 400);
}

TEST_CASE("A process that closes all its descriptors still counts, and is noticed when it ends") {
    const Job job;
    const Process survivor = job.process();
    Process closed = job.process();
    CHECK(closed.reserve(500, 1000));
    closed.ask(Order::close_all);
    CHECK(survivor.ask(Order::others) == 500);
    CHECK(closed.reserve(100, 1000));
    CHECK_FALSE(survivor.reserve(401, 1000));
    closed.kill();
    CHECK(whole_cap_again(survivor, 1000) < 1000);
}

TEST_CASE("A forked child holds nothing for its parent, and exec ends what a process holds") {
    const Job job;
    const Process survivor = job.process();
    Process parent = job.process();
    CHECK(parent.reserve(600, 1000));
    const auto child = static_cast<pid_t>(parent.ask(Order::fork));
    parent.kill();
    CHECK(whole_cap_again(survivor, 1000) < 1000);
    kill(child, SIGKILL);

    const Process other = job.process();
    CHECK(other.reserve(600, 1000));
    other.tell(Order::exec);
    CHECK(whole_cap_again(survivor, 1000) < 1000);
}

TEST_CASE("A process without the thread, and one whose sandbox forbids robust futexes, are noticed when they end") {
    const auto how = GENERATE(Order::join_by_pid, Order::join_without_robust_futexes);
    const Job job;
    const Process survivor = job.process();
    Process ends(job.name, how);
    REQUIRE(ends.joined());
    CHECK(ends.reserve(600, 1000));
    CHECK_FALSE(survivor.reserve(500, 1000));
    ends.kill();
    CHECK(survivor.reserve(1000, 1000));
}

TEST_CASE(
    "A process without the thread is recognised by its pid, and a later process with that pid is not taken for it") {
    const Job job;
    const Process survivor = job.process();
    Process by_pid(job.name, Order::join_by_pid);
    REQUIRE(by_pid.joined());
    CHECK(by_pid.reserve(600, 1000));
    CHECK_FALSE(survivor.reserve(500, 1000));
    SECTION("Its pid is another process's now") {
        job.segment().member[1].start.fetch_sub(1);
        CHECK(survivor.reserve(1000, 1000));
    }
    SECTION("It lives in another pid namespace, where its pid says nothing here") {
        job.segment().member[1].namespaces.fetch_add(1);
        CHECK_FALSE(survivor.reserve(500, 1000));
    }
    SECTION("It lives, and the survivor has no descriptor left for /proc") {
        survivor.ask(Order::no_descriptors);
        CHECK_FALSE(survivor.reserve(500, 1000));
    }
    SECTION("It lives, and had no descriptor left for /proc when it joined") {
        const Process without(job.name, Order::nothing);
        without.ask(Order::no_descriptors);
        REQUIRE(without.ask(Order::join_by_pid) == 1);
        CHECK(without.reserve(300, 1000));
        CHECK_FALSE(survivor.reserve(200, 1000));
    }
    SECTION("It calls exec: as which program it joins again does not matter") {
        const Process again(job.name, Order::nothing);
        job.segment().member[1].pid.store(static_cast<std::uint32_t>(again.pid()));
        job.segment().member[1].start.store(curb::control::suspended::start_of(again.pid()));
        REQUIRE(again.ask(Order::join) == 1);
        CHECK(again.reserve(1000, 1000));
    }
}

TEST_CASE("What a process holds is over the cap for another one; only what it asks for at this moment is contended") {
    const Job job;
    const Process one = job.process(), other = job.process();
    CHECK(one.reserve(600, 1000));
    CHECK_FALSE(one.reserve(500, 1000));
    CHECK(other.ask(Order::reserve, 500, 1000) == static_cast<std::uint64_t>(Share::Answer::over));
}

TEST_CASE("Processes that are pid 1 in namespaces of their own share the cap, and are noticed when they end") {
    const int namespaces = geteuid() == 0 ? CLONE_NEWPID : CLONE_NEWPID | CLONE_NEWUSER;
    const pid_t tried = static_cast<pid_t>(syscall(SYS_clone, namespaces | SIGCHLD, 0, 0, 0, 0));
    if (tried == 0) _exit(0);
    if (tried < 0) {
        WARN("skipped: this user may not make pid namespaces");
        return;
    }
    waitpid(tried, nullptr, 0);
    const Job job;
    const Process outside = job.process();
    Process a(job.name, Order::join, namespaces), b(job.name, Order::join, namespaces);
    REQUIRE((a.joined() && b.joined()));
    CHECK(a.reserve(500, 1000));
    CHECK(b.reserve(300, 1000));
    CHECK_FALSE(outside.reserve(201, 1000));
    CHECK(outside.ask(Order::others) == 800);
    a.kill();
    CHECK(others_are(outside, 300));
    CHECK(b.ask(Order::others) == 0);
    b.kill();
    CHECK(whole_cap_again(outside, 1000) < 1000);
}

TEST_CASE("Processes whose clocks differ by a day, in a namespace of time, share the cap") {
    // This process's children are in the new namespace, until it goes back to its own.
    const int own = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);
    if (own < 0 || unshare(CLONE_NEWTIME) != 0) {
        WARN("skipped: this user may not make namespaces of time");
        return;
    }
    std::ofstream("/proc/self/timens_offsets") << "monotonic 86400 0\nboottime 86400 0\n";
    const Job job;
    const Process ahead(job.name), ahead_by_pid(job.name, Order::join_by_pid);
    REQUIRE(setns(own, CLONE_NEWTIME) == 0);
    close(own);
    REQUIRE((ahead.joined() && ahead_by_pid.joined()));
    const Process one = job.process(), ends = job.process();
    REQUIRE(ahead_by_pid.reserve(300, 1000));
    REQUIRE(ends.reserve(200, 1000));
    CHECK_FALSE(one.reserve(501, 1000));
    ends.tell(Order::exec);
    REQUIRE(within(10s, [&] { return job::is_dying(job.segment().owner[3].load()); }));
    CHECK(ahead.ask(Order::others) == 500);  // it has looked first
    CHECK(one.ask(Order::others) == 500);
    CHECK(others_are(one, 300));
}

TEST_CASE("Processes that reserve and free at once never exceed the cap, and each is granted what fits") {
    const Job job;
    constexpr Bytes kCap = 1000;
    struct Books {
        std::atomic<Bytes> held;
        std::atomic<std::uint64_t> most, granted, refused, over;
    };
    auto &books =
        *static_cast<Books *>(mmap(nullptr, sizeof(Books), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const std::size_t rounds = times(20'000);
    std::vector<pid_t> all;
    for (unsigned i = 0; i < 6; ++i) {
        const pid_t pid = fork();
        if (pid == 0) {
            std::mt19937 random(i);
            if (!job::join(job.name, kEvents).empty() || !share().open(kGpu, 0)) _exit(1);
            for (std::size_t round = 0; round < rounds; ++round) {
                const Bytes bytes = 1 + random() % 400;
                if (share().reserve(bytes, kCap) != Share::Answer::reserved) {
                    ++books.refused;
                    continue;
                }
                ++books.granted;
                // Entered after the grant and taken out before the free, so it is never more than the ledger has.
                if (books.held.fetch_add(bytes) + bytes > kCap) ++books.over;
                if (round % 16 == 0) std::this_thread::yield();
                books.held.fetch_sub(bytes);
                share().add(-bytes);
            }
            _exit(0);
        }
        all.push_back(pid);
    }
    for (const pid_t pid : all) {
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        CHECK(status == 0);
    }
    WARN(books.granted << " grants, " << books.refused << " refusals");
    CHECK(books.over == 0);
    CHECK(books.granted > rounds);
    const Process last = job.process();
    CHECK(whole_cap_again(last, kCap) < 1000);
    munmap(&books, sizeof books);
}
