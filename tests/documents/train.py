"""The train.py of the documents. Allocates from a stream-ordered pool, as frameworks do, and knows nothing of curb.

train.py [stay [NAME]]: allocates up to eight pieces of 256 MiB, and frees them into the pool. `stay`: then waits until stdin
ends. NAME: tells the process from those of other tests.
"""

import ctypes
import sys

MIB = 1 << 20
OUT_OF_MEMORY = 2
RELEASE_THRESHOLD = 4

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status not in (0, OUT_OF_MEMORY):
        sys.exit(f"{name}: {status}")
    return status == 0


context, pool, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuDeviceGetMemPool", ctypes.byref(pool), 0)
call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
blocks = []
while len(blocks) < 8 and call("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(256 * MIB), None):
    blocks.append(block.value)
for address in blocks:
    call("cuMemFreeAsync", ctypes.c_uint64(address), None)
print(f"trained with {len(blocks)} of 8 pieces", flush=True)
if sys.argv[1:2] == ["stay"]:
    sys.stdin.read()
