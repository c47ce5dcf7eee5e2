#include "driver.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "faults.hpp"
#include "latency.hpp"
#include "sim.h"
#include "visible.hpp"

namespace curb::sim {

namespace {

constinit std::mutex model;
constinit Driver *root = nullptr;
// A forked child of an initialised process has no driver: the threads that held its locks are gone.
constinit std::atomic<bool> in_forked_child = false;
// The driver ends in its own exit handler (measured on an H200): the program's handlers, registered later, still reach
// it; destructors of older objects do not.
constinit std::atomic<bool> shut_down = false;
constinit thread_local Thread thread_state{};
constinit thread_local uint64_t call_bytes = 0;
constinit thread_local int calls_within = 0;  // on this thread, in progress: a host function may call the driver again
constinit std::atomic<uint64_t> last_thread_id = 0;

bool works_before_init(std::string_view name) {
    return name == "cuInit" || name == "cuDriverGetVersion" || name == "cuGetErrorString" || name == "cuGetErrorName" ||
           name == "cuGetProcAddress" || name == "cuGetProcAddress_v2" || name == "cuGetExportTable";
}

// How a call behaves while its process is locked, or moved out of its GPUs (measured on an H200:
// docs/results/driver.md).
enum class Meanwhile {
    waits,    // until the process is unlocked
    answers,  // at once
    fails,    // with CUDA_ERROR_OPERATING_SYSTEM if moved out
    crashes,  // with SIGSEGV if moved out
};
Meanwhile meanwhile(std::string_view name) {
    constexpr std::string_view kCrashing[] = {"cuStreamSynchronize", "cuCtxSynchronize", "cuStreamQuery",
                                              "cuEventQuery", "cuEventSynchronize"};
    const std::string_view base = name.substr(0, name.find('_'));
    if (std::find(std::begin(kCrashing), std::end(kCrashing), base) != std::end(kCrashing)) return Meanwhile::crashes;
    if (base == "cuMemGetInfo") return Meanwhile::fails;
    // A locked process can still ask for its own state, and unlock itself.
    const bool answers = works_before_init(name) || name.starts_with("cuCheckpointProcess") ||
                         base == "cuCtxGetCurrent" || base == "cuPointerGetAttribute";
    return answers ? Meanwhile::answers : Meanwhile::waits;
}

}  // namespace

void lock_model() { model.lock(); }
void unlock_model() { model.unlock(); }

Call::Call(Entry &entry, NullStream null_stream) : entry_(entry) {
    refusal = fault(entry);
    if (refusal) return;
    const bool early = works_before_init(entry.name);
    if (in_forked_child.load(std::memory_order_relaxed) && (!early || &entry == &entries::cuInit)) {
        refusal = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    if (shut_down.load(std::memory_order_relaxed) && !early) {
        refusal = CUDA_ERROR_DEINITIALIZED;
        return;
    }
    lock_model();
    const Meanwhile then = meanwhile(entry.name);
    if (root && then == Meanwhile::waits) {
        Machine &machine = *root->machine;
        unlock_model();  // the machine lives as long as the process
        if (calls_within++ == 0) machine.begin_call();
        counted_ = true;
        lock_model();
    } else if (root && then != Meanwhile::answers && root->machine->is_out()) {
        if (then == Meanwhile::crashes) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
        unlock_model();
        refusal = CUDA_ERROR_OPERATING_SYSTEM;
        return;
    }
    locked_ = true;
    if (!root && !early) refusal = CUDA_ERROR_NOT_INITIALIZED;
    thread_state.null_stream = null_stream;
    call_bytes = 0;
}

Call::~Call() {
    if (!locked_) return;
    const uint64_t bytes = call_bytes;
    unlock_model();
    if (!refusal) spend_time_of(entry_.name, bytes);
    if (counted_ && --calls_within == 0) root->machine->end_call();
    hold_return(entry_);
}

void this_call_is_about(uint64_t bytes) { call_bytes = bytes; }

Driver &driver() { return *root; }

Thread &this_thread() { return thread_state; }

uint64_t this_thread_id() {
    if (!thread_state.id) thread_state.id = ++last_thread_id;
    return thread_state.id;
}

Device *find_device(CUdevice device) {
    if (device < 0 || static_cast<size_t>(device) >= driver().devices.size()) throw CUDA_ERROR_INVALID_DEVICE;
    return &device_at(device);
}

Device &device_at(int index) { return driver().devices[static_cast<size_t>(index)]; }

Context *current_context() {
    const Thread &thread = this_thread();
    if (!thread.depth || !thread.stack[thread.depth - 1]) throw CUDA_ERROR_INVALID_CONTEXT;
    Context *context = find_context(thread.stack[thread.depth - 1]);
    return context ? context : throw CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

Context *find_context(CUcontext handle) {
    all<GreenContext>().each([&](const GreenContext &green) {
        if (green.context == handle) handle = device_at(green.device).primary;
    });
    return all<Context>().find(handle);
}

DeviceMemory memory_of(int device) { return driver().machine->memory(device_at(device).gpu); }

void charge(int device, Use use, uint64_t bytes) {
    Machine &machine = *driver().machine;
    const int gpu = device_at(device).gpu;
    if (machine.take(gpu, use, bytes)) return;
    if (!reclaim_from_pools(device) || !machine.take(gpu, use, bytes)) throw CUDA_ERROR_OUT_OF_MEMORY;
}

void credit(int device, Use use, uint64_t bytes) { driver().machine->give(device_at(device).gpu, use, bytes); }

void credit_shared(uint64_t id, int device, Use use, uint64_t bytes) {
    driver().machine->give_shared(id, device_at(device).gpu, use, bytes);
}

Allocation *find_allocation(CUdeviceptr start) {
    const auto found = driver().allocations.find(start);
    return found == driver().allocations.end() ? nullptr : &found->second;
}

Allocation *allocation_around(CUdeviceptr address) {
    auto &allocations = driver().allocations;
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    Allocation &before = std::prev(after)->second;
    return address - before.start < before.bytes ? &before : nullptr;
}

Allocation &add_allocation(Allocation allocation) {
    const CUdeviceptr start = allocation.start;
    return driver().allocations.insert_or_assign(start, allocation).first->second;
}

SIM_CU(2000, cuInit, (unsigned flags), (flags)) {
    if (flags) throw CUDA_ERROR_INVALID_VALUE;
    if (root) return;
    auto fresh = std::make_unique<Driver>();
    fresh->machine = Machine::open_from_environment();
    if (!fresh->machine) throw CUDA_ERROR_NO_DEVICE;
    if (!fresh->machine->join()) throw CUDA_ERROR_OPERATING_SYSTEM;
    for (const int gpu : visible_gpus(fresh->machine->device_count()))
        fresh->devices.push_back(
            {.index = static_cast<int>(fresh->devices.size()), .gpu = gpu, .primary = make_handle<CUcontext>()});
    if (fresh->devices.empty()) throw CUDA_ERROR_NO_DEVICE;
    root = fresh.release();
    make_default_pools();
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });
    std::atexit([] { shut_down = true; });
}

// Asks the machine about a device of this process. Returns 0 if there is no driver or no such device.
template <class Ask>
static uint64_t of_device(int device, Ask ask) {
    if (in_forked_child) return 0;
    const std::lock_guard lock(model);
    const bool there = root && device >= 0 && static_cast<size_t>(device) < root->devices.size();
    return there ? ask(*root->machine, device_at(device).gpu) : 0;
}

SIM_EXPORT uint64_t curb_sim_held(int device) {
    return of_device(device, [](const Machine &machine, int gpu) { return machine.own(gpu).held(); });
}

SIM_EXPORT uint64_t curb_sim_held_for(int device, const char *use) {
    return of_device(device, [=](const Machine &machine, int gpu) {
        const Holding own = machine.own(gpu);
        for (int one = 0; one < kUses; ++one)
            if (std::strcmp(use_name(static_cast<Use>(one)), use) == 0) return own.bytes[one];
        return uint64_t{0};
    });
}

SIM_EXPORT uint64_t curb_sim_high(int device) {
    return of_device(device, [](const Machine &machine, int gpu) { return machine.own_high(gpu); });
}

SIM_EXPORT uint64_t curb_sim_overlaps(int device) {
    return of_device(device, [](const Machine &machine, int gpu) { return machine.overlaps(gpu); });
}

SIM_EXPORT uint64_t curb_sim_calls(const char *name) {
    const Entry *entry = name ? find_entry(name) : nullptr;
    return entry ? entry->calls.load() : 0;
}

SIM_EXPORT void *curb_sim_machine(void) {
    if (in_forked_child) return nullptr;
    const std::lock_guard lock(model);
    return root ? root->machine.get() : nullptr;
}

}  // namespace curb::sim
