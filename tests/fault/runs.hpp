// Runs of a program, each in a process of its own that is forked before CUDA has begun there: what it does under one
// fault, held against what it does without any.
#pragma once

#include <functional>
#include <memory>

#include "temp_dir.hpp"
#include "ways.hpp"

namespace fault {

class Runs {
  public:
    // `make_injector` in each child. `same_books`: those of a faulted run are those of a clean one.
    Runs(std::function<std::unique_ptr<Injector>()> make_injector, bool same_books);

    // Without a fault: how many calls `others` or the program make. Nothing can be learned from a way that fails.
    std::uint64_t calls(const Way &way, bool others);
    // With it. False: it was not reached.
    bool run(const Way &way, const Fault &fault);

    [[nodiscard]] std::uint64_t reached() const { return reached_; }
    [[nodiscard]] std::uint64_t failures() const { return failures_; }

  private:
    const Report &one(const Way &way, const Fault &fault, std::string &trouble);

    std::function<std::unique_ptr<Injector>()> make_injector_;
    bool same_books_;
    TempDir folder_;
    Report *shared_;
    Report clean_;
    std::uint64_t reached_ = 0, failures_ = 0;
};

// How the books differ; empty: not where they must not.
std::string difference(const Way &way, const Report &clean, const Report &faulted);

}  // namespace fault
