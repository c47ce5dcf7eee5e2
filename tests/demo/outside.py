"""Reads from outside a process what it holds of GPU 0: by the simulated machine's books, or by NVML."""

import ctypes
import json
import subprocess


class SimulatedMachine:
    name = "the simulated driver's own books (curb-sim-books)"

    def __init__(self, books, state):
        self.command = [str(books), str(state)]

    def held(self, pid):
        answer = subprocess.run(self.command, capture_output=True, text=True)
        if answer.returncode != 0:
            return 0  # the first program that uses the machine makes it
        for process in json.loads(answer.stdout)["devices"][0]["processes"]:
            if process["pid"] == pid:
                return process["bytes"]
        return 0


class Gpu:
    name = "NVML"

    class Process(ctypes.Structure):  # nvmlProcessInfo_t
        _fields_ = [
            ("pid", ctypes.c_uint),
            ("bytes", ctypes.c_ulonglong),
            ("gpu_instance", ctypes.c_uint),
            ("compute_instance", ctypes.c_uint),
        ]

    class Memory(ctypes.Structure):  # nvmlMemory_t
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self, uuid):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))
        self.used_before = self.memory().used

    def call(self, name, *arguments):
        code = getattr(self.nvml, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def memory(self):
        memory = self.Memory()
        self.call("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(memory))
        return memory

    def held(self, pid):
        processes = (self.Process * 128)()
        count = ctypes.c_uint(len(processes))
        self.call("nvmlDeviceGetComputeRunningProcesses_v3", self.device, ctypes.byref(count), processes)
        for process in processes[: count.value]:
            if process.pid == pid:
                return process.bytes
        if count.value == 0:
            return 0
        # In a container NVML has other PIDs than ours. Then use the growth of what is in use on the whole device.
        return max(0, self.memory().used - self.used_before)
