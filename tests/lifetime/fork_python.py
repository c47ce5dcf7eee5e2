"""multiprocessing with children that use CUDA, or must not: fork_python.py COUNT"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys

cuda = ctypes.CDLL("libcuda.so.1")
NOT_INITIALIZED = 3


def use() -> int:
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    return (
        cuda.cuInit(0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        or cuda.cuCtxSetCurrent(context)
        or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2**20))
        or cuda.cuMemFree_v2(pointer)
    )


def work(number: int) -> tuple[int, int]:
    return number, use()


def main() -> None:
    count = int(sys.argv[1])
    for method, expected in (("forkserver", 0), ("spawn", 0), ("fork", NOT_INITIALIZED)):
        if method == "fork":
            assert use() == 0
        with multiprocessing.get_context(method).Pool(2) as pool:
            for number, result in pool.imap_unordered(work, range(2 * count)):
                assert result == expected, (method, number, result)
        processes = [multiprocessing.get_context(method).Process(target=work, args=(0,)) for _ in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0, (method, process.exitcode)
        print(method, count + 2)


if __name__ == "__main__":
    main()
