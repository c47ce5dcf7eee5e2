"""A CUDA program in a job: probe.py SIM fill|stay [MIB]

fill: allocates 256 MiB at a time until the driver refuses, at most MIB, and prints as JSON how much it got, whether it got a
context, and curb's variables. stay: keeps a GiB as unused memory of a pool, and ends when a release has returned it.
"""

import ctypes
import json
import os
import sys
import time

MIB = 1 << 20
RELEASE_THRESHOLD, RESERVED_MEM_CURRENT = 4, 5
for setting in ("CURB_SIM_MEMORY=16GiB", "CURB_SIM_GPUS=2"):  # for jobs that get no environment
    os.environ.setdefault(*setting.split("="))
driver = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
context, block, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()


def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status not in (0, 2):
        sys.exit(f"{name}: {status}")
    return status == 0


call("cuInit", 0)
has_context = call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0) and call("cuCtxSetCurrent", context)
if sys.argv[2] == "fill":
    most = int(sys.argv[3]) // 256 if sys.argv[3:] else 1000
    got = 0
    if has_context:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    while has_context and got < most and call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(256 * MIB)):
        got += 1
    shown = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("CURB_") and not name.startswith("CURB_SIM") or name == "LD_PRELOAD"
    }
    print(
        json.dumps(
            shown
            | {
                "mib": got * 256,
                "total": total.value // MIB,
                "context": has_context,
                "task": os.environ.get("SLURM_PROCID"),
            }
        ),
        flush=True,
    )
    if most < 1000:
        time.sleep(float(sys.argv[4]))
else:
    pool = ctypes.c_void_p()
    call("cuDeviceGetMemPool", ctypes.byref(pool), 0)
    call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
    call("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(1024 * MIB), None)
    call("cuMemFreeAsync", block, None)
    reserved = ctypes.c_uint64(1)
    print("ready", flush=True)
    while reserved.value:
        time.sleep(0.02)
        call("cuMemPoolGetAttribute", pool, RESERVED_MEM_CURRENT, ctypes.byref(reserved))
    print("gave back", flush=True)
    time.sleep(0.5)  # the client of a release waits for its answer
