// Threads that allocate and free memory of every family at random, on every device. Each frees what others have
// allocated, and lives for a moment until another takes its place.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
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
        unsigned blocks = 256;  // the most at once; on average there are half as many
        unsigned devices = 1;
        std::uint64_t seed = 1;
        std::vector<Trait> without{};
        bool movable = false;  // only memory with which a process can be suspended
        // Threads make the first context of each device at once, every second one by a green one.
        bool by_green = false;
        bool pools_end = true;  // threads that end destroy their pools, whose blocks others may have
        unsigned pause_us = 0;  // of a thread between two operations
    };

    // Initialises CUDA.
    explicit Traffic(How how);

    // Starts the threads, which work until so many operations are done or until stop().
    void work(std::uint64_t operations);
    // Waits until the threads have ended by themselves.
    void wait();
    void stop();
    // Ends open captures, and waits for all work of the devices. Only between wait() or stop() and work().
    void synchronize();
    // Frees every block, and empties the pools. Only between wait() or stop() and work().
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
    void make_first_context(int device);
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
