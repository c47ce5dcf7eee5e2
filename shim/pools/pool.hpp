// The record of one pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/waiting.hpp"
#include "device/devices.hpp"
#include "pools/places.hpp"
#include "pools/threshold.hpp"

namespace curb::shim::pools {

struct Pool {
    std::atomic<CUmemoryPool> handle{nullptr};  // null for the memory of a device's graphs, or if the record is unused
    Kind kind = Kind::pools;                    // or managed, or graphs
    Device *device = nullptr;                   // null if not charged: host memory, or another process's
    Pool *next_unused = nullptr;
    std::atomic<Bytes> charged{0};
    std::atomic<bool> live{true};
    std::atomic<bool> holding{
        false};           // it may have reserved memory, so reconcile reads it; set under the registry's lock
    BusyCount visitors;   // threads that query the driver about it
    BusyCount settling;   // threads that have changed `charged` but not yet the ledger
    BusyCount returning;  // threads that have changed `read_ahead` but not yet the ledger
    // Numbers of units that were reserved ahead (Ledger::ahead()): those of requests that have returned, and of these,
    // those that a reading of the pool's size covers.
    std::atomic<std::uint64_t> used_ahead{0}, read_ahead{0};
    // True if the pool kept its memory at a synchronisation when curb last asked: requests may take units ahead.
    std::atomic<bool> keeps{false};
    std::atomic<std::uint32_t> requests{0};  // since the program set the threshold; counted while `keeps` is false
    Places places;
    Threshold threshold;
    std::atomic<bool> shared{false};  // with another process
    std::size_t blocks = 0;           // managed blocks in use; under the lock, as the next two
    bool destroyed = false;           // but managed blocks are still in use
    Bytes kept_charged = 0;           // the charge for them
};

}  // namespace curb::shim::pools
