// A bounded lock-free queue of records, from many producers to one consumer.
//
// A producer takes a place first and then fills it. So it reads its figures after the producers of earlier places took
// theirs: of two events about one figure, the later one has the newer figure. If the ring is full, put() fails.
//
// Source: D. Vyukov's bounded queue. Thread-safe. Never waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <type_traits>

namespace curb::shim::trace {

// kSize: a power of two.
template <class Record, std::size_t kSize>
class Ring {
    static_assert(std::is_trivially_copyable_v<Record> && (kSize & (kSize - 1)) == 0);

  public:
    constexpr Ring() noexcept = default;

    // Allocates the memory. Call it before any other function; later calls do nothing. The kernel maps pages at first
    // use. Never freed, as a producer may be about to use it. False if host memory is exhausted.
    bool make() noexcept {
        if (!places_) places_ = static_cast<Place *>(std::calloc(kSize, sizeof(Place)));
        return places_ != nullptr;
    }

    [[nodiscard]] bool made() const noexcept { return places_; }

    // Has `fill` write a record. Returns the number of its place; nullopt if the ring is full.
    template <class Fill>
    std::optional<std::uint64_t> put(Fill fill) noexcept {
        std::uint64_t number = next_.load(std::memory_order_acquire);
        for (;;) {
            Place &place = places_[number % kSize];
            const std::uint64_t turn = std::atomic_ref(place.turn).load(std::memory_order_acquire);
            if (turn == empty_in(number)) {
                if (!next_.compare_exchange_weak(number, number + 1, std::memory_order_acq_rel,
                                                 std::memory_order_acquire))
                    continue;
                fill(place.record);
                std::atomic_ref(place.turn).store(empty_in(number) + 1, std::memory_order_release);
                return number;
            }
            const std::uint64_t seen = number;
            number = next_.load(std::memory_order_acquire);
            if (number != seen) continue;  // another producer has taken the place meanwhile
            return std::nullopt;
        }
    }

    // Calls `use` with the oldest record. False if the ring is empty. Consumer thread only.
    template <class Use>
    bool take(Use use) {
        const std::uint64_t number = taken_.load(std::memory_order_relaxed);
        Place &place = places_[number % kSize];
        if (std::atomic_ref(place.turn).load(std::memory_order_acquire) != empty_in(number) + 1) return false;
        const Record record = place.record;
        std::atomic_ref(place.turn).store(empty_in(number) + 2, std::memory_order_release);
        taken_.store(number + 1, std::memory_order_relaxed);
        use(record);
        return true;
    }

    // Returns the number of the next record, the number of records taken so far, and of those that wait to be taken.
    [[nodiscard]] std::uint64_t end() const noexcept { return next_.load(std::memory_order_acquire); }
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t waiting() const noexcept {
        const std::uint64_t taken_before = taken();
        return end() - taken_before;
    }

    // Counts a record that was dropped because the ring was full.
    void drop() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  private:
    struct Place {
        std::uint64_t turn;  // even: empty, for the record of that lap; odd: full
        Record record;
    };
    static constexpr std::uint64_t empty_in(std::uint64_t number) noexcept { return number / kSize * 2; }

    Place *places_ = nullptr;
    alignas(64) std::atomic<std::uint64_t> next_{0};
    std::atomic<std::uint64_t> dropped_{0};
    alignas(64) std::atomic<std::uint64_t> taken_{0};  // only the consumer changes it
};

}  // namespace curb::shim::trace
