// 32 threads under curb that take and free memory of every family, each what others have taken, and end and are made
// again, while signals and requests ask for releases and set caps beside them.
//
// Arguments: how many operations, in how many rounds, a seed, the policy's cap in MiB, and "pools" or "no-pools" for
// whether there are blocks of pools. Without those the cap is never exceeded, at no moment; with them a pool may grow
// by a request that is then undone (decision 0004). Between two rounds nothing happens, and what curb says is held
// against the simulated driver's own books. The last line on stdout: operations, refusals, threads, releases.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "control/client.hpp"
#include "sim.h"
#include "traffic.hpp"

namespace {

using namespace std::chrono_literals;
namespace control = curb::control;
namespace policy = curb::policy;

int wrong = 0;
void say(bool right, const char *what, unsigned long long is, unsigned long long should) {
    if (right) return;
    std::fprintf(stderr, "%s: %llu, not %llu\n", what, is, should);
    ++wrong;
}

constexpr auto kPatience = 60s;  // deadlines, which a busy machine keeps

std::optional<control::GpuStatus> status() {
    control::Reply reply = control::ask(getpid(), control::StatusRequest(), kPatience);
    const auto *said = std::get_if<control::Status>(&reply);
    if (!said || said->gpus.empty()) return std::nullopt;
    return said->releasing ? std::nullopt : std::optional(said->gpus.front());
}
std::uint64_t managed(const control::GpuStatus &gpu) {
    return gpu.kinds[static_cast<std::size_t>(policy::Kind::managed)];
}

// Nobody works: what curb says is what the driver has, once the release that may be under way has ended.
void compare() {
    std::optional<control::GpuStatus> said;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    do said = status();
    while ((!said || said->held - managed(*said) != curb_sim_held(0)) && std::chrono::steady_clock::now() < until);
    if (!said) return say(false, "no answer at a quiet point", 0, 1);
    say(said->held - managed(*said) == curb_sim_held(0), "held, but for managed memory, by curb",
        said->held - managed(*said), curb_sim_held(0));
}

// What pools may grow by at a time and have to give back: a few of the largest requests, in units of pools.
constexpr std::uint64_t kUndone = 3 * 64 * load::kMiB;

// Releases and caps, until it is told to stop.
class Beside {
  public:
    explicit Beside(std::uint64_t cap) : cap_(cap), thread_([this] { run(); }) {}
    ~Beside() {
        stop_ = true;
        thread_.join();
        control::ask(getpid(), control::CapRequest(), kPatience);  // the policy's again
    }
    Beside(const Beside &) = delete;
    Beside &operator=(const Beside &) = delete;

  private:
    void run() const {
        for (unsigned turn = 0; !stop_; ++turn) {
            kill(getpid(), SIGUSR1);
            control::CapRequest lower;
            if (turn % 3) lower.cap = policy::Size{policy::Size::Unit::bytes, cap_ - cap_ / 8 * (turn / 4 % 4)};
            if (turn % 4 == 0) control::ask(getpid(), lower, kPatience);
            if (turn % 5 == 0) control::ask(getpid(), policy::ReleaseRequest(), kPatience);
            std::this_thread::sleep_for(3ms);
        }
    }

    std::uint64_t cap_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: %s OPERATIONS ROUNDS SEED CAP-MIB pools|no-pools\n", argv[0]);
        return 2;
    }
    const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
    const std::uint64_t operations = number(1), rounds = number(2), cap = number(4) * load::kMiB;
    const bool pools = std::string_view(argv[5]) == "pools";
    const auto without = pools ? std::nullopt : std::optional(load::Kind::stream_ordered);
    load::Traffic traffic({.threads = 32, .blocks = 2048, .devices = 1, .seed = number(3), .without = without});
    const auto first = status();
    const std::uint64_t at_first = curb_sim_held(0);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        {
            const Beside beside(cap);
            traffic.work(operations / rounds + 1);
            traffic.wait();
        }
        compare();
    }
    const std::uint64_t most = cap + (pools ? kUndone : 0);
    say(curb_sim_high(0) <= most, "the most that was held", curb_sim_high(0), most);
    traffic.give_everything_back();
    control::ask(getpid(), policy::ReleaseRequest(), kPatience);  // of what curb keeps for reuse
    compare();
    const auto last = status();
    say(curb_sim_held(0) == at_first, "held at the end by the driver", curb_sim_held(0), at_first);
    for (std::size_t kind = 0; first && last && kind < policy::kKinds; ++kind)
        say(last->kinds[kind] == first->kinds[kind], policy::kind_text(static_cast<policy::Kind>(kind)),
            last->kinds[kind], first->kinds[kind]);
    const auto &counts = traffic.counts();
    say(counts.wrong == 0, "calls with another error than a refusal", counts.wrong, 0);
    std::printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(counts.operations()),
                static_cast<unsigned long long>(counts.refused), static_cast<unsigned long long>(counts.lives),
                static_cast<unsigned long long>(last ? control::released(*last) : 0));
    return wrong == 0 ? 0 : 1;
}
