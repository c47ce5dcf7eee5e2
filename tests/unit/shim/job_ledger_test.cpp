// The ledger of a job, in processes that are forked, stopped and killed here. Each joins the job for itself.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "../../process/helpers/within.hpp"
#include "catch.hpp"
#include "control/suspended.hpp"
#include "job/exports.hpp"
#include "job/job_ledger.hpp"
#include "job/segment.hpp"
#include "policy/decisions/growth.hpp"
#include "threads/own_thread.hpp"

using namespace curb::shim;
using namespace std::chrono_literals;
using curb::policy::Bytes;
using job::Share;

namespace {

constinit bool without_threads = false;

}  // namespace

// Stands in for shim/threads, of which the ledger needs only this.
bool own_thread::start(void (*body)(), const char * /*name*/) noexcept {
    if (without_threads) return false;
    std::thread(body).detach();
    return true;
}

namespace {

constexpr const char *kGpu = "GPU-8f3a";

Share &share() {
    static Share share;
    return share;
}

// The bytes that the process can release for the others of its job.
constinit std::atomic<Bytes> cached{0};
constinit std::atomic<std::uint64_t> caps_changed{0};

void release_cached(Bytes bytes, std::uint64_t request) noexcept {
    const Bytes given = std::min(bytes, cached.load());
    cached -= given;
    share().add(-given);
    job::answered(request);
}
void count_changes() noexcept { ++caps_changed; }
constexpr job::Events kEvents{.wanted = release_cached, .caps_changed = count_changes};

constexpr std::uint64_t kNone = ~std::uint64_t{0};

constinit int own_end = -1;  // of the socket by which a process gets its orders

// An order to a process of the job. It answers each.
struct Order {
    enum What : int {
        nothing,
        join,
        join_by_pid,
        join_without_robust_futexes,
        open_gpu,
        reserve,
        free,
        keep,
        others,
        holders,
        fork,
        exec,
        close_all,
        no_descriptors,
        cache,
        want,
        set_live_cap,
        live_cap,
        note_context,
        context,
        changes,
        export_memory,
        free_exported,
        import,
        import_of_size,
        close_imported,
        overhead,
    } what{};
    Bytes bytes = 0, cap = 0;
};

// Makes the system call fail, as the filter of a sandbox does.
void forbid(int call) {
    std::array<sock_filter, 4> program{
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{program.size(), program.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

std::uint64_t obey(const Order &order, const std::string &name) {
    switch (order.what) {
        case Order::nothing: return 1;
        case Order::join_without_robust_futexes: forbid(SYS_set_robust_list); return obey({Order::join}, name);
        case Order::open_gpu: {
            static std::array<Share, 100> shares;
            return shares[order.bytes].open("GPU-" + std::to_string(order.bytes), 0) ? 1 : 0;
        }
        case Order::join_by_pid: without_threads = true; [[fallthrough]];
        case Order::join: return job::join(name, kEvents).empty() && share().open(kGpu, 0) ? 1 : 0;
        case Order::reserve: return static_cast<std::uint64_t>(share().reserve(order.bytes, order.cap));
        case Order::free: share().add(-order.bytes); return 1;
        case Order::keep: share().keep(order.bytes); return 1;
        case Order::others: return share().others();
        case Order::holders: return share().holders().size();
        case Order::fork: {
            const pid_t child = ::fork();
            if (child == 0)
                for (;;) pause();
            return static_cast<std::uint64_t>(child);
        }
        case Order::exec: execl("/bin/sleep", "sleep", "100", nullptr); return 0;
        case Order::close_all:
            close_range(0, static_cast<unsigned>(own_end) - 1, 0);
            close_range(static_cast<unsigned>(own_end) + 1, ~0U, 0);
            return 1;
        case Order::no_descriptors: {
            const rlimit none{0, 0};
            return setrlimit(RLIMIT_NOFILE, &none) == 0 ? 1 : 0;
        }
        case Order::cache: cached += order.bytes; return 1;
        case Order::want:
            if (!share().may_ask_others()) return 0;
            share().ask_others(order.bytes);
            return 1;
        case Order::set_live_cap:
            share().set_live_cap(order.bytes == kNone ? std::nullopt : std::optional(order.bytes));
            return 1;
        case Order::live_cap: return share().live_cap().value_or(kNone);
        case Order::note_context: share().note_context_cost(order.bytes); return 1;
        case Order::context: return share().context_cost();
        case Order::changes: return caps_changed;
        // `cap` is the name; 0: a descriptor.
        case Order::export_memory: job::exported(order.bytes, order.cap, share().row(), order.bytes); return 1;
        case Order::free_exported: job::freed(order.bytes); return 1;
        case Order::import: job::imported(order.bytes, order.cap); return 1;
        case Order::import_of_size: job::imported_of_size(order.bytes, share().row(), order.bytes); return 1;
        case Order::close_imported: return job::closed(order.bytes) ? 1 : 0;
        case Order::overhead:
            share().add(order.bytes);
            job::overhead_changed(share().row(), static_cast<std::int64_t>(order.bytes));
            return 1;
    }
    return 0;
}

// A process beside the test.
class Process {
  public:
    // `namespaces`: flags of clone(2) for namespaces of its own.
    explicit Process(std::string job, Order::What join = Order::join, int namespaces = 0) : job_(std::move(job)) {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        pid_ = namespaces ? static_cast<pid_t>(syscall(SYS_clone, namespaces | SIGCHLD, 0, 0, 0, 0)) : ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            close(ends[0]);
            own_end = ends[1];
            Order order;
            while (read(ends[1], &order, sizeof order) == sizeof order) {
                const std::uint64_t answer = obey(order, job_);
                if (write(ends[1], &answer, sizeof answer) != sizeof answer) break;
            }
            _exit(0);
        }
        close(ends[1]);
        end_ = ends[0];
        joined_ = ask(join) == 1;
    }
    Process(Process &&other) noexcept
        : job_(other.job_),
          pid_(std::exchange(other.pid_, 0)),
          end_(std::exchange(other.end_, -1)),
          joined_(other.joined_) {}
    Process(const Process &) = delete;
    ~Process() {
        if (pid_ != 0) kill();
        if (end_ >= 0) close(end_);
    }

    void tell(Order::What what, Bytes bytes = 0, Bytes cap = 0) const {
        const Order order{what, bytes, cap};
        REQUIRE(write(end_, &order, sizeof order) == sizeof order);
    }
    [[nodiscard]] std::uint64_t hear() const {
        std::uint64_t answer = ~std::uint64_t{0};
        REQUIRE(read(end_, &answer, sizeof answer) == sizeof answer);
        return answer;
    }
    std::uint64_t ask(Order::What what, Bytes bytes = 0, Bytes cap = 0) const {
        tell(what, bytes, cap);
        return hear();
    }
    bool reserve(Bytes bytes, Bytes cap) const {
        return ask(Order::reserve, bytes, cap) == static_cast<std::uint64_t>(Share::Answer::reserved);
    }
    void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
    void kill() {
        ::kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    [[nodiscard]] bool joined() const { return joined_; }
    [[nodiscard]] pid_t pid() const { return pid_; }

  private:
    std::string job_;
    pid_t pid_ = 0;
    int end_ = -1;
    bool joined_ = false;
};

// A job's name for one test case. Its segment is removed at the end.
struct Job {
    Job() {
        static int number = 0;
        name = "test " + std::to_string(getpid()) + " " + std::to_string(number++);
    }
    ~Job() { shmctl(shmget(key(), 0, 0), IPC_RMID, nullptr); }
    Job(const Job &) = delete;
    [[nodiscard]] key_t key() const { return job::key_of(name, geteuid()); }
    // The segment, as another program of the same user may reach it.
    [[nodiscard]] job::Segment &segment() const {
        void *at = shmat(shmget(key(), 0, 0), nullptr, 0);
        REQUIRE(at != reinterpret_cast<void *>(-1));
        return *static_cast<job::Segment *>(at);
    }
    [[nodiscard]] Process process() const {
        Process made(name);
        REQUIRE(made.joined());
        return made;
    }
    std::string name;
};

// Waits until this process may reserve the whole cap. Returns the milliseconds; a second or more: it could not.
double whole_cap_again(const Process &process, Bytes cap) {
    const auto began = std::chrono::steady_clock::now();
    const auto passed = [&] {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    };
    while (!process.reserve(cap, cap))
        if (passed() >= 1000) return passed();
    const double took = passed();
    process.ask(Order::free, cap);
    return took;
}

std::size_t times(std::size_t usual) {
    return std::getenv("CURB_NIGHTLY") ? 50 * usual : usual;  // 10,000 kills
}

}  // namespace

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

    // Where something was given, more can be asked for at once.
    CHECK(c.ask(Order::want, 100) == 1);
    CHECK(c.ask(Order::others) == 700);
    CHECK(b.ask(Order::want, 300) == 1);
    CHECK(b.ask(Order::others) == 300);

    // Where nothing was, a moment later.
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

// Of more than a granule, so that a changed figure shows it.
constexpr Bytes kPiece = 100'000'000, kRoom = 1'000'000'000;

// True once a process that holds nothing itself sees this sum.
bool others_are(const Process &process, Bytes bytes) {
    return within(10s, [&] { return process.ask(Order::others) == bytes; });
}

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

TEST_CASE(
    "A process without the thread is recognised by its pid, and a later process with that pid is not taken for it") {
    const Job job;
    const Process survivor = job.process();
    Process by_pid(job.name, Order::join_by_pid);
    REQUIRE(by_pid.joined());
    CHECK(by_pid.reserve(600, 1000));
    CHECK_FALSE(survivor.reserve(500, 1000));
    SECTION("It ends") {
        by_pid.kill();
        CHECK(survivor.reserve(1000, 1000));
    }
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

TEST_CASE("A process whose sandbox forbids robust futexes is noticed when it ends") {
    const Job job;
    const Process survivor = job.process();
    Process sandboxed(job.name, Order::join_without_robust_futexes);
    REQUIRE(sandboxed.joined());
    CHECK(sandboxed.reserve(600, 1000));
    CHECK_FALSE(survivor.reserve(500, 1000));
    sandboxed.kill();
    CHECK(survivor.reserve(1000, 1000));
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

TEST_CASE("A ledger of another version, and one that others may write, are not used") {
    const Job job;
    const auto made = [&](std::size_t size, int mode) { return shmget(job.key(), size, IPC_CREAT | IPC_EXCL | mode); };
    SECTION("another size") { REQUIRE(made(4096, 0600) >= 0); }
    SECTION("larger") { REQUIRE(made(2 * sizeof(job::Segment), 0600) >= 0); }
    SECTION("another layout") {
        REQUIRE(made(sizeof(job::Segment), 0600) >= 0);
        job.segment().layout.store(job::Segment::kLayout + 1);
    }
    SECTION("another job of the same key") {
        REQUIRE(made(sizeof(job::Segment), 0600) >= 0);
        job.segment().job.store(1);
    }
    SECTION("open to others") { REQUIRE(made(sizeof(job::Segment), 0666) >= 0); }
    CHECK_FALSE(Process(job.name).joined());
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
