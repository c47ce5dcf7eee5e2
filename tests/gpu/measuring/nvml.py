"""Reads a device's figures from NVML by ctypes.

The package nvidia-ml-py is not used: a machine with PyTorch may lack it, and for each sample its wrapper makes two calls and
several objects, which takes longer than the driver's answer (about 20 us).
"""

from __future__ import annotations

import ctypes

_MOST_PROCESSES = 256
_UNKNOWN = 2**64 - 1


class NvmlError(RuntimeError):
    """NVML is missing, or a call of it failed. The text names the call."""


class _ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Device:
    """One GPU as NVML sees it, by nvidia-smi's index or by UUID. Thread-safe."""

    def __init__(self, which: int | str) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError(str(error)) from error
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        if isinstance(which, int):
            self.index = which
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(which), ctypes.byref(self._handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", which.encode(), ctypes.byref(self._handle))
            index = ctypes.c_uint()
            self._call("nvmlDeviceGetIndex", self._handle, ctypes.byref(index))
            self.index = index.value

    def held(self) -> dict[int, int]:
        """Returns the bytes that each process holds on the device, by pid."""
        count, processes = ctypes.c_uint(_MOST_PROCESSES), (_ProcessInfo * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(count), processes)
        return {p.pid: p.used for p in processes[: count.value] if p.used != _UNKNOWN}

    def used(self) -> int:
        """Returns the bytes that all processes use on the device. Only this figure includes managed memory."""
        return int(self._memory().used)

    def free(self) -> int:
        """Returns the bytes that no process uses."""
        return int(self._memory().free)

    def total(self) -> int:
        return int(self._memory().total)

    def name(self) -> str:
        return self._text("nvmlDeviceGetName", self._handle)

    def uuid(self) -> str:
        return self._text("nvmlDeviceGetUUID", self._handle)

    def driver_version(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def cuda_version(self) -> str:
        """Returns the newest version of CUDA that the driver supports."""
        version = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def _memory(self) -> _Memory:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return memory

    def _text(self, name: str, *before: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(96)
        self._call(name, *before, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def _call(self, name: str, *arguments: object) -> None:
        try:
            result = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NvmlError(f"this driver's NVML has no {name}") from error
        if result != 0:
            raise NvmlError(f"{name} returned {result}")
