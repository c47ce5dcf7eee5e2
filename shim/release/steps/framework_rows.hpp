// The frameworks whose caches the step "frameworks" can free. Included once.
//
// To add a framework, add a row. `python` defines give_back(module), which gets the module from sys.modules if it is
// imported. It returns True if memory came back, False if nothing was cached, or a text why it did not try. Exceptions
// are caught and reported. It may use `modules` (sys.modules), `devices` (the ordinals of devices with a primary
// context; do not make others current, that would create one) and `collect` (the policy allows a search of all
// objects). A primary context is current. It must not import anything.
#pragma once

namespace curb::shim::release {

struct FrameworkRow {
    const char *name;    // in messages
    const char *module;  // in sys.modules
    const char *python;
};

inline constexpr FrameworkRow kFrameworks[] = {
    // empty_cache() covers all devices, also with expandable segments. It keeps the pools of graphs and MemPools that
    // are in use: replays need them.
    //
    // The cudaMallocAsync backend caches only in the driver's pool, which the step "pools" trims. Its empty_cache()
    // breaks any capture in progress, even in relaxed mode (PyTorch 2.11, H200: docs/results/driver.md).
    {"torch", "torch", R"python(
def give_back(torch):
    cuda = getattr(torch, 'cuda', None)
    if cuda is None or not cuda.is_initialized():
        return False
    backend = cuda.get_allocator_backend()
    if backend != 'native':
        return f'its allocator is {backend}, which caches nothing itself'
    reserved = lambda: sum(map(cuda.memory_reserved, devices))
    before = reserved()
    cuda.empty_cache()
    return reserved() < before
)python"},

    // The default pool, and the pool that the program has set for all threads. A thread's own allocator is invisible
    // here; `collect` finds every live pool. It compares types, because isinstance() would run the code of lazy
    // objects.
    {"cupy", "cupy", R"python(
def give_back(cupy):
    cuda = cupy.cuda
    pools = [cupy.get_default_memory_pool(), getattr(cuda.get_allocator(), '__self__', None)]
    if collect and 'gc' in modules:
        pools += [any for any in modules['gc'].get_objects() if issubclass(type(any), cuda.MemoryPool)]
    pools = {id(pool): pool for pool in pools if hasattr(pool, 'free_all_blocks')}.values()
    came_back = False
    for ordinal in devices:
        with cuda.Device(ordinal):
            for pool in pools:
                before = pool.total_bytes()
                pool.free_all_blocks()
                came_back |= pool.total_bytes() < before
    return came_back
)python"},

    // Frees that Numba has deferred, in the queues of all its contexts. Uses the context objects directly, because
    // Numba's current_context() would create one. The queue does nothing while the program defers it (defer_cleanup).
    {"numba", "numba.cuda.cudadrv.driver", R"python(
def give_back(numba):
    came_back = False
    known = getattr(getattr(numba, 'driver', None), 'devices', {})
    for device in list(known.values()):
        context = vars(device).get('primary_context')
        if context is None or device.id not in devices:
            continue
        context.push()
        try:
            for owner in context, context.memory_manager:
                queue = getattr(owner, 'deallocations', ())
                before = len(queue)
                if before:
                    queue.clear()
                came_back |= len(queue) < before
        finally:
            context.pop()
    return came_back
)python"},
};

}  // namespace curb::shim::release
