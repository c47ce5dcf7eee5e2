"""The demo: an ordinary training program, capped and made to give memory back from outside.

    demo.py --build BUILD_DIRECTORY [--gpu UUID] --directory SCRATCH

Reads every figure from outside the process. Exits with 1 if a figure is wrong.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import outside

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
GIB = 1 << 30
CAP = 4 * GIB
LOWER_CAP = 3 * GIB
STEPS = 5
PATIENCE = 20.0  # seconds; nothing here takes one


def size(count):
    return f"{count / MIB:,.0f} MiB"


class Program:
    """A training program that takes commands from us, and the most that it held so far."""

    def __init__(self, command, machine, environment=None):
        self.machine = machine
        self.peak = 0
        self.stderr = tempfile.NamedTemporaryFile("w+", dir=ARGUMENTS.directory, prefix="stderr-", delete=False)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.stderr}
        self.process = subprocess.Popen(command, **pipes, text=True, env={**os.environ, **(environment or {})})
        self.pid = self.process.pid
        self.answer("ready")
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        while not self.ended.wait(0.005):
            self.held()

    def held(self):
        held = self.machine.held(self.pid)
        self.peak = max(self.peak, held)
        return held

    def answer(self, word):
        """Returns the program's next line, which must begin with `word`, as a dictionary."""
        line = self.process.stdout.readline()
        if not line.startswith(word):
            self.process.kill()
            self.stderr.seek(0)
            sys.exit(f"demo: the training program said {line!r} instead of {word!r}\n{self.stderr.read()}")
        return dict(pair.split("=") for pair in line.split()[1:])

    def ask(self, command, word):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer(word)

    def fit(self):
        return self.ask(f"fit {STEPS}", "fitted")

    def total(self):
        return int(self.ask("memory", "memory")["total"])

    def wait_until(self, condition):
        """Returns whether the condition became true, and after how many ms."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > PATIENCE:
                return False, None
            time.sleep(0.002)
        return True, (time.monotonic() - start) * 1000

    def messages(self):
        self.stderr.flush()
        return [line for line in Path(self.stderr.name).read_text().splitlines() if line.startswith("curb[")]

    def end(self):
        self.ended.set()
        self.watcher.join()
        self.process.communicate("quit\n")
        self.stderr.close()
        return self.process.returncode


TABLE = []
FAILED = []


def step(title):
    print(f"\n{title}", flush=True)


def say(text):
    print(f"   {text}", flush=True)


def must(condition, text):
    print(f"   {'ok    ' if condition else 'WRONG '} {text}", flush=True)
    if not condition:
        FAILED.append(text)


def times(count):
    return "once" if int(count) == 1 else f"{count} times"


def row(what, held):
    TABLE.append((what, held))


def same_loss(one, other):
    if ARGUMENTS.gpu:
        # A GPU adds up in another order when the batch is cut in other pieces.
        return abs(float(one) - float(other)) <= 1e-2 * abs(float(other))
    return one == other


def write_policy(path, cap):
    # By rename, as editors do.
    draft = path.with_suffix(".new")
    log = {"level": "info", "file": str(ARGUMENTS.directory / "curb-%p.log")}
    draft.write_text(json.dumps({"version": 1, "gpu": {"*": {"cap": f"{cap // GIB}GiB"}}, "log": log}))
    draft.rename(path)


def last_release(program):
    """Returns the last message of the log about a release; empty if there is none."""
    log = ARGUMENTS.directory / f"curb-{program.pid}.log"
    lines = [line for line in log.read_text().splitlines() if "released " in line] if log.exists() else []
    return lines[-1].split(": ", 1)[1] if lines else ""


def uncapped(machine, trainer, environment):
    step("1. The training program alone, without curb")
    say(f"$ {ARGUMENTS.typed}")
    program = Program(trainer, machine, environment)
    result = program.fit()
    held = program.held()
    row("uncapped", held)
    say(f"{STEPS} steps, the whole batch at once; loss {result['loss']}")
    must(held > CAP, f"it holds {size(held)}")
    must(program.end() == 0, "it ends well")
    return result["loss"]


def capped(machine, curb, sim, trainer, loss):
    step("2. The same program under a cap, and out-of-memory errors that it survives")
    say(f"$ curb run --cap 4GiB {'--sim ' if sim else ''}-- {ARGUMENTS.typed}")
    program = Program([curb, "run", "--cap", "4GiB", *sim, "--", *trainer], machine)
    must(program.total() == CAP, f"the program sees a GPU of {size(program.total())}")
    result = program.fit()
    row("capped at 4 GiB, at the most", program.peak)
    must(int(result["out_of_memory"]) > 0, f"it was refused memory {times(result['out_of_memory'])}, and went on")
    for message in program.messages()[:1]:
        say(f"       {message}")
    say(f"it went on with a {int(result['micro_batch'])}-sample micro-batch, as frameworks' users do")
    must(program.peak <= CAP, f"it never held more than {size(program.peak)} of {size(CAP)}")
    must(same_loss(result["loss"], loss), f"its loss is the same: {result['loss']}")
    must(program.end() == 0, "it ends well")


def released(program):
    step("4. The program is idle, like a notebook after its last cell; SIGUSR1 gives the cache back")
    before = program.held()
    row("idle after the last step", before)
    say(f"idle, it holds {size(before)}")
    say(f"$ kill -USR1 {program.pid}")
    program.process.send_signal(signal.SIGUSR1)
    came, after_ms = program.wait_until(lambda: program.held() <= before - GIB)
    time_taken = f" within {after_ms:.0f} ms" if came else ""
    # The release may still be running: it ends with its line in the log.
    program.wait_until(lambda: last_release(program))
    after = program.held()
    row("after SIGUSR1", after)
    must(came, f"it holds {size(after)}: {size(before - after)} came back{time_taken}")
    say(f"       curb's log: {last_release(program)}")
    if ARGUMENTS.gpu:
        say("what stays: context, weights, optimizer state, and segments with a live tensor in them")
    else:
        say("what stays: context, weights, and what the program's own cudaMalloc-style cache keeps, 256 MiB: curb can")
        say("ask PyTorch and CuPy for such memory, through Python, but not a program that has neither")


def edited(program, policy):
    step("5. The cap is edited while the program runs")
    again = program.fit()
    before = program.held()
    say(f"it trains on and holds {size(before)} again; loss {again['loss']}")
    say(f"$ $EDITOR {policy.name}      # \"cap\": \"4GiB\" -> \"3GiB\"")
    write_policy(policy, LOWER_CAP)
    came, after_ms = program.wait_until(lambda: program.held() <= LOWER_CAP)
    time_taken = f", {after_ms:.0f} ms after the file was written" if came else ""
    row("cap lowered to 3 GiB, idle", program.held())
    must(came, f"without a signal it gave back what it cached: {size(program.held())}{time_taken}")
    must(program.total() == LOWER_CAP, f"the program sees a GPU of {size(program.total())}")
    program.peak = 0
    result = program.fit()
    row("capped at 3 GiB, at the most", program.peak)
    must(int(result["out_of_memory"]) > 0, f"new memory beyond it is refused: {times(result['out_of_memory'])}")
    say(f"it went on with a {int(result['micro_batch'])}-sample micro-batch; loss {result['loss']}")
    must(program.peak <= LOWER_CAP, f"it never held more than {size(program.peak)} of {size(LOWER_CAP)}")


def turns(build, curb):
    step("6. Two programs that do not fit together take turns, on a simulated GPU of 4 GiB")
    state = ARGUMENTS.directory / "small-machine"
    environment = {"CURB_SIM_STATE": str(state), "CURB_SIM_MEMORY": "4GiB", "CUDA_VISIBLE_DEVICES": "0"}
    machine = outside.SimulatedMachine(build / "bin" / "curb-sim-books", state)
    policy = ARGUMENTS.directory / "turns.json"
    suspend, growth = {"when_others_wait": "200ms"}, {"wait": "60s"}
    policy.write_text(json.dumps({"version": 1, "suspend": suspend, "gpu": {"*": {"growth": growth}}}))
    say(f"{policy.name}: {policy.read_text()}")
    say(f"$ curb run --policy {policy.name} --sim -- python3 tests/demo/train_simulated.py 64      # twice")
    command = [curb, "run", "--policy", str(policy), "--sim", "--", sys.executable, str(HERE / "train_simulated.py"), "64"]
    first = Program(command, machine, environment)
    losses = [first.fit()["loss"]]
    needs = first.held()
    must(2 * needs > 4 * GIB, f"the first trains and then holds {size(needs)}; it rests, like a notebook")
    second = Program(command, machine, environment)
    results = [second.fit()]
    must(first.held() < GIB, f"the second needs as much: the first left the GPU for it, and holds {size(first.held())}")
    results.append(first.fit())
    must(second.held() < GIB, f"the first trains on, and the second, which rests, holds {size(second.held())}")
    results.append(second.fit())
    losses += [result["loss"] for result in results]
    must(all(result["out_of_memory"] == "0" for result in results), "neither saw an out-of-memory error")
    must(losses[0] == losses[1] and losses[2] == losses[3], f"their losses are the same: {losses[0]}, then {losses[2]}")
    must(first.end() == 0 and second.end() == 0, "both end well")


def busy_turns(build, curb):
    step("7. Two programs that never idle and do not fit share it in turns of half a second")
    state = ARGUMENTS.directory / "shared-machine"
    environment = {"CURB_SIM_STATE": str(state), "CURB_SIM_MEMORY": "8GiB", "CUDA_VISIBLE_DEVICES": "0"}
    machine = outside.SimulatedMachine(build / "bin" / "curb-sim-books", state)
    program = HERE.parent / "command" / "busy_program.py"
    say("$ curb run --turn 500ms --sim -- python3 tests/command/busy_program.py      # twice; each takes 4500 MiB of 8 GiB")
    command = [curb, "run", "--turn", "500ms", "--sim", "--", sys.executable, str(program)]
    both = [Program(command, machine, environment) for _ in range(2)]
    for one in both:
        one.process.stdin.write("hold 4500\nwork 5\n")
        one.process.stdin.flush()
    for one in both:
        must(one.answer("held") is not None, "it has all its memory, without an error")
    shares = [float(one.answer("worked")["busy"]) for one in both]
    must(min(shares) > 1, f"in 5 s they worked for {shares[0]:.1f} s and {shares[1]:.1f} s, and every word was right")
    must(all(one.end() == 0 for one in both), "both end well")


def main():
    build = ARGUMENTS.build
    sim = [] if ARGUMENTS.gpu else ["--sim"]
    environment = {}
    if ARGUMENTS.gpu:
        machine = outside.Gpu(ARGUMENTS.gpu)
        os.environ["CUDA_VISIBLE_DEVICES"] = ARGUMENTS.gpu
    else:
        state = ARGUMENTS.directory / "machine"
        machine = outside.SimulatedMachine(build / "bin" / "curb-sim-books", state)
        os.environ["CURB_SIM_STATE"] = str(state)
        os.environ["CURB_SIM_MEMORY"] = "80GiB"
        environment["LD_LIBRARY_PATH"] = str(build / "sim")
    trainer = [sys.executable, str(HERE / ARGUMENTS.trainer)]
    print(f"Memory is read from outside the process: {machine.name}.")
    curb = str(build / "bin" / "curb")
    loss = uncapped(machine, trainer, environment)
    capped(machine, curb, sim, trainer, loss)

    step("3. Again, with a policy file that can be edited")
    policy = ARGUMENTS.directory / "job.json"
    write_policy(policy, CAP)
    say(f"$ curb run --policy {policy.name} {'--sim ' if sim else ''}-- {ARGUMENTS.typed}")
    program = Program([curb, "run", "--policy", str(policy), *sim, "--", *trainer], machine)
    result = program.fit()
    must(same_loss(result["loss"], loss), f"it trains as before; loss {result['loss']}")
    must(program.peak <= CAP, f"it never held more than {size(program.peak)}")
    released(program)
    edited(program, policy)
    must(program.end() == 0, "it ends well")
    turns(build, curb)
    busy_turns(build, curb)

    width = max(len(what) for what, _ in TABLE)
    print("\nHeld by the process, read from outside")
    for what, held in TABLE:
        print(f"   {what:<{width}}  {size(held):>10}")
    if FAILED:
        print(f"\n{len(FAILED)} of the demo's figures are not what they must be:")
        for text in FAILED:
            print(f"   {text}")
        return 1
    place = f"{ARGUMENTS.gpu}, and on a simulated one" if ARGUMENTS.gpu else "a simulated GPU"
    print(f"\ndemo: shown on {place}: a training under a cap, its cache released, a lower cap while it runs, two programs in turns")
    return 0


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--gpu")
    parser.add_argument("--directory", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.trainer = "train_torch.py" if arguments.gpu else "train_simulated.py"
    arguments.typed = f"python3 tests/demo/{arguments.trainer}"
    return arguments


ARGUMENTS = arguments()
sys.exit(main())
