// Decides how memory leaves a GPU for host memory by curb's own copy, and when the driver moves the rest. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"

namespace curb::policy {

// ---- host memory ----

// A process that naps leaves this much host memory free.
constexpr Bytes kept_free_of_host(Bytes total) noexcept { return total / 10; }
// True if so little host memory is left that a process that naps should give back what it took.
constexpr bool is_short_of_host(Bytes available, Bytes total) noexcept { return available < total / 20; }
// True if so little host memory is left that a move copies no more: less than a nap leaves, and more than would make
// the process come back at once.
constexpr bool ends_copying(Bytes available, Bytes total) noexcept { return available < total / 40 * 3; }
// Returns the host memory that a nap may take. `most`: what the policy allows it.
constexpr Bytes host_budget(Bytes available, Bytes total, Bytes most) noexcept {
    return std::min(most, available - std::min(available, kept_free_of_host(total)));
}

// Returns what policy and ceiling allow a nap.
[[nodiscard]] inline Bytes most_of_host(Bytes total, const std::optional<Size> &policy,
                                        const std::optional<Size> &ceiling) noexcept {
    const auto on_host = [=](const std::optional<Size> &size) { return size ? size->on(total) : total; };
    return std::min({total, on_host(policy), on_host(ceiling)});
}

// Returns how long a process that has come back keeps the host memory that its nap has filled. `pause`: the shortest
// time without use after which it may leave again. Its next nap then leaves three times as fast, because the kernel
// need not give it pages; where naps are rare, the memory is of more use to others.
constexpr Duration kept_for(Duration pause) noexcept {
    return pause <= std::chrono::minutes(5) ? pause + std::chrono::minutes(1) : Duration{0};
}
// Returns how much of so much host memory a process may keep for its next nap: no more than the policy allows a nap
// (`most`), and so much that a tenth of the host's memory is free.
constexpr Bytes kept_of_host(Bytes kept, Bytes available, Bytes total, Bytes most) noexcept {
    const Bytes missing = kept_free_of_host(total) - std::min(available, kept_free_of_host(total));
    return std::min(most, kept - std::min(kept, missing));
}

// ---- what leaves ----

// Pages of zeros are found in this size, and are not copied.
inline constexpr Bytes kZeroPage = 64 * KiB;
// One copy, and one huge page of host memory.
inline constexpr Bytes kChunk = 2 * MiB;

struct Leaver {
    Bytes bytes = 0;
    Bytes copied = 0;  // without its pages of zeros
};
// Returns the blocks that leave, by index, in the order in which they do: first those that free the most for the host
// memory that they take. A block that does not fit into the rest of the budget stays; a smaller one may still leave.
std::vector<std::size_t> leaving(const std::vector<Leaver> &blocks, Bytes budget);

// A part of a block.
struct Part {
    std::size_t block = 0;
    Bytes offset = 0, bytes = 0;
    friend bool operator==(const Part &, const Part &) = default;
};
// Returns the runs of pages of a block that are zero, or those that are not, in the order of their addresses. `zero`:
// whether each page of the block is. The last page may be a part of one.
std::vector<Part> runs(std::size_t block, Bytes bytes, const std::vector<bool> &zero, bool of_zeros);
// Cuts parts, in their order, into chunks of exactly kChunk: chunk i begins at i * kChunk of the host memory. The last
// one may be smaller.
std::vector<std::vector<Part>> chunks(const std::vector<Part> &parts);
// Of so many blocks, returns the number of those, from the first one on, whose parts are all in the first `copied`
// chunks, and removes all parts of the others.
std::size_t cut_to_whole_blocks(std::vector<std::vector<Part>> &chunks, std::size_t copied, std::size_t blocks);

// ---- how ----

// Returns how many threads copy where the process may run on so many processors, and its cgroup has so much of their
// time (`quota`): more threads would stop in the middle of each period of the quota. Four fill the bus (one H200: 8
// threads 48 GiB/s, 4 threads 47); the kernel gives fresh pages to eight faster.
constexpr unsigned copying_threads(unsigned processors, std::optional<double> quota) noexcept {
    constexpr unsigned kMost = 8;
    const double time = std::clamp(quota.value_or(kMost), 0.0, 1.0 * kMost);
    const auto whole = static_cast<unsigned>(time);
    return std::clamp(std::min(processors, whole + (time > whole ? 1 : 0)), 1U, kMost);
}

// ---- deep ----

// True if the driver should move the rest of a process that curb has moved out. `out_for`: how long it has been out.
// `deep`: the policy's. `frees_too_little`: curb moved nothing, or another process still waits for memory.
constexpr bool goes_deep(Duration out_for, Duration deep, bool frees_too_little) noexcept {
    return deep != Duration::max() && (frees_too_little || out_for >= deep);
}

}  // namespace curb::policy
