#include "move/host_memory.hpp"

#include <iterator>
#include <numeric>

#include "base/guarded.hpp"
#include "host/clock.hpp"

namespace curb::shim::move {
namespace {

struct Keeping {
    std::vector<Slab> slabs;
    std::uint64_t since_ms = 0;
};
template <class Act>
auto with_kept(Act act) {
    return leaked<Guarded<Keeping>>().locked(act);
}

policy::Bytes bytes_in(const std::vector<Slab> &slabs) noexcept {
    return std::accumulate(slabs.begin(), slabs.end(), policy::Bytes{0},
                           [](policy::Bytes so_far, const Slab &slab) { return so_far + slab.bytes(); });
}

// Moves slabs from the end of one list to that of the other, while `goes_on`.
template <class GoesOn>
void transfer(std::vector<Slab> &from, std::vector<Slab> &to, GoesOn goes_on) {
    while (!from.empty() && goes_on()) {
        to.push_back(std::move(from.back()));
        from.pop_back();
    }
}

}  // namespace

HostMemory::HostMemory(std::size_t chunks) {
    const std::size_t count = (chunks + Slab::kChunks - 1) / Slab::kChunks;
    slabs_.reserve(count);
    with_kept([&](Keeping &kept) { transfer(kept.slabs, slabs_, [&] { return slabs_.size() < count; }); });
    while (slabs_.size() < count) {
        if (slabs_.emplace_back()) continue;
        slabs_.clear();
        return;
    }
    for (std::size_t i = 0; i < count; ++i) slabs_[i].note_filled(std::min(Slab::kChunks, chunks - i * Slab::kChunks));
}

void HostMemory::keep() &&noexcept try {
    with_kept([&](Keeping &kept) {
        transfer(slabs_, kept.slabs, [] { return true; });
        kept.since_ms = now_ms();
    });
} catch (...) {
    slabs_.clear();
}

Kept kept() noexcept {
    return with_kept([](const Keeping &kept) { return Kept{bytes_in(kept.slabs), kept.since_ms}; });
}

void keep_at_most(policy::Bytes bytes) {
    std::vector<Slab> rest;  // unmapped without the lock, for unmapping takes long
    with_kept([&](Keeping &kept) { transfer(kept.slabs, rest, [&] { return bytes_in(kept.slabs) > bytes; }); });
}

}  // namespace curb::shim::move
