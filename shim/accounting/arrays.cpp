#include "accounting/arrays.hpp"

#include "base/lifetime.hpp"
#include "trace/trace.hpp"

namespace curb::shim::arrays {
namespace {

Arrays &arrays() noexcept { return leaked<Arrays>(); }

}  // namespace

bool add(const void *handle, const Array &array) noexcept try {
    // The driver reused the handle, so the old array ended with its context, which another thread is destroying now.
    if (const auto gone = arrays().put(handle, array)) credit(handle, *gone, trace::moment());
    return true;
} catch (...) {
    return false;
}

Removal remove(const void *handle) noexcept { return arrays().remove(handle); }

void credit(const void *handle, const Array &array, std::uint64_t moment) noexcept {
    array.device->ledger.credit(Kind::arrays, array.bytes);
    trace::freed(*array.device, Kind::arrays, reinterpret_cast<std::uint64_t>(handle), array.least, array.bytes,
                 moment);
}

void drop_context(CUcontext context) noexcept {
    const std::uint64_t moment = trace::moment();
    arrays().take_all([=](const Array &array) { return array.context == context; },
                      [=](const void *handle, const Array &array) { credit(handle, array, moment); });
}

}  // namespace curb::shim::arrays
