"""A small training run on the CUDA driver alone: what scripts/demo runs where there is no GPU. It knows nothing of curb.

Reads commands from stdin, like a notebook:  fit STEPS | memory | quit. The batch has 256 samples, or as many as its
argument says.
It uses memory as frameworks do. It keeps freed segments of cuMemAlloc (PyTorch's allocator) and takes activations from a
stream-ordered pool that keeps everything (cudaMallocAsync). Out of memory, it frees its cache and tries again, then halves
the micro-batch. The arithmetic is a linear regression on the host, sample by sample, so the loss is the same to the last
digit however the batch is cut.
"""

import ctypes
import sys
import time

MIB = 1 << 20
OUT_OF_MEMORY = 2
RELEASE_THRESHOLD = 4
BATCH, LAYERS, FEATURES = int(sys.argv[1]) if len(sys.argv) > 1 else 256, 8, 64
ACTIVATION = 2 * MIB  # of a sample in each layer: 4 GiB for a batch of 256
WORKSPACE = 256 * MIB
LAYER_TIME = 0.002  # seconds, as a GPU would take, so that the run can be watched

driver = ctypes.CDLL("libcuda.so.1")


class OutOfMemory(Exception):
    pass


def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status == OUT_OF_MEMORY:
        raise OutOfMemory
    if status != 0:
        sys.exit(f"{name}: {status}")


def allocated(name, size, *more):
    """Returns a pointer from cuMemAlloc or cuMemAllocAsync. Out of memory, frees the cache and tries again."""
    pointer = ctypes.c_uint64()
    try:
        call(name, ctypes.byref(pointer), ctypes.c_size_t(size), *more)
    except OutOfMemory:
        while cached:
            call("cuMemFree_v2", ctypes.c_uint64(cached.pop()))
        call(name, ctypes.byref(pointer), ctypes.c_size_t(size), *more)
    return pointer.value


cached = []  # segments of WORKSPACE bytes that are not in use
context, pool = ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
model = [allocated("cuMemAlloc_v2", 256 * MIB) for _ in range(4)]  # weights, gradients and two moments of Adam


def samples():
    """Returns inputs and targets, the same in every run."""
    out = []
    for number in range(BATCH):
        state, x = (number * 2654435761 + 1) % 2**32, []
        for _ in range(FEATURES):
            state = (state * 1664525 + 1013904223) % 2**32
            x.append((state >> 8) / (1 << 24) - 0.5)
        out.append((x, sum(value * (i % 7 - 3) for i, value in enumerate(x))))
    return out


SAMPLES = samples()
weights = [0.0] * FEATURES


def forward_backward(micro_batch):
    """Allocates each layer's activations of a micro-batch on the way forward, and frees them on the way back."""
    workspace = cached.pop() if cached else allocated("cuMemAlloc_v2", WORKSPACE)
    activations = []
    try:
        for _ in range(LAYERS):
            activations.append(allocated("cuMemAllocAsync", micro_batch * ACTIVATION, None))
            time.sleep(LAYER_TIME)
    finally:
        while activations:
            call("cuMemFreeAsync", ctypes.c_uint64(activations.pop()), None)
            time.sleep(LAYER_TIME)
        cached.append(workspace)
    call("cuStreamSynchronize", None)


def train_step(micro_batch):
    loss, gradient = 0.0, [0.0] * FEATURES
    for first in range(0, BATCH, micro_batch):
        forward_backward(micro_batch)
        for x, y in SAMPLES[first : first + micro_batch]:
            error = sum(weight * value for weight, value in zip(weights, x)) - y
            loss += error * error / BATCH
            gradient = [sum_ + 2 * error * value / BATCH for sum_, value in zip(gradient, x)]
    weights[:] = [weight - step for weight, step in zip(weights, gradient)]
    return loss


def fit(steps):
    micro_batch, refused, loss = BATCH, 0, 0.0
    for _ in range(steps):
        while micro_batch:
            try:
                loss = train_step(micro_batch)
                break
            except OutOfMemory:
                refused += 1
                micro_batch //= 2
    print(f"fitted steps={steps} micro_batch={micro_batch} out_of_memory={refused} loss={loss:.17g}")


print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "fit":
        fit(int(words[1]))
    elif words[0] == "memory":
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        print(f"memory free={free.value} total={total.value}")
    else:
        break
    sys.stdout.flush()
