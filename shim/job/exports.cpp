#include "job/exports.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "base/lifetime.hpp"
#include "policy/decisions/growth.hpp"
#include "policy/values/granule.hpp"

namespace curb::shim::job {
namespace {

using detail::end_of;
using detail::Read;

// The key of the memory in each place of this process's lists; 0: the place is free.
struct Places {
    using Keys = std::array<MemoryKey, kPieces>;
    std::mutex mutex;
    Keys exported{}, imported{};
    std::array<std::uint32_t, 64> blocks{};  // the places + 1 of blocks of pools; the oldest is used again
    std::size_t next_block = 0;
    std::array<unsigned, kPieces> opens{};  // of imported memory
    std::uint32_t serial = 0;

    static std::optional<std::uint32_t> find(const Keys &keys, MemoryKey key) noexcept {
        const auto found = std::find(keys.begin(), keys.end(), key);
        if (found == keys.end()) return std::nullopt;
        return static_cast<std::uint32_t>(found - keys.begin());
    }
};
Places &places() noexcept { return leaked<Places>(); }

bool has_joined() noexcept { return segment && has_slot(); }

constexpr MemoryKey kBlockOfPool = 1;  // the key of a pool's block in Places::exported

// Writes to a free place of a list of this process, and returns it. Does nothing if there is none: then importers do
// not find the memory, or it no longer counts once its maker has ended. The caller holds the lock.
std::optional<std::uint32_t> write(Pieces &pieces, Places::Keys &keys, MemoryKey key, std::uint64_t name,
                                   const Read &what) noexcept {
    const auto place = Places::find(keys, 0);
    if (!place) return std::nullopt;
    keys[*place] = key;
    Piece &piece = pieces.piece[*place];
    piece.memory.store(0);
    piece.name.store(name);
    piece.bytes.store(what.bytes);
    piece.gpu.store(what.gpu);
    piece.maker.store(what.maker);
    piece.place.store(what.place);
    piece.measured.store(0);
    piece.memory.store(what.memory);
    if (*place >= end_of(pieces)) pieces.end.store(*place + 1);
    return place;
}

// Frees a place of what this process has exported. The caller holds the lock.
void forget_export(std::uint32_t place) noexcept {
    segment->exported[mine].piece[place].memory.store(0);
    places().exported[place] = 0;
}

// True if a process has imported the memory.
bool is_imported(std::uint64_t memory) noexcept {
    bool found = false;
    for_each_living([&](std::uint32_t slot) {
        const Pieces &all = segment->imported[slot];
        for (std::uint32_t i = 0, end = end_of(all); i < end && !found; ++i)
            found = all.piece[i].memory.load() == memory;
    });
    return found;
}

// Calls `visit(piece, exported, lives)` for what processes have exported in this life of the job, those that have ended
// included: their memory may be imported as long as a descriptor of it is open.
template <class Visit>
void for_each_export(Visit visit) noexcept {
    for (std::uint32_t slot = 0, slots = std::min(segment->slots.load(), kSlots); slot < slots; ++slot) {
        const bool is_alive = lives(segment->owner[slot].load());
        if (segment->member[slot].life.load() != life) continue;
        const Pieces &all = segment->exported[slot];
        for (std::uint32_t i = 0, end = end_of(all); i < end; ++i) {
            Read one = detail::read(all.piece[i]);
            one.maker = slot;
            one.place = one.place == 0 ? i : one.place - 1;  // of a pool's block: the place of the pool
            if (one.memory != 0) visit(all.piece[i], one, is_alive);
        }
    }
}

void note_import(MemoryKey key, const Read &what) noexcept {
    Places &own = places();
    segment->imports.store(1);
    write(segment->imported[mine], own.imported, key, 0, what);
    if (const auto place = Places::find(own.imported, key)) own.opens[*place] = 1;
}

// Calls `visit(piece, bytes)` for memory on a GPU that this process has imported and that its maker has given up or is
// about to.
template <class Visit>
void for_each_own_left_behind(std::uint32_t gpu, bool measured, Visit visit) noexcept {
    Pieces &all = segment->imported[mine];
    for (std::uint32_t i = 0, end = end_of(all); i < end; ++i) {
        const Read one = detail::read(all.piece[i]);
        if (one.memory == 0 || one.gpu != gpu || one.measured != measured) continue;
        // The kernel marks a dying process before the driver frees its memory, so the figure may be first.
        const bool is_alive = one.maker < kSlots && lives(segment->owner[one.maker].load());
        if (!is_alive || !detail::has_its_maker(one)) visit(all.piece[i], one.bytes);
    }
}

}  // namespace

namespace detail {

Read read(const Piece &piece) noexcept {
    Read out{.memory = piece.memory.load(),
             .bytes = piece.bytes.load(),
             .gpu = piece.gpu.load(),
             .maker = piece.maker.load(),
             .place = piece.place.load(),
             .measured = piece.measured.load() != 0};
    if (piece.memory.load() != out.memory) out.memory = 0;
    return out;
}

bool has_its_maker(const Read &read) noexcept {
    if (read.maker >= kSlots || read.place >= kPieces) return false;
    const std::uint32_t owner = segment->owner[read.maker].load();
    if (!lives(owner) && !is_dying(owner)) return false;
    const Pieces &exports = segment->exported[read.maker];
    return segment->member[read.maker].number.load() == read.memory >> 32 && read.place < end_of(exports) &&
           exports.piece[read.place].memory.load() == read.memory;
}

}  // namespace detail

void exported(MemoryKey key, std::uint64_t name, GpuRow gpu, Bytes bytes) noexcept {
    if (!gpu) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    if (Places::find(own.exported, key)) return;
    const std::uint64_t number = segment->member[mine].number.load();
    write(segment->exported[mine], own.exported, key, name,
          {.memory = number << 32 | ++own.serial, .bytes = bytes, .gpu = *gpu});
}

void exported_from_pool(MemoryKey pool, std::uint64_t name, GpuRow gpu, Bytes bytes) noexcept {
    if (!gpu) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    Pieces &all = segment->exported[mine];
    const std::uint64_t number = segment->member[mine].number.load();
    auto place = Places::find(own.exported, pool);
    if (!place)
        place =
            write(all, own.exported, pool, kPool, {.memory = number << 32 | ++own.serial, .bytes = bytes, .gpu = *gpu});
    if (!place) return;
    Piece &whole = all.piece[*place];
    whole.bytes.store(bytes);
    std::uint32_t &block = own.blocks[own.next_block++ % own.blocks.size()];
    if (block != 0) forget_export(block - 1);
    const auto written = write(all, own.exported, kBlockOfPool, name,
                               {.memory = whole.memory.load(), .bytes = bytes, .gpu = *gpu, .place = *place + 1});
    block = written ? *written + 1 : 0;
}

void freed(MemoryKey key) noexcept {
    if (!has_joined()) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    const auto place = Places::find(own.exported, key);
    if (!place) return;
    const std::uint64_t memory = segment->exported[mine].piece[*place].memory.load();
    forget_export(*place);
    for (std::uint32_t &block : own.blocks)
        if (block != 0 && segment->exported[mine].piece[block - 1].memory.load() == memory)
            forget_export(std::exchange(block, 0) - 1);
}

namespace {

// Returns what a process of the job has exported under this name; `memory` is 0 if none has. Prefers living ones.
Read find_export(std::uint64_t name) noexcept {
    Read best;
    bool is_alive = false;
    for_each_export([&](const Piece &piece, const Read &one, bool alive) {
        if (piece.name.load() != name || (best.memory != 0 && !alive)) return;
        if (best.memory == 0 || !is_alive) best = one;
        is_alive = is_alive || alive;
    });
    return best;
}

}  // namespace

void imported(MemoryKey key, std::uint64_t name) noexcept {
    if (!has_joined()) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    if (const auto known = Places::find(own.imported, key)) {
        ++own.opens[*known];
        return;
    }
    if (const Read found = find_export(name); found.memory != 0) note_import(key, found);
}

bool imported_from_pool(MemoryKey pool, std::uint64_t name) noexcept {
    if (!has_joined()) return false;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    const auto known = Places::find(own.imported, pool);
    const Read found = find_export(name);
    if (found.memory != 0 && found.maker == mine) return false;  // this process is charged for it already
    if (!known) {
        if (found.memory != 0) note_import(pool, found);
        return Places::find(own.imported, pool).has_value();
    }
    ++own.opens[*known];
    Piece &piece = segment->imported[mine].piece[*known];
    if (found.memory == piece.memory.load()) piece.bytes.store(std::max(piece.bytes.load(), found.bytes));
    return true;
}

void imported_of_size(MemoryKey key, GpuRow gpu, Bytes bytes) noexcept {
    if (!gpu) return;
    const std::scoped_lock lock(places().mutex);
    Read best;
    int best_rank = 0;
    for_each_export([&](const Piece &piece, const Read &one, bool alive) {
        if (piece.name.load() != 0 || one.gpu != *gpu || one.bytes != bytes) return;
        const int rank = !alive ? 1 : one.maker == mine ? 2 : is_imported(one.memory) ? 3 : 4;
        if (rank > best_rank) best = one;
        best_rank = std::max(best_rank, rank);
    });
    // If it is its own, this process is charged for it already.
    if (best.memory != 0 && best.maker != mine) note_import(key, best);
}

bool closed(MemoryKey key) noexcept {
    if (!has_joined()) return false;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    const auto place = Places::find(own.imported, key);
    if (!place || --own.opens[*place] != 0) return false;
    Piece &piece = segment->imported[mine].piece[*place];
    piece.memory.store(0);
    own.imported[*place] = 0;
    return piece.measured.load() != 0;
}

void overhead_changed(GpuRow gpu, std::int64_t change) noexcept {
    if (!gpu || segment->imports.load() == 0) return;
    const bool counts = change > 0;
    const std::scoped_lock lock(places().mutex);
    const Bytes size = counts ? static_cast<Bytes>(change) : -static_cast<Bytes>(change);
    const auto fits = [&](Bytes bytes) { return std::max(size, bytes) - std::min(size, bytes) < policy::kGranule; };
    Bytes sum = 0;
    Piece *one = nullptr;
    for_each_own_left_behind(*gpu, !counts, [&](Piece &piece, Bytes bytes) {
        sum = policy::added(sum, bytes);
        if (fits(bytes)) one = &piece;
    });
    if (fits(sum))
        for_each_own_left_behind(*gpu, !counts, [&](Piece &piece, Bytes) { piece.measured.store(counts ? 1 : 0); });
    else if (one)
        one->measured.store(counts ? 1 : 0);
}

Bytes left_behind_by_any(std::uint32_t gpu) noexcept {
    Bytes out = 0;
    for_each_left_behind(gpu, [&](std::uint32_t, Bytes bytes) { out = policy::added(out, bytes); });
    return out;
}

}  // namespace curb::shim::job
