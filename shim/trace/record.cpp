#include "trace/record.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include "device/devices.hpp"

namespace curb::shim::trace {

namespace {

int this_thread() noexcept {
    static thread_local int known = 0;
    if (known == 0) known = static_cast<int>(syscall(SYS_gettid));
    return known;
}

}  // namespace

bool try_put(Record record, const Device *device) noexcept {
    record.thread = this_thread();
    const auto number = ring.put([&](Record &place) {
        // Read after the place was taken, so that of two records the later one has the newer figures (ring.hpp).
        if (device) {
            record.gpu = static_cast<std::int16_t>(device->ordinal);
            if (has_total_of_kind(record.what)) record.of_kind = device->ledger.of(record.kind);
            record.held = device->ledger.held();
        }
        place = record;
    });
    // Wake the writer each time a quarter of the ring has been filled; for less, its pause of 20 ms is short enough.
    if (number && *number % (kRecords / 4) == 0) writer_event.post();
    return number.has_value();
}

bool put_held(const Device &device, policy::Kind kind) noexcept { return try_put(books_event(kind, 0), &device); }

}  // namespace curb::shim::trace
