// Runs of a program, each in a process of its own that is forked before CUDA has begun there: what it does under one
// fault, held against what it does without any. Where a context takes long to make, one process makes many runs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
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
    // `make_injector` in each child. `same_books`: those of a faulted run are those of a clean one.
    Runs(std::function<std::unique_ptr<Injector>()> make_injector, bool same_books);

    // Without a fault: how many calls `others` or the program make. Nothing can be learned from a way that fails.
    std::uint64_t calls(const Way &way, bool others);
    // With it, once the calls are known. False: it was not reached.
    bool run(const Trial &trial);
    // In an order that `seed` decides, several at a time, again from the first if need be, until so many faults have
    // been reached. How many have.
    std::uint64_t run(std::vector<Trial> trials, std::uint64_t wanted, std::uint64_t seed);

    // Every call of a way fails once with each of `codes`, all in one process that keeps the device's context, in an
    // order that `seed` decides, for so long at the most. A fault under which something is wrong is planned once more
    // in a process that knows no other: what is not wrong there has come of the many runs, and is only printed.
    // Returns how many have been reached.
    std::uint64_t sweep(const Way &way, bool others, const std::vector<int> &codes, std::chrono::seconds most,
                        std::uint64_t seed);

    [[nodiscard]] std::uint64_t failures() const { return failures_; }

  private:
    struct Sweep;

    void take_places();
    void begin_child(const Way &way) const;
    void sweep_in_child(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed, Sweep &sweep);
    // False: the process has not come to its end.
    bool swept(const Way &way, bool others, const std::vector<int> &codes, std::uint64_t seed, Sweep &sweep);
    const Report &one(const Trial &trial, std::string &trouble);

    std::function<std::unique_ptr<Injector>()> make_injector_;
    bool same_books_;
    std::unique_ptr<TempDir> folder_;
    Report *shared_ = nullptr;
    std::map<std::pair<const Way *, bool>, Report> clean_;
    std::uint64_t failures_ = 0;
};

// Each way once, or the one that the first argument names, where nothing but the way itself makes calls fail. The exit
// status: 0 where nothing was wrong.
int run_cases(int argc, char **argv);

// The seed of this run: CURB_SEED, which a failing run has printed, or another one each time.
std::uint64_t seed();

// How the books differ; empty: not where they must not.
std::string difference(const Trial &trial, const Report &clean, const Report &faulted);

}  // namespace fault
