#include "pools/threshold.hpp"

namespace curb::shim::pools {

std::uint64_t Threshold::restored() noexcept {
    const std::scoped_lock lock(mutex_);
    return restored_;
}

bool Threshold::settles(std::uint64_t &value, std::uint64_t restored_before) noexcept {
    const std::scoped_lock lock(mutex_);
    if (lowered_ && program_) value = *program_;
    return (lowered_ && program_) || restored_ == restored_before;
}

bool Threshold::keep(std::uint64_t value) noexcept {
    const std::scoped_lock lock(mutex_);
    if (lowered_) program_ = value;
    return lowered_;
}

void Threshold::lower(CUmemoryPool pool) noexcept {
    {
        const std::scoped_lock lock(mutex_);
        if (lowered_) return;
        lowered_ = true;
        program_.reset();
    }
    // A thread that saw lowered_ == false may still be setting it in the driver. Wait, so that we query and set after
    // it.
    setting_.wait();
    std::uint64_t before = 0, none = 0;
    const bool has_value =
        ask_twice<&Driver::cuMemPoolGetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before) == CUDA_SUCCESS;
    {
        const std::scoped_lock lock(mutex_);
        if (has_value && !program_) program_ = before;
    }
    if (!has_value) return restore(pool);  // to the value that the program has set meanwhile, if any
    // From here on get() returns the program's own value.
    ask_twice<&Driver::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
}

void Threshold::restore(CUmemoryPool pool) noexcept {
    for (std::optional<std::uint64_t> set;;) {
        {
            const std::scoped_lock lock(mutex_);
            if (lowered_ && set == program_) {
                lowered_ = false;
                ++restored_;
            }
            if (!lowered_) return;
            set = program_;
        }
        std::uint64_t value = *set;
        ask_twice<&Driver::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    }
}

void Threshold::start_anew() noexcept {
    const std::scoped_lock lock(mutex_);
    lowered_ = false;
    program_.reset();
}

}  // namespace curb::shim::pools
