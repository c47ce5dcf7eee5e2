// The common body of all hooks that free memory by its pointer.
#pragma once

#include "accounting/allocations.hpp"
#include "accounting/graphs.hpp"
#include "cache/cache.hpp"
#include "device/activity.hpp"
#include "device/wait_queue.hpp"
#include "host/process_state.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {

// Frees a pointer without a record, which may be a pool's, a graph's, imported or invalid.
template <class Call>
CUresult free_unknown(CUdeviceptr pointer, Call call) {
    cache::free_kept(pointer);  // a double free: free the kept block, so that the driver reports it
    trace::freed_to_pool(pointer);
    pools::FreedBlock block(pointer);
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
        block.freed();
        activity::note();
        graphs::freed(pointer);
        wait_queue::changed();  // a trim of its pool can now return the memory
    }
    return result;
}

// Removes the pointer's record, calls the driver, then credits the device that was charged.
// `later`: the memory comes back when a stream is synchronised, which curb does not see, so curb measures the device.
template <class Call>
CUresult free_by_pointer(CUdeviceptr pointer, Call call, bool later = false) {
    if (!process::active()) return call();
    allocations::Removal allocation = allocations::remove(pointer);
    if (!allocation) return free_unknown(pointer, call);
    Device &device = *allocation->device;
    const Ledger::Operation operation(&device.ledger);
    using allocations::Returned;
    const bool has_nvml = device.has_nvml;
    const Returned returned = !later ? Returned::now : has_nvml ? Returned::when_measured : Returned::at_sync;
    const std::uint64_t moment = trace::moment();
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
        const allocations::Allocation freed = allocation.commit();
        const Bytes credit = allocations::credit(pointer, freed, returned);
        trace::freed(device, freed.kind, pointer, freed.bytes, credit, moment);
        if (returned == Returned::when_measured)
            trace::books(device, Kind::overhead, static_cast<std::int64_t>(credit));
    }
    if (later) devices::measure_returned_soon(device);
    return result;
}

}  // namespace curb::shim
