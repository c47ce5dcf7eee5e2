// Processes of a job, which are forked, stopped and killed here. Each joins the job for itself and obeys orders.
#pragma once

#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

#include "../../process/helpers/within.hpp"
#include "catch.hpp"
#include "job/job_ledger.hpp"
#include "job/segment.hpp"

using namespace curb::shim;
using namespace std::chrono_literals;
using curb::policy::Bytes;
using job::Share;

constexpr const char *kGpu = "GPU-8f3a";
constexpr std::uint64_t kNone = ~std::uint64_t{0};
// Of more than a granule, so that a changed figure shows it.
constexpr Bytes kPiece = 100'000'000, kRoom = 1'000'000'000;

// This process's share of the job, and its part in the events of the job.
Share &share();
extern const job::Events kEvents;

// An order to a process of the job. It answers each.
struct Order {
    enum What : int {
        nothing,
        join,
        join_by_pid,
        join_without_robust_futexes,
        join_without_shmctl,
        join_without_shmat,
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

// A process beside the test.
class Process {
  public:
    // `namespaces`: flags of clone(2) for namespaces of its own.
    explicit Process(std::string job, Order::What join = Order::join, int namespaces = 0);
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
inline double whole_cap_again(const Process &process, Bytes cap) {
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

// True once a process that holds nothing itself sees this sum.
inline bool others_are(const Process &process, Bytes bytes) {
    return within(10s, [&] { return process.ask(Order::others) == bytes; });
}

inline std::size_t times(std::size_t usual) {
    return std::getenv("CURB_NIGHTLY") ? 50 * usual : usual;  // 10,000 kills
}
