#include "job_process.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <thread>

#include "job/exports.hpp"
#include "threads/own_thread.hpp"

namespace {

constinit bool without_threads = false;

}  // namespace

// Stands in for shim/threads, of which the ledger needs only this.
bool own_thread::start(void (*body)(), const char * /*name*/) noexcept {
    if (without_threads) return false;
    std::thread(body).detach();
    return true;
}

Share &share() {
    static Share share;
    return share;
}

namespace {

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

constinit int own_end = -1;  // of the socket by which a process gets its orders

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
        case Order::join_without_shmctl: forbid(SYS_shmctl); return obey({Order::join}, name);
        case Order::join_without_shmat: forbid(SYS_shmat); return obey({Order::join}, name);
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

}  // namespace

const job::Events kEvents{.wanted = release_cached, .caps_changed = count_changes};

Process::Process(std::string job, Order::What join, int namespaces) : job_(std::move(job)) {
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
