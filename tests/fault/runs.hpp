// Runs a program under one fault, and compares the run with one without a fault. Each run has a process of its own,
// forked before CUDA begins. A sweep makes many runs in one process, for drivers on which a context takes long to make.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "temp_dir.hpp"
#include "ways.hpp"

namespace fault {

struct Trial {
    const Way *way;
    Fault fault;
};

class Runs {
  public:
    // Each child calls `make_injector`. With `same_books` a faulted run must have the books of a clean one.
    Runs(std::function<std::unique_ptr<Injector>()> make_injector, bool same_books);

    // Runs the way without a fault. Returns the calls of the program, or of other threads if `others`; 0 if it fails.
    std::uint64_t calls(const Way &way, bool others, bool blocks = false);
    // Runs one trial, after calls(). False if its fault was not reached.
    bool run(const Trial &trial);
    // Runs the trials in an order that `seed` decides, several at a time, from the first again if need be, until
    // `wanted` faults are reached. Returns how many were.
    std::uint64_t run(std::vector<Trial> trials, std::uint64_t wanted, std::uint64_t seed);

    // Makes every call of a way fail once with each of `codes`, in one process that keeps the device's context, in an
    // order that `seed` decides, for at most `most`. Tries each fault that shows an error again in a process of its
    // own. An error that does not come again is due to the many runs, and only printed. Returns the faults reached.
    std::uint64_t sweep(const Way &way, bool others, const std::vector<int> &codes, std::chrono::seconds most,
                        std::uint64_t seed);

    [[nodiscard]] std::uint64_t failures() const { return failures_; }

  private:
    struct Sweep;

    void take_places();
    void write_policy(const Way &way, bool blocks) const;
    void begin_child(const Way &way, bool blocks) const;
    void sweep_in_child(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed, Sweep &sweep);
    // False if the process did not end normally.
    bool swept(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed, Sweep &sweep);
    const Report &one(const Trial &trial, std::string &trouble);

    std::function<std::unique_ptr<Injector>()> make_injector_;
    bool same_books_;
    std::unique_ptr<TempDir> folder_;
    Report *shared_ = nullptr;
    std::map<std::tuple<const Way *, bool, bool>, Report> clean_;  // by way, others and blocks
    std::uint64_t failures_ = 0;
};

// Runs each way once, or the one that the first argument names; only the way itself makes calls fail. Returns the exit
// status: 0 if nothing was wrong.
int run_cases(int argc, char **argv);

// Returns the seed of this run: CURB_SEED, which a failing run prints, or else a random one.
std::uint64_t seed();

// Returns how the books differ; empty if they agree where they must.
std::string difference(const Trial &trial, const Report &clean, const Report &faulted);

}  // namespace fault
