#include "exports.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "lifetime.hpp"
#include "policy/granule.hpp"
#include "policy/growth.hpp"

namespace curb::shim::job {
namespace {

using exports_detail::end_of;
using exports_detail::Read;

// The places of this process's lists, by what it knows the memory by.
struct Places {
    std::mutex mutex;
    std::map<MemoryKey, std::uint32_t> exported;
    struct Import {
        std::uint32_t place = 0;
        unsigned opens = 1;
    };
    std::map<MemoryKey, Import> imported;
    std::uint32_t serial = 0;
};
Places &places() noexcept { return leaked<Places>(); }

bool has_joined() noexcept { return segment != nullptr; }

// Writes to a free place of a list of this process. nullopt: there is none. The caller holds the lock.
std::optional<std::uint32_t> write(Pieces &pieces, std::uint64_t name, const Read &what) noexcept {
    const std::uint32_t end = end_of(pieces);
    std::uint32_t place = 0;
    while (place < end && pieces.piece[place].memory.load(std::memory_order_relaxed) != 0) ++place;
    if (place == kPieces) return std::nullopt;
    Piece &piece = pieces.piece[place];
    piece.memory.store(0);
    piece.name.store(name);
    piece.bytes.store(what.bytes);
    piece.gpu.store(what.gpu);
    piece.maker.store(what.maker);
    piece.place.store(what.place);
    piece.measured.store(0);
    piece.memory.store(what.memory);
    if (place == end) pieces.end.store(end + 1);
    return place;
}

// True if a process other than this one has imported the memory.
bool is_imported(std::uint64_t memory) noexcept {
    bool found = false;
    for_each_living([&](std::uint32_t slot) {
        const Pieces &all = segment->imported[slot];
        for (std::uint32_t i = 0, end = end_of(all); i < end && !found; ++i)
            found = all.piece[i].memory.load(std::memory_order_acquire) == memory;
    });
    return found;
}

// Calls `visit(piece, exported, lives)` for what processes have exported, those that have ended included: their
// memory may be imported as long as a descriptor of it is open.
template <class Visit>
void for_each_export(Visit visit) noexcept {
    for (std::uint32_t slot = 0, slots = std::min(segment->slots.load(), std::uint32_t{kSlots}); slot < slots; ++slot) {
        const bool is_alive = lives(segment->owner[slot].load(std::memory_order_acquire));
        const Pieces &all = segment->exported[slot];
        for (std::uint32_t i = 0, end = end_of(all); i < end; ++i) {
            Read one = exports_detail::read(all.piece[i]);
            one.maker = slot;
            one.place = i;
            if (one.memory != 0) visit(all.piece[i], one, is_alive);
        }
    }
}

void note_import(MemoryKey key, const Read &what) noexcept try {
    segment->imports.store(1);
    Places &own = places();
    const auto place = write(segment->imported[mine], 0, what);
    if (place) own.imported[key] = {.place = *place};
} catch (...) {
    // Out of host memory. It stays in the list until the process ends, and counts once its maker has ended.
}

// The memory that this process has imported on a GPU and its maker has given up, or is about to, with the places.
struct LeftBehind {
    Piece *piece;
    Bytes bytes;
};
std::vector<LeftBehind> own_left_behind(std::uint32_t gpu, bool measured) {
    std::vector<LeftBehind> out;
    Pieces &all = segment->imported[mine];
    for (std::uint32_t i = 0, end = end_of(all); i < end; ++i) {
        const Read one = exports_detail::read(all.piece[i]);
        if (one.memory == 0 || one.gpu != gpu || one.measured != measured) continue;
        // The kernel marks a dying process before the driver frees its memory, so the figure may be first.
        const bool is_alive = one.maker < kSlots && lives(segment->owner[one.maker].load(std::memory_order_acquire));
        if (!is_alive || !exports_detail::has_its_maker(one)) out.push_back({&all.piece[i], one.bytes});
    }
    return out;
}

}  // namespace

namespace exports_detail {

Read read(const Piece &piece) noexcept {
    Read out{.memory = piece.memory.load(std::memory_order_acquire),
             .bytes = piece.bytes.load(std::memory_order_acquire),
             .gpu = piece.gpu.load(std::memory_order_acquire),
             .maker = piece.maker.load(std::memory_order_acquire),
             .place = piece.place.load(std::memory_order_acquire),
             .measured = piece.measured.load(std::memory_order_acquire) != 0};
    if (piece.memory.load(std::memory_order_acquire) != out.memory) out.memory = 0;
    return out;
}

bool has_its_maker(const Read &read) noexcept {
    if (read.maker >= kSlots || read.place >= kPieces) return false;
    const std::uint32_t owner = segment->owner[read.maker].load(std::memory_order_acquire);
    if (!lives(owner) && !is_dying(owner)) return false;
    const Pieces &exports = segment->exported[read.maker];
    return segment->member[read.maker].number.load() == read.memory >> 32 && read.place < end_of(exports) &&
           exports.piece[read.place].memory.load() == read.memory;
}

}  // namespace exports_detail

void exported(MemoryKey key, std::uint64_t name, const Share &share, Bytes bytes) noexcept try {
    const auto gpu = share.row();
    if (!gpu) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    const auto [entry, added] = own.exported.try_emplace(key, 0);
    if (!added) return;
    const std::uint64_t number = segment->member[mine].number.load();
    const auto place =
        write(segment->exported[mine], name, {.memory = number << 32 | ++own.serial, .bytes = bytes, .gpu = *gpu});
    if (place)
        entry->second = *place;
    else
        own.exported.erase(entry);
} catch (...) {
    // Out of host memory: importers do not find it, and it no longer counts once this process has ended.
}

void freed(MemoryKey key) noexcept {
    if (!has_joined()) return;
    Places &own = places();
    const std::scoped_lock lock(own.mutex);
    const auto found = own.exported.find(key);
    if (found == own.exported.end()) return;
    segment->exported[mine].piece[found->second].memory.store(0);
    own.exported.erase(found);
}

void imported(MemoryKey key, std::uint64_t name) noexcept {
    if (!has_joined()) return;
    const std::scoped_lock lock(places().mutex);
    if (const auto known = places().imported.find(key); known != places().imported.end()) {
        ++known->second.opens;
        return;
    }
    Read best;
    bool is_alive = false;
    for_each_export([&](const Piece &piece, const Read &one, bool alive) {
        if (piece.name.load(std::memory_order_acquire) != name || (best.memory != 0 && !alive)) return;
        if (best.memory == 0 || !is_alive) best = one;
        is_alive = is_alive || alive;
    });
    if (best.memory != 0) note_import(key, best);
}

void imported_of_size(MemoryKey key, const Share &share, Bytes bytes) noexcept {
    const auto gpu = share.row();
    if (!gpu) return;
    const std::scoped_lock lock(places().mutex);
    Read best;
    int best_rank = 0;
    for_each_export([&](const Piece &piece, const Read &one, bool alive) {
        if (piece.name.load(std::memory_order_acquire) != 0 || one.gpu != *gpu || one.bytes != bytes) return;
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
    const auto found = own.imported.find(key);
    if (found == own.imported.end() || --found->second.opens != 0) return false;
    Piece &piece = segment->imported[mine].piece[found->second.place];
    piece.memory.store(0);
    own.imported.erase(found);
    return piece.measured.load() != 0;
}

void overhead_changed(const Share &share, std::int64_t change) noexcept try {
    const auto gpu = share.row();
    if (!gpu || segment->imports.load(std::memory_order_acquire) == 0) return;
    const bool counts = change > 0;
    const std::scoped_lock lock(places().mutex);
    const std::vector<LeftBehind> all = own_left_behind(*gpu, !counts);
    const Bytes size = counts ? static_cast<Bytes>(change) : -static_cast<Bytes>(change);
    const auto fits = [&](Bytes bytes) { return std::max(size, bytes) - std::min(size, bytes) < policy::kGranule; };
    Bytes sum = 0;
    for (const LeftBehind &one : all) sum = policy::added(sum, one.bytes);
    if (fits(sum)) {
        for (const LeftBehind &one : all) one.piece->measured.store(counts ? 1 : 0);
        return;
    }
    const auto one = std::find_if(all.begin(), all.end(), [&](const LeftBehind &each) { return fits(each.bytes); });
    if (one != all.end()) one->piece->measured.store(counts ? 1 : 0);
} catch (...) {
    // Out of host memory: such memory counts twice.
}

Bytes left_behind_by_any(std::uint32_t gpu) noexcept {
    Bytes out = 0;
    for_each_left_behind(gpu, [&](std::uint32_t, Bytes bytes) { out = policy::added(out, bytes); });
    return out;
}

}  // namespace curb::shim::job
