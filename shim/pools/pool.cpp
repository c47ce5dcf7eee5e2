#include "pools/pool.hpp"

#include <algorithm>
#include <utility>

#include "driver/driver.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim::pools {

Pool::Visit::Visit(Pool &pool) noexcept : visiting_(pool.visits_) {
    const std::scoped_lock lock(pool.mutex_);
    if (pool.live_) handle_ = pool.handle_;
}

void Pool::start(CUmemoryPool handle) noexcept {
    threshold.start_anew();
    threshold_changed();
    const std::scoped_lock lock(mutex_);
    live_ = true;
    handle_ = handle;
}

Bytes Pool::stop() noexcept {
    CUmemoryPool handle = nullptr;
    {
        const std::scoped_lock lock(mutex_);
        live_ = false;
        handle = handle_;
    }
    visits_.wait();
    if (!device) return 0;
    const RelaxedCapture relaxed;
    threshold.restore(handle);  // the driver may refuse to destroy it
    if (unread() != 0) trace::books(*device, kind, read(handle, Sets::raises));
    if (charged() == 0) return 0;
    trim(handle);
    return std::min(charged(), size_of(handle).value_or(charged()));
}

Bytes Pool::end() noexcept {
    const std::scoped_lock lock(mutex_);
    if (device) give_back(returned_);
    size_known_ = true;
    return charged_.exchange(0);
}

void Pool::give_back(std::uint64_t returned) noexcept {
    if (returned <= read_) return;
    device->ledger.give_back_ahead(returned - read_);
    read_ = returned;
}

void Pool::resume() noexcept {
    {
        const std::scoped_lock lock(mutex_);
        live_ = true;
    }
    if (!device) return;
    const RelaxedCapture relaxed;
    settle();  // it has been trimmed
}

std::optional<Bytes> Pool::size_of(CUmemoryPool handle) const noexcept {
    std::uint64_t value = 0;
    const auto ask = [&] {
        return kind == Kind::graphs
                   ? driver().cuDeviceGetGraphMemAttribute(device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                           &value)
                   : driver().cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    };
    return ask_twice(ask) == CUDA_SUCCESS ? std::optional<Bytes>(value) : std::nullopt;
}

CUresult Pool::trim(CUmemoryPool handle) const noexcept {
    if (kind != Kind::graphs) return ask_twice<&Driver::cuMemPoolTrimTo>(handle, 0);
    graphs_trimmed();
    return ask_twice<&Driver::cuDeviceGraphMemTrim>(device->ordinal);
}

std::optional<Bytes> Pool::reserved() noexcept {
    const Visit visit(*this);
    return visit ? size_of(visit.handle()) : std::nullopt;
}

Bytes Pool::raise() noexcept {
    const Visit visit(*this);
    return visit ? static_cast<Bytes>(read(visit.handle(), Sets::raises)) : 0;
}

void Pool::catch_up() noexcept {
    if (const Visit visit(*this); visit) trace::books(*device, kind, read(visit.handle(), Sets::raises));
}

void Pool::settle() noexcept {
    if (const Visit visit(*this); visit) trace::books(*device, kind, read(visit.handle(), Sets::exactly));
}

Bytes Pool::trim() noexcept {
    const Visit visit(*this);
    const Bytes before = visit ? size_of(visit.handle()).value_or(0) : 0;
    if (before == 0 || trim(visit.handle()) != CUDA_SUCCESS) return 0;
    return before - std::min(before, size_of(visit.handle()).value_or(before));
}

Pool::Mark Pool::mark() const noexcept {
    const std::scoped_lock lock(mutex_);
    return {readings_, returned_};
}

// A size that was read before another thread's allocation may be too low when it arrives here: that thread has found
// its bytes charged, and has given its reservation back. So only a reading during which no other one ended may lower
// the charge.
std::int64_t Pool::read(CUmemoryPool handle, Sets sets) noexcept {
    constexpr int kMostTries = 8;
    for (int tries = 1;; ++tries) {
        const Mark before = mark();
        const auto size = size_of(handle);
        const std::scoped_lock lock(mutex_);
        if (!size) {
            size_known_ = false;
            return 0;
        }
        const bool is_newest = readings_ == before.readings;
        if (sets == Sets::exactly && !is_newest && tries < kMostTries) continue;
        ++readings_;
        const Bytes old = charged_, now = sets == Sets::exactly && is_newest ? *size : std::max(*size, old);
        charged_ = now;
        if (now > old) device->ledger.charge(kind, now - old);
        if (now < old) device->ledger.credit(kind, old - now);
        give_back(before.returned);
        size_known_ = true;
        return static_cast<std::int64_t>(now - old);
    }
}

std::uint64_t Pool::unread() const noexcept {
    const std::uint64_t read = read_;  // first: it is never ahead of the other
    return returned_ - read;
}

void Pool::unit_returned() noexcept {
    ++returned_;
    if (live_) [[likely]]
        return;
    const std::scoped_lock lock(mutex_);
    give_back(returned_);
}

void Pool::ask_if_it_keeps() noexcept {
    std::uint64_t most = 0;
    const Visit visit(*this);
    keeps_ = kind == Kind::pools && visit &&
             ask_twice<&Driver::cuMemPoolGetAttribute>(visit.handle(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most) ==
                 CUDA_SUCCESS &&
             most >= charged();
}

void Pool::threshold_changed() noexcept {
    keeps_ = false;
    requests_ = 0;
}

}  // namespace curb::shim::pools
