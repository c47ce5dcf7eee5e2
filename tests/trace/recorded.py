"""Generates traces of runs, and runs curb on them.

A training on each GPU: a context, code, blocks of a framework that come and go, a stream-ordered pool that grows,
allowance and cap, refusals, waits, a release on SIGUSR1, one when idle, and a nap.
"""

import collections
import json
import random
import subprocess
from pathlib import Path

MiB = 1 << 20
GiB = 1 << 30
ROUNDS = 4000
"""Rounds of the program, each of which makes some events."""


# As curb run --stacks records them, innermost first.
STACKS = [
    " < ".join(calls)
    for calls in (
        [
            "cudaMalloc+0x87 (libcudart.so.12)",
            "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEmP11CUstream_st+0x61f (libc10_cuda.so)",
            "libtorch_cuda.so+0x2cc1f47",
            "_ZN2at4_ops11convolution4callERKNS_6TensorE+0x2e (libtorch_cpu.so)",
            "_ZN5torch8autogradL18THPVariable_conv2dEP7_objectS2_S2_+0x1d3 (libtorch_python.so)",
            "_PyEval_EvalFrameDefault+0x5a3f (python3.11)",
        ],
        ["cudaMalloc+0x87 (libcudart.so.12)", "train+0x1f20", "__libc_start_main+0x84 (libc.so.6)"],
        ["cuMemAlloc_v2+0x11 (libcuda.so.1)", "0x7f0012345678"],
    )
]


class Trace:
    def __init__(self, file, command, gpus):
        self.file, self.pid, self.ns, self.counts = file, 4711, 0, collections.Counter()
        self.kinds = [collections.Counter() for _ in range(gpus)]
        self.live = [{} for _ in range(gpus)]
        self.next = 0x7F0000000000
        header = {"trace": 1, "version": "0.1.0", "unix_ns": 1_772_368_200_000_000_000, "command": command, "gpus": []}
        for gpu in range(gpus):
            header["gpus"].append(
                {"gpu": gpu, "uuid": f"GPU-0000000{gpu}-0000", "name": "NVIDIA H100 80GB HBM3", "total": 80 * GiB}
            )
        file.write("[\n")
        self.line({"ph": "M", "name": "curb", "ts": 0, "pid": 4711, "tid": 4711, "args": header})

    def line(self, members):
        self.file.write(json.dumps(members, separators=(",", ":")) + ",\n")

    def held(self, gpu):
        return sum(self.kinds[gpu].values())

    def event(self, name, gpu=0, thread=4711, duration=0, **members):
        members = {key: value for key, value in members.items() if value or key in ("kind", "why", "step")}
        ends = name == "step"
        head = '{"ph":"X","name":"%s"' % name if ends else '{"ph":"i","s":"t","name":"%s"' % name
        begin = self.ns - duration if ends else self.ns
        times = f',"ts":{begin // 1000}.{begin % 1000:03}' + (f',"dur":{duration // 1000}.{duration % 1000:03}' if duration else "")
        arguments = json.dumps({"gpu": gpu, **members}, separators=(",", ":"))
        self.file.write(f'{head}{times},"pid":{self.pid},"tid":{thread},"args":{arguments}}},\n')
        self.counts[name] += 1

    def alloc(self, gpu, size, kind="plain", charge=None, thread=4711):
        charge = -(-size // (2 * MiB)) * 2 * MiB if charge is None else charge
        self.kinds[gpu][kind] += charge
        pointer = self.next
        self.next += max(size, 512)
        self.live[gpu][pointer] = (size, charge, kind)
        self.event("alloc", gpu, thread, kind=kind, pointer=hex(pointer), bytes=size, charge=charge,
                   of_kind=self.kinds[gpu][kind], held=self.held(gpu))
        if kind == "plain" and size >= 64 * MiB:
            stack = STACKS[pointer // (2 * MiB) % len(STACKS)]
            self.event("stack", gpu, thread, pointer=hex(pointer), bytes=size, held=self.held(gpu), text=stack)
        return pointer

    def free(self, gpu, pointer, thread=4711):
        size, charge, kind = self.live[gpu].pop(pointer)
        charge = 0 if kind == "pools" else charge
        self.kinds[gpu][kind] -= charge
        self.event("free", gpu, thread, kind=kind, pointer=hex(pointer), bytes=size, charge=-charge,
                   of_kind=self.kinds[gpu][kind], held=self.held(gpu))

    def books(self, gpu, kind, amount):
        self.kinds[gpu][kind] += amount
        self.event("books", gpu, kind=kind, of_kind=self.kinds[gpu][kind], held=self.held(gpu))

    def stop(self, name, gpu, size, limit, why, thread=4711, duration=0):
        members = {} if name == "granted" else {"why": why}
        reserved = size if name == "granted" else 0
        held = self.held(gpu) + reserved
        self.event(name, gpu, thread, duration, kind="plain", bytes=size, held=held, limit=limit, **members)

    def counters(self, gpu):
        self.line({"ph": "C", "name": f"cuda:{gpu}", "ts": self.ns / 1000, "pid": self.pid, "args": dict(self.kinds[gpu])})


def run(trace, gpus, rng):
    cap, allowances, blocks = 8 * GiB, [2 * GiB] * gpus, [[] for _ in range(gpus)]
    pool_reserved, pool_live = [0] * gpus, [[] for _ in range(gpus)]
    for gpu in range(gpus):
        trace.event("policy", gpu, limit=cap, of_kind=allowances[gpu], held=0, text="job.json, rule 1 \"train\"")
        trace.ns += 150_000_000
        trace.alloc(gpu, 518 * MiB, "contexts", 518 * MiB)
        trace.books(gpu, "overhead", 92 * MiB)
    for i in range(ROUNDS):
        gpu, thread = i % gpus, 4711 + rng.randrange(3)
        trace.ns += rng.randrange(1_000, 2 * 240_000_000_000 // ROUNDS)
        wave = 0.62 + 0.3 * (i / ROUNDS) + 0.12 * ((i * 12 // ROUNDS) % 2)
        size = int(rng.choice([2, 20, 20, 64, 128, 256]) * MiB * rng.uniform(0.6, 1))
        if trace.held(gpu) + size > allowances[gpu] - 200 * MiB and allowances[gpu] < cap:
            if rng.random() < 0.5:
                trace.stop("wait", gpu, size, allowances[gpu], "allowance", thread)
                trace.ns += 900_000_000
                trace.stop("granted", gpu, size, allowances[gpu] + GiB, "allowance", thread, 900_000_000)
            allowances[gpu] = min(cap, allowances[gpu] + GiB)
            trace.event("allowance", gpu, limit=allowances[gpu], held=trace.held(gpu))
        if trace.held(gpu) + size > wave * cap and blocks[gpu]:
            trace.free(gpu, blocks[gpu].pop(rng.randrange(len(blocks[gpu]))), thread)
        elif rng.random() < 0.12:
            if pool_live[gpu] and rng.random() < 0.5:
                trace.free(gpu, pool_live[gpu].pop(0), thread)
            else:
                live = sum(trace.live[gpu][p][0] for p in pool_live[gpu])
                grow = max(0, live + size - pool_reserved[gpu])
                grow = -(-grow // (32 * MiB)) * 32 * MiB
                if trace.held(gpu) + grow < 0.95 * cap:
                    pool_reserved[gpu] += grow
                    pool_live[gpu].append(trace.alloc(gpu, size, "pools", grow, thread))
        elif trace.held(gpu) + size <= 0.97 * cap:
            blocks[gpu].append(trace.alloc(gpu, size, thread=thread))
        if i in (ROUNDS * 5 // 8, ROUNDS * 5 // 8 + 3, ROUNDS * 9 // 10):
            trace.stop("refuse", gpu, 3 * GiB, cap, "cap", thread)
        if i == ROUNDS * 3 // 4:
            trace.stop("wait", gpu, 2 * GiB, cap, "cap", thread)
            trace.ns += 3_000_000_000
            trace.stop("refuse", gpu, 2 * GiB, cap, "cap", thread)
            release(trace, gpu, blocks, pool_live, pool_reserved, "SIGUSR1")
        if i == ROUNDS * 19 // 20:
            release(trace, gpu, blocks, pool_live, pool_reserved, "idle")
            nap(trace)
        if i % 64 == 0:
            trace.counters(gpu)


def release(trace, gpu, blocks, pool_live, pool_reserved, trigger):
    live = sum(trace.live[gpu][p][0] for p in pool_live[gpu])
    back = pool_reserved[gpu] - -(-live // (32 * MiB)) * 32 * MiB
    trace.books(gpu, "pools", -back)
    pool_reserved[gpu] -= back
    trace.ns += 4_100_500
    trace.event("step", duration=4_100_500, step="pools", bytes=back, text=trigger)
    freed = 0
    for pointer in list(blocks[gpu])[::2]:
        freed += trace.live[gpu][pointer][1]
        trace.free(gpu, pointer)
        blocks[gpu].remove(pointer)
    trace.ns += 12_300_000
    trace.event("step", duration=12_300_000, step="frameworks", bytes=freed, text=trigger)


def nap(trace):
    held = sum(trace.held(gpu) for gpu in range(len(trace.kinds)))
    trace.ns += 10_000_000_000
    trace.event("out", bytes=held, text="nap")
    trace.ns += 20_000_000_000
    trace.event("back", duration=731_000_000, bytes=held)


def generated(folder, name="run.trace.json", seed=1, gpus=1, command="python3 train_bert.py --lr 1e-4"):
    """Writes a new trace. Returns its path, and the number of events of each name in it."""
    path = Path(folder) / name
    with open(path, "w", encoding="utf-8") as file:
        trace = Trace(file, command, gpus)
        run(trace, gpus, random.Random(seed))
    return path, trace.counts


def curb(binary, *words, status=0, **options):
    options.setdefault("env", {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TZ": "UTC"})
    done = subprocess.run(
        [binary, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **options
    )
    assert done.returncode == status, f"{words}: status {done.returncode}: {done.stderr or done.stdout}"
    return done
