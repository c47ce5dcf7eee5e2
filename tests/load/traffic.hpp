// Threads that take and give memory back at random, of every family, on every device. Each gives back what others have
// taken, lives for a moment, and is made again.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "families.hpp"

namespace load {

using families::Block;
using families::kKiB, families::kMiB;
using families::Place;
using families::Trait;

class Traffic {
  public:
    struct How {
        unsigned threads = 8;
        unsigned blocks = 256;  // the most there are at once; half of them are there at the average
        unsigned devices = 1;
        std::uint64_t seed = 1;
        std::vector<Trait> without{};
        bool movable = false;   // only memory with which a process can be suspended
        bool pools_end = true;  // those of threads that end, with the blocks that others have of them
        unsigned pause_us = 0;  // of a thread between two operations
    };

    // Initialises CUDA.
    explicit Traffic(How how);

    // Threads work until so many more operations are done, or until stop().
    void work(std::uint64_t operations);
    // They end by themselves.
    void wait();
    void stop();
    // Between wait() or stop() and work(): ends open captures, and waits for all work of the devices.
    void synchronize();
    // The same times: gives every block back, and lets pools keep nothing.
    void give_everything_back();

    struct Counts {
        std::atomic<std::uint64_t> taken{0}, refused{0}, given{0}, lives{0}, wrong{0};

        [[nodiscard]] std::uint64_t operations() const { return taken + refused + given; }
    };
    [[nodiscard]] const Counts &counts() const { return counts_; }

  private:
    using Random = std::minstd_rand;
    struct Slot {
        std::mutex mutex;
        Block block;
    };

    void sit(std::uint64_t seed);
    void live(Random random);
    void step(Random &random, const std::vector<Place> &places);
    void give(const Block &block, unsigned random, const std::vector<Place> &places);
    void other(Random &random, const Place &place);
    void expect(CUresult result, const char *what, const char *family = "");
    const families::Family &drawn(unsigned random);
    std::vector<Place> own_places(bool pools);
    void leave(const std::vector<Place> &places);
    void end_open_captures();

    How how_;
    families::Calls calls_;
    std::vector<Place> shared_;  // by device: what all threads use
    std::vector<Slot> slots_;
    std::vector<std::thread> seats_;
    std::atomic<std::int64_t> left_{0};
    std::atomic<int> left_that_stay_{32};
    std::uint64_t rounds_ = 0;
    Counts counts_;
};

}  // namespace load
