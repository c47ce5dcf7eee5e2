// Threads under curb that allocate memory of every family, free what others have allocated, end and start again, while
// signals and requests ask for releases and set caps.
//
// Arguments: the number of operations and of rounds, a seed, the policy's cap in MiB, "pools", "pools-end" (which also
// destroys pools) or "no-pools" (which also leaves out code), the number of threads, and the most blocks. Without pools
// the process never exceeds the cap. With them a pool may grow by a request that curb then undoes (decision 0004), and
// the size of code is known only once it is loaded. Between two rounds no thread works, and the program compares curb's
// books with the simulated driver's, by kind. The last line on stdout has the numbers of operations, refusals and
// threads, and the bytes released.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "books.hpp"
#include "sim.h"
#include "traffic.hpp"

namespace {

using namespace std::chrono_literals;
namespace control = curb::control;
namespace policy = curb::policy;
using load::kPatience;

int wrong = 0;
void say(bool right, const char *what, unsigned long long is, unsigned long long should) {
    if (right) return;
    std::fprintf(stderr, "%s: %llu, not %llu\n", what, is, should);
    ++wrong;
}

// Compares the books while no thread works: they must agree once a release in progress has ended and the host has seen
// all frees in streams complete.
void compare(load::Traffic &traffic, bool pools_end) {
    traffic.synchronize();
    const std::string left = load::differences_that_stay(kPatience, pools_end);
    if (left.empty()) return;
    std::fprintf(stderr, "at a quiet point: %s", left.c_str());
    ++wrong;
}

// The most by which pools may exceed the cap until curb undoes it: a few of the largest requests, in units of pools.
constexpr std::uint64_t kUndone = 3 * 64 * load::kMiB;

// Asks for releases and sets caps in a thread, during its lifetime.
class Beside {
  public:
    explicit Beside(std::uint64_t cap) : cap_(cap), thread_([this] { run(); }) {}
    ~Beside() {
        stop_ = true;
        thread_.join();
        control::ask(getpid(), control::CapRequest(), kPatience);  // back to the policy's cap
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
    if (argc != 8) {
        std::fprintf(stderr, "usage: %s OPERATIONS ROUNDS SEED CAP-MIB pools|pools-end|no-pools THREADS BLOCKS\n",
                     argv[0]);
        return 2;
    }
    const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
    const std::uint64_t operations = number(1), rounds = number(2), cap = number(4) * load::kMiB;
    const bool pools = std::string_view(argv[5]) != "no-pools", pools_end = std::string_view(argv[5]) == "pools-end";
    const bool nvml = std::getenv("CURB_SIM_NVML") == nullptr;
    std::vector<load::Trait> without;
    if (!pools) without.push_back(load::Trait::stream_ordered);
    // The size of code is known only once it is loaded, and only to NVML.
    if (!pools || !nvml) without.push_back(load::Trait::code);
    // Without NVML curb measures a context by the device's free memory, which other threads change meanwhile.
    if (!nvml) without.push_back(load::Trait::context);
    load::Traffic traffic({.threads = static_cast<unsigned>(number(6)),
                           .blocks = static_cast<unsigned>(number(7)),
                           .devices = 1,
                           .seed = number(3),
                           .without = without,
                           .pools_end = pools_end});
    for (std::uint64_t round = 0; round < rounds && wrong == 0; ++round) {
        {
            const Beside beside(cap);
            traffic.work(operations / rounds + 1);
            traffic.wait();
        }
        compare(traffic, pools_end);
    }
    const std::uint64_t most = cap + (pools ? kUndone : 0);
    say(curb_sim_high(0) <= most, "the most that was held", curb_sim_high(0), most);
    traffic.give_everything_back();
    control::ask(getpid(), policy::ReleaseRequest(), kPatience);  // frees kept blocks
    compare(traffic, pools_end);
    // Green contexts have left memory to the primary one.
    say(curb_sim_held(0) == curb_sim_held_for(0, "context"), "held with everything free", curb_sim_held(0),
        curb_sim_held_for(0, "context"));
    say(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS, "resets", 0, 1);
    const auto last = load::status();
    say(curb_sim_held(0) == 0, "held at the end by the driver", curb_sim_held(0), 0);
    say(last && last->held == 0, "held at the end by the books", last ? last->held : ~0ULL, 0);
    const auto &counts = traffic.counts();
    say(counts.wrong == 0, "calls with another error than a refusal", counts.wrong, 0);
    std::printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(counts.operations()),
                static_cast<unsigned long long>(counts.refused), static_cast<unsigned long long>(counts.lives),
                static_cast<unsigned long long>(last ? control::released(*last) : 0));
    return wrong == 0 ? 0 : 1;
}
