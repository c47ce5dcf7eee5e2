#include "accounting/arrays.hpp"

#include <mutex>
#include <unordered_map>

#include "base/lifetime.hpp"
#include "trace/trace.hpp"

namespace curb::shim::arrays {
namespace {

struct Registry {
    std::mutex mutex;
    std::unordered_map<const void *, Array> arrays;
};

Registry &registry() noexcept { return leaked<Registry>(); }

}  // namespace

bool add(const void *handle, const Array &array) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    const auto [entry, added] = registry().arrays.try_emplace(handle, array);
    if (added) return true;
    // The driver reused the handle, so the old array ended with its context, which another thread is destroying now.
    credit(handle, entry->second, trace::moment());
    entry->second = array;
    return true;
} catch (...) {
    return false;
}

std::optional<Array> forget(const void *handle) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto found = registry().arrays.find(handle);
    if (found == registry().arrays.end()) return std::nullopt;
    const Array array = found->second;
    registry().arrays.erase(found);
    return array;
}

void credit(const void *handle, const Array &array, std::uint64_t moment) noexcept {
    array.device->ledger.credit(Kind::arrays, array.bytes);
    trace::freed(*array.device, Kind::arrays, reinterpret_cast<std::uint64_t>(handle), array.least, array.bytes,
                 moment);
}

void drop_context(CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    std::erase_if(registry().arrays, [=](const auto &entry) {
        const Array &array = entry.second;
        if (array.context != context) return false;
        credit(entry.first, array, trace::moment());
        return true;
    });
}

}  // namespace curb::shim::arrays
