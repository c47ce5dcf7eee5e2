// How every call that frees memory by its pointer is made.
#pragma once

#include "activity.hpp"
#include "allocations.hpp"
#include "cache.hpp"
#include "graphs.hpp"
#include "pools.hpp"
#include "process_state.hpp"
#include "trace.hpp"
#include "wait_queue.hpp"

namespace curb::shim {

// Forget the pointer, call the driver, then credit the device that was charged. Pointers that are not known (of pools,
// imported, foreign, wrong) go to the driver, whose answer is returned.
// `later`: the memory comes back at a synchronisation of a stream, which curb does not see, so the device is asked.
template <class Call>
CUresult free_by_pointer(CUdeviceptr pointer, Call call, bool later = false) {
    if (!process::active()) return call();
    const auto allocation = allocations::forget(pointer);
    if (!allocation) {
        cache::give_up(pointer);  // freed a second time: the first is made good, so that the driver finds what it would
        trace::freed_to_pool(pointer);
        pools::FreedBlock block(pointer);
        const CUresult result = call();
        if (result == CUDA_SUCCESS) {
            block.freed();
            activity::note();
            graphs::freed(pointer);
            wait_queue::changed();  // of a pool, which a trim can now give back
        }
        return result;
    }
    const Ledger::Operation operation(&allocation->device->ledger);
    using allocations::Returned;
    const bool has_nvml = allocation->device->has_nvml.load(std::memory_order_relaxed);
    const Returned returned = !later ? Returned::now : has_nvml ? Returned::when_measured : Returned::at_sync;
    const std::uint64_t moment = trace::moment();
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
        const Bytes credit = allocations::credit(pointer, *allocation, returned);
        trace::freed(*allocation->device, allocation->kind, pointer, allocation->bytes, credit, moment);
        if (returned == Returned::when_measured)
            trace::books(*allocation->device, Kind::overhead, static_cast<std::int64_t>(credit));
    } else {
        allocations::remember(pointer, *allocation);
    }
    if (later) devices::measure_returned_soon(*allocation->device);
    return result;
}

}  // namespace curb::shim
