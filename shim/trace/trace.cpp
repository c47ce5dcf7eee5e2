#include "trace.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <memory>

#include "record.hpp"
#include "writer.hpp"

namespace curb::shim::trace {

using control::trace::What;

constinit std::atomic<bool> detail::recording{false};
constinit Ring<Record, kRecords> ring;

namespace {

int this_thread() noexcept {
    static thread_local int known = 0;
    if (known == 0) known = static_cast<int>(syscall(SYS_gettid));
    return known;
}

// Clamps: programs probe for memory with sizes larger than any device.
std::int64_t signed_bytes(Bytes bytes) noexcept {
    return static_cast<std::int64_t>(std::min<Bytes>(bytes, std::numeric_limits<std::int64_t>::max()));
}

// If the ring is full, the event is lost and counted.
void put(const Record &record, const Device *device) noexcept {
    if (!try_put(record, device)) ring.drop();
}

void put(Record record, const Device *device, const std::string &text) {
    auto owned = std::make_unique<std::string>(text);
    record.text = owned.get();
    if (try_put(record, device))
        static_cast<void>(owned.release());
    else
        ring.drop();
}

Record about(What what, Kind kind) noexcept {
    Record record;
    record.what = what;
    record.kind = kind;
    record.ns = detail::now_ns();
    return record;
}

Record request(What what, Kind kind, Bytes bytes, Met met) noexcept {
    Record record = about(what, kind);
    record.bytes = signed_bytes(bytes);
    record.why = met.why;
    record.limit = met.limit;
    return record;
}

Record books_record(Kind kind, std::int64_t change) noexcept {
    Record record = about(What::books, kind);
    record.charge = change;
    return record;
}

}  // namespace

bool try_put(Record record, const Device *device) noexcept {
    record.thread = this_thread();
    const auto number = ring.put([&](Record &place) {
        // Read after the place was taken, so that of two records the later one has the newer figures (ring.hpp).
        if (device) {
            record.gpu = static_cast<std::int16_t>(device->ordinal);
            if (tells_of_kind(record.what)) record.of_kind = device->ledger.of(record.kind);
            record.held = device->ledger.held();
        }
        place = record;
    });
    // Wake the writer each time a quarter of the ring has been filled; for less, its pause of 20 ms is short enough.
    if (number && *number % (kRecords / 4) == 0) writer::wake();
    return number.has_value();
}

std::uint64_t detail::now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

void detail::allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge,
                       bool reused) noexcept {
    Record record = about(What::alloc, kind);
    record.pointer = pointer;
    record.bytes = signed_bytes(bytes);
    record.charge = static_cast<std::int64_t>(charge);
    record.reused = reused;
    put(record, &device);
}

void detail::freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
                   bool reused) noexcept {
    Record record = about(What::free, kind);
    if (at != 0) record.ns = at;  // 0 if the trace began after moment()
    record.pointer = pointer;
    record.bytes = signed_bytes(bytes);
    record.charge = -static_cast<std::int64_t>(credit);
    record.reused = reused;
    put(record, &device);
}

void detail::freed_to_pool(std::uint64_t pointer) noexcept {
    Record record = about(What::free, Kind::pools);
    record.mark = Record::Mark::pool_free;
    record.pointer = pointer;
    put(record, nullptr);
}

void detail::books(const Device &device, Kind kind, std::int64_t change) noexcept {
    put(books_record(kind, change), &device);
}

bool detail::say_held(const Device &device, Kind kind) noexcept { return try_put(books_record(kind, 0), &device); }

void detail::allowance(const Device &device, Bytes bytes) noexcept {
    put(request(What::allowance, {}, 0, {{}, bytes}), &device);
}

void refused(const Device &device, Kind kind, Bytes bytes, Met met) noexcept {
    if (on()) put(request(What::refuse, kind, bytes, met), &device);
}

void waiting(const Device &device, Kind kind, Bytes bytes, Met met) noexcept {
    if (on()) put(request(What::wait, kind, bytes, met), &device);
}

void granted(const Device &device, Kind kind, Bytes bytes, std::uint64_t waited_ms) noexcept {
    if (!on()) return;
    Record record = request(What::granted, kind, bytes, {});
    record.duration_ns = waited_ms * 1'000'000;
    put(record, &device);
}

void step(const control::StepReport &step, const std::string &trigger) noexcept try {
    if (!on()) return;
    Record record = about(What::step, {});
    record.step = step.step;
    record.bytes = step.freed;
    record.duration_ns = static_cast<std::uint64_t>(step.milliseconds * 1e6);
    put(record, nullptr, trigger);
} catch (...) {
    // Out of host memory: the trace lacks this step.
}

void policy(const Device &device, std::optional<Bytes> cap, Bytes allowance, const std::string &text) noexcept try {
    if (!on()) return;
    Record record = request(What::policy, {}, 0, {{}, cap.value_or(policy::kUnbounded)});
    record.of_kind = allowance;
    put(record, &device, text);
} catch (...) {
    // As above.
}

void in_fork_child() noexcept {
    detail::recording.store(false, std::memory_order_relaxed);
    writer::in_fork_child();
}

}  // namespace curb::shim::trace
