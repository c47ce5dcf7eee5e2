// The frameworks that the step "frameworks" can ask, once.
//
// Adding one: a row here. `python` defines give_back(module), which is called with the module's object from sys.modules
// if that is imported. It returns True: something came back; False: nothing was cached; a text: why it was not asked.
// What it raises is caught and told. It may use `modules` (sys.modules), `devices` (ordinals of the devices that have a
// primary context: making another current would create one there) and `collect` (the policy lets it search all
// objects). A primary context is current. Nothing may be imported.
#pragma once

namespace curb::shim::release {

struct FrameworkRow {
    const char *name;    // in messages
    const char *module;  // in sys.modules
    const char *python;
};

inline constexpr FrameworkRow kFrameworks[] = {
    // empty_cache() serves every device, with expandable segments too. Pools of graphs and of MemPool that are in use
    // stay: replays need them.
    //
    // cudaMallocAsync caches nothing beyond the driver's pool, which has a step of its own, and its empty_cache()
    // breaks any capture in progress, in the relaxed mode too (PyTorch 2.11, H200: docs/results/driver.md).
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

    // The default pool, and the pool that the program has put in its place for all threads. The allocator of a thread
    // of its own cannot be seen from here; with `collect` every pool that is alive is found. The types are compared,
    // not asked: isinstance() would run the code of lazy objects.
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

    // Frees that Numba has put off, in the queues of every context it has. By the contexts' own objects: Numba's
    // current_context() would make one. The queue does nothing while the program holds it back (defer_cleanup).
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
