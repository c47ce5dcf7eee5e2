// The memory that the processes of a job share: its lives, slots, versions and lists, and what spoils it.
#include <sched.h>
#include <sys/shm.h>

#include <random>
#include <thread>
#include <vector>

#include "in_child.hpp"
#include "job_process.hpp"
#include "policy/decisions/growth.hpp"

TEST_CASE("Exported memory counts for its maker, and then for one of the survivors until the last one has closed it") {
    const bool named = GENERATE(true, false);
    const Job job;
    const Process watcher = job.process();
    Process maker = job.process(), first = job.process(), second = job.process();
    REQUIRE(maker.reserve(kPiece, kRoom));
    maker.ask(Order::export_memory, kPiece, named ? 7 : 0);
    for (const Process *process : {&first, &second})
        process->ask(named ? Order::import : Order::import_of_size, kPiece, named ? 7 : 0);
    CHECK(watcher.ask(Order::others) == kPiece);
    SECTION("the processes are killed one after the other") {
        maker.kill();
        CHECK(others_are(watcher, kPiece));
        const Process next = job.process();  // in the slot of the maker
        CHECK(next.ask(Order::others) == kPiece);
        CHECK_FALSE(next.reserve(kRoom - kPiece + 1, kRoom));
        CHECK(next.reserve(kRoom - kPiece, kRoom));
        first.kill();
        CHECK(others_are(watcher, kRoom));
        second.kill();
        CHECK(others_are(watcher, kRoom - kPiece));
    }
    SECTION("the survivors close it") {
        maker.kill();
        CHECK(others_are(watcher, kPiece));
        first.ask(Order::close_imported, kPiece);
        CHECK(watcher.ask(Order::others) == kPiece);
        second.ask(Order::close_imported, kPiece);
        CHECK(watcher.ask(Order::others) == 0);
    }
    SECTION("the maker frees it") {
        maker.ask(Order::free_exported, kPiece);
        maker.ask(Order::free, kPiece);
        CHECK(watcher.ask(Order::others) == kPiece);
        CHECK(watcher.ask(Order::holders) == 1);
    }
    SECTION("it is closed before its maker ends") {
        for (const Process *process : {&first, &second}) process->ask(Order::close_imported, kPiece);
        maker.kill();
        CHECK(others_are(watcher, 0));
    }
    SECTION("NVML's figure of a survivor begins to count it, and no longer does") {
        maker.kill();
        CHECK(others_are(watcher, kPiece));
        first.ask(Order::overhead, kPiece);
        CHECK(watcher.ask(Order::others) == kPiece);
        first.ask(Order::overhead, -kPiece);
        CHECK(watcher.ask(Order::others) == kPiece);
        first.ask(Order::overhead, 3 * kPiece);  // something else
        CHECK(watcher.ask(Order::others) == 4 * kPiece);
    }
}

TEST_CASE("Pieces of one size that descriptors do not tell apart count at least as much as is imported") {
    const Job job;
    const Process watcher = job.process(), user = job.process();
    Process maker = job.process();
    REQUIRE(maker.reserve(2 * kPiece, kRoom));
    for (const Bytes key : {kPiece, kPiece + 1}) maker.ask(Order::export_memory, key, 0);
    maker.ask(Order::free_exported, kPiece + 1);  // of another size
    maker.ask(Order::export_memory, kPiece, 0);   // known already
    user.ask(Order::import_of_size, kPiece);
    user.ask(Order::import_of_size, kPiece + 1);  // nothing has this size
    maker.kill();
    CHECK(others_are(watcher, kPiece));
}

TEST_CASE("Lists of shared memory that another program overwrites cause refusals, and nothing else") {
    const Job job;
    const Process a = job.process(), b = job.process();
    job::Segment &segment = job.segment();
    std::mt19937_64 random(3);
    for (int round = 0; round < 200; ++round) {
        for (job::Pieces &pieces : segment.imported) {
            pieces.end.store(static_cast<std::uint32_t>(random()));
            for (job::Piece &piece : pieces.piece) {
                piece.memory.store(random());
                piece.bytes.store(random());
                piece.gpu.store(static_cast<std::uint32_t>(random() % 2));
                piece.maker.store(static_cast<std::uint32_t>(random()));
                piece.place.store(static_cast<std::uint32_t>(random()));
            }
        }
        segment.imports.store(1);
        CHECK_FALSE(a.reserve(1, kRoom));
        CHECK(b.ask(Order::others) > kRoom);
    }
}

TEST_CASE("What the processes of a job share ends with the last of them") {
    const Job job;
    {
        const Process first = job.process();
        Process second = job.process();
        first.ask(Order::set_live_cap, 700);
        first.ask(Order::note_context, 500);
        first.ask(Order::export_memory, kPiece, 7);
        second.kill();
        const Process third = job.process();
        CHECK(third.ask(Order::live_cap) == 700);
        CHECK(third.ask(Order::context) == 500);
    }
    const Process fresh = job.process(), other = job.process();
    for (const Process *process : {&fresh, &other}) {
        CHECK(process->ask(Order::live_cap) == kNone);
        CHECK(process->ask(Order::context) == 0);
    }
    other.ask(Order::import, kPiece, 7);
    CHECK(fresh.ask(Order::others) == 0);
    other.ask(Order::set_live_cap, 700);
    CHECK(fresh.ask(Order::live_cap) == 700);
}

TEST_CASE("A process that begins with others, all at once, keeps what these set") {
    const Job job;
    for (std::size_t round = 0; round < times(20); ++round) {
        job.process().ask(Order::set_live_cap, 600);
        std::vector<Process> all;
        for (int i = 0; i < 4; ++i) all.emplace_back(job.name, Order::nothing);
        for (const Process &one : all) one.tell(Order::join);
        REQUIRE(all[round % 4].hear() == 1);
        CHECK(all[round % 4].ask(Order::live_cap) == kNone);
        all[round % 4].ask(Order::set_live_cap, 700);
        for (std::size_t i = 0; i < 4; ++i) {
            if (i != round % 4) REQUIRE(all[i].hear() == 1);
            CHECK(all[i].ask(Order::live_cap) == 700);
        }
    }
}

TEST_CASE("Each life of a job has rows for 64 GPUs") {
    const Job job;
    for (Bytes first : {0, 30}) {
        const Process one = job.process();
        for (Bytes gpu = 0; gpu + 1 < job::kGpus; ++gpu) CHECK(one.ask(Order::open_gpu, first + gpu) == 1);
        CHECK(one.ask(Order::open_gpu, first + job::kGpus) == 0);
    }
}

TEST_CASE("A job has slots for 128 processes; one more cannot join until one of them has ended") {
    const Job job;
    std::vector<Process> all;
    for (std::size_t i = 0; i < job::kSlots; ++i) all.push_back(job.process());
    CHECK_FALSE(Process(job.name).joined());
    CHECK(all.front().reserve(1, 1000));
    all[77].kill();
    std::size_t tries = 0;
    while (!Process(job.name).joined() && ++tries < 100) std::this_thread::sleep_for(10ms);
    CHECK(tries < 100);
}

TEST_CASE("A process that found no slot changes nothing of the one whose slot is the first") {
    const Job job;
    std::vector<Process> all;
    for (std::size_t i = 0; i + 1 < job::kSlots; ++i) all.push_back(job.process());
    Process maker = job.process();
    maker.ask(Order::export_memory, 500, 77);
    all[1].ask(Order::export_memory, 10, 99);
    all[0].ask(Order::import, 500, 77);
    maker.kill();
    REQUIRE(others_are(all[1], 500));  // the first process is charged for the memory that it has imported
    const Process last = job.process();
    REQUIRE(last.joined());
    const Process none(job.name);
    REQUIRE_FALSE(none.joined());
    none.ask(Order::import, 10, 99);
    none.ask(Order::export_memory, 20, 88);
    CHECK(all[1].ask(Order::others) == 500);
}

TEST_CASE("A ledger of another version is not used") {
    const Job job;
    for (const std::size_t size : {std::size_t{4096}, sizeof(job::Segment), 2 * sizeof(job::Segment)}) {
        CAPTURE(size);
        const int id = shmget(job.key(), size, IPC_CREAT | IPC_EXCL | 0600);
        auto *const layout = static_cast<std::uint64_t *>(shmat(id, nullptr, 0));
        *layout = job::Segment::kLayout + 1;
        CHECK_FALSE(Process(job.name).joined());
        shmctl(id, IPC_RMID, nullptr);
        REQUIRE(shmdt(layout) == 0);
    }
}

TEST_CASE("Where a job's key has a segment that cannot be its ledger, it takes the next key") {
    const Job job;
    const auto made = [&](std::size_t size, int mode) { return shmget(job.key(), size, IPC_CREAT | IPC_EXCL | mode); };
    int id = -1;
    SECTION("of another program") { id = made(4096, 0600); }
    SECTION("of another job") {
        id = made(sizeof(job::Segment), 0600);
        job.segment().job.store(1);
    }
    SECTION("open to others") { id = made(sizeof(job::Segment), 0666); }
    REQUIRE(id >= 0);
    {
        const Process a = job.process(), b = job.process();
        REQUIRE(a.reserve(kPiece, kRoom));
        CHECK(b.ask(Order::others) == kPiece);
    }
    shmctl(shmget(job.key() + 1, 0, 0), IPC_RMID, nullptr);
}

namespace {

constexpr uid_t kStranger = 54'321;

// Leaves the case's segments to a namespace that ends with this process. False if it may not make one.
bool leaves_ipc() { return geteuid() == 0 && ::unshare(CLONE_NEWIPC) == 0; }
constexpr const char *kNoStranger = "only root can be another user, in an IPC namespace of its own";

}  // namespace

TEST_CASE("A sandbox that refuses shmctl or shmat: a process is not in its job, and makes no segment") {
    if (!leaves_ipc()) return skip(kNoStranger);
    const Job job;
    CHECK_FALSE(Process(job.name, GENERATE(Order::join_without_shmctl, Order::join_without_shmat)).joined());
    shm_info system{};
    REQUIRE(shmctl(0, SHM_INFO, reinterpret_cast<shmid_ds *>(&system)) >= 0);
    CHECK(system.used_ids == 0);
    CHECK(job.process().joined());
}

TEST_CASE("Another user who takes 1,000 keys of a job, and gives some up again, does not part its processes") {
    if (!leaves_ipc()) return skip(kNoStranger);
    const Job job;
    constexpr int kTaken = 1000;
    const key_t first = job.key();  // of this user
    const int status = in_child([&] {
        if (setresuid(kStranger, kStranger, kStranger) != 0) return 1;
        for (int i = 0; i < kTaken; ++i)
            if (shmget(first + i, 1, IPC_CREAT | IPC_EXCL | 0666) < 0) return 2;
        return 0;
    });
    CHECK(status == 0);
    const Process a = job.process(), b = job.process();
    REQUIRE(a.reserve(kPiece, kRoom));
    CHECK(b.ask(Order::others) == kPiece);
    for (int i = 0; i < kTaken / 2; ++i) CHECK(shmctl(shmget(first + i, 0, 0), IPC_RMID, nullptr) == 0);
    const Process c = job.process();
    CHECK(c.ask(Order::others) == kPiece);
}

TEST_CASE(
    "Processes that begin a job at once get the same ledger while another user takes its keys and gives them up") {
    if (!leaves_ipc()) return skip(kNoStranger);
    for (std::size_t round = 0; round < times(20); ++round) {
        const Job job;
        const key_t first = job.key();
        const Child stranger({}, [&] {
            if (setresuid(kStranger, kStranger, kStranger) != 0) _exit(1);
            for (int i = 0;; i = (i + 1) % 3) {
                const int id = shmget(first + i, 1, IPC_CREAT | IPC_EXCL | 0600);
                for (int before = 0; before < 3; ++before)
                    if (before != i) shmctl(shmget(first + before, 0, 0), IPC_RMID, nullptr);
                static_cast<void>(id);
            }
        });
        std::vector<Process> all;
        for (int i = 0; i < 4; ++i) all.emplace_back(job.name, Order::nothing);
        for (const Process &one : all) one.tell(Order::join);
        for (const Process &one : all) REQUIRE(one.hear() == 1);
        REQUIRE(all[0].reserve(kPiece, kRoom));
        for (int i = 1; i < 4; ++i) CHECK(all[static_cast<std::size_t>(i)].ask(Order::others) == kPiece);
    }
}

TEST_CASE("A ledger that another version has left behind does not stand in the way") {
    const Job job;
    const int id = shmget(job.key(), 4096, IPC_CREAT | IPC_EXCL | 0600);
    auto *const layout = static_cast<std::uint64_t *>(shmat(id, nullptr, 0));
    *layout = job::Segment::kLayout - 1;
    CHECK_FALSE(Process(job.name).joined());  // a process of that version may be in it
    REQUIRE(shmdt(layout) == 0);
    CHECK(Process(job.name).joined());
}

TEST_CASE("A process goes on whatever another program writes into the ledger; without its slot it refuses") {
    const Job job;
    const Process a = job.process(), b = job.process();
    job::Segment &segment = job.segment();
    std::mt19937_64 random(2);
    auto *const words = reinterpret_cast<volatile std::uint64_t *>(&segment);
    for (int i = 0; i < 200; ++i) {
        for (std::size_t word = 0; word < sizeof segment / sizeof *words; word += 1 + random() % 16)
            words[word] = i % 3 == 0 ? ~std::uint64_t{0} : i % 3 == 1 ? 0 : random();
        a.ask(Order::reserve, 10, 1000);
        a.ask(Order::others);
        a.ask(Order::holders);
        b.ask(Order::keep, 10);
    }
    segment.owner[0].store(0);
    CHECK_FALSE(a.reserve(1, 1000));
    CHECK(a.ask(Order::others) == curb::policy::kUnbounded);
}
