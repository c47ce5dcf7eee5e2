#!/usr/bin/env python3
"""`curb top` in a terminal of 80 x 24, by tmux: top_test.py BUILD"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))
from simulated import Machine, OfMachine, within  # noqa: E402
from skipping import run_cases, skip  # noqa: E402

if not shutil.which("tmux"):
    skip("tmux is not installed (scripts/setup test)")


class Terminal:
    """A tmux server with one window, in which curb top runs."""

    def __init__(self, machine: Machine, columns: int, lines: int, options: str, **environment: str) -> None:
        self.socket = str(machine.folder / "tmux")
        settings = machine.bare | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment
        command = f"{BUILD}/bin/curb top {options}; echo ended with $?; sleep 60"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), command, env=settings)

    def tmux(self, *words: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-u", "-S", self.socket, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    def lines(self) -> list[str]:
        return self.tmux("capture-pane", "-p").splitlines()

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def click(self, column: int, line: int) -> None:
        """Sends what a terminal sends for a press and a release of the left button, in the mode that curb has set."""
        is_sgr = self.tmux("display-message", "-p", "#{mouse_sgr_flag}").strip() == "1"
        press, release = [(f"\x1b[<0;{column + 1};{line + 1}{end}" if is_sgr else f"\x1b[M{button}{chr(column + 33)}{chr(line + 33)}")
                          for button, end in ((" ", "M"), ("#", "m"))]
        self.tmux("send-keys", "-l", press + release)

    def shows(self, *texts: str) -> list[str]:
        """Waits until the screen shows all texts. Returns its lines."""
        shown: list[str] = []

        def has_all() -> bool:
            shown[:] = self.lines()
            return all(text in "\n".join(shown) for text in texts)

        assert within(has_all, pause=0.05), f"{texts} are not in {shown}"
        return shown

    def shows_of(self, pid: int, text: str) -> None:
        """Waits until the line of a process shows the text."""
        assert within(lambda: any(line.split()[:1] == [str(pid)] and text in line for line in self.lines())), self.lines()

    def shows_only(self, pid: int) -> list[str]:
        """Filters the processes: root sees those of other tests too. Returns the lines."""
        self.press("/")
        self.press(str(pid), "Enter")
        return self.shows(f'with "{pid}"')

    def resize(self, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def end(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False)


def pid_of(command: list[str]) -> int:
    """Waits for the process of this command."""
    words = "\0".join([*command, ""]).encode()

    def found() -> int:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if file.read_bytes() == words:
                    return int(file.parent.name)
        return 0

    pid = within(found)
    assert pid, f"{command} does not run"
    return pid


class Top(OfMachine):
    gpus = 2

    def top(self, columns: int = 80, lines: int = 24, options: str = "", **environment: str) -> Terminal:
        terminal = Terminal(self.machine, columns, lines, options, **environment)
        self.addCleanup(terminal.end)
        return terminal

    def test_all_gpus_and_processes_are_on_80_by_24(self) -> None:
        capped, bare = self.machine.run_program(), self.machine.run_program(self.machine.bare)
        terminal = self.top()
        lines = terminal.shows(str(capped.pid), str(bare.pid), "running", "no curb", "q quit")
        self.assertTrue(lines[0].startswith("curb top"))
        self.assertTrue(lines[1].startswith("GPU 0") and lines[2].startswith("GPU 1"), lines)
        self.assertIn("518 MiB     8 GiB", next(line for line in lines if str(capped.pid) in line))
        self.assertIn("  0%  34°C", lines[1])
        self.assertTrue(lines[-1].startswith("q quit"), lines)

    def test_keys_ask_and_then_act(self) -> None:
        process = self.machine.run_program()
        process.asked("pool")
        terminal = self.top()
        terminal.shows("774 MiB")
        terminal.shows_only(process.pid)
        terminal.press("r")
        terminal.shows("release the cached memory of", "? (y/n)")
        terminal.press("n")
        terminal.shows("q quit")
        self.assertIn("774 MiB", "\n".join(terminal.lines()))
        terminal.press("r", "y")
        terminal.shows(f"process {process.pid}: released 256 MiB", "518 MiB")
        terminal.press("c")
        terminal.shows("cap of")
        terminal.press("6", "Enter")
        terminal.shows("'6' has no unit; did you mean \"6GiB\"?")
        terminal.press("c")
        terminal.press("6GiBx", "BSpace", "Enter")
        terminal.shows("cap 8 GiB -> 6 GiB", "518 MiB     6 GiB")
        terminal.press("s", "y")
        terminal.shows("suspended " + str(process.pid))
        terminal.shows_of(process.pid, "suspended")
        terminal.press("u", "y")
        terminal.shows("resumed " + str(process.pid))
        terminal.shows_of(process.pid, "running")
        terminal.press("q")
        terminal.shows("ended with 0")

    def test_q_leaves_at_once_while_a_command_runs(self) -> None:
        process = self.machine.run_program()
        terminal = self.top()
        terminal.shows_only(process.pid)
        os.kill(process.pid, signal.SIGSTOP)  # curb release waits 5 s for it
        terminal.press("r", "y")
        command = pid_of([f"{BUILD}/bin/curb", "release", str(process.pid)])
        os.kill(command, signal.SIGSTOP)
        self.addCleanup(os.kill, command, signal.SIGKILL)
        terminal.press("q")
        terminal.shows("ended with 0")

    def test_q_leaves_while_nvml_hangs(self) -> None:
        terminal = self.top(CURB_SIM_NVML="hangs:init")
        terminal.shows("q quit")
        terminal.press("q")
        terminal.shows("ended with 0")

    def test_order_filter_and_selection(self) -> None:
        few, many = self.machine.run_program(), self.machine.run_program()
        many.asked("take 64")
        terminal = self.top()
        terminal.shows("by held", str(few.pid))

        def order() -> list[int]:
            # Take rows only: the notes on the selected process begin further left.
            pids = [int(line[:8]) for line in terminal.lines()[4:-1] if line[:8].strip().isdigit()]
            return [pid for pid in pids if pid in (few.pid, many.pid)]  # root sees other tests' processes too

        self.assertEqual(order(), [many.pid, few.pid])
        terminal.press("o", "o")
        terminal.shows("by pid")
        self.assertEqual(order(), sorted([few.pid, many.pid]))
        self.assertNotIn(str(many.pid), "\n".join(terminal.shows_only(few.pid)))
        terminal.press("/", "Enter")
        terminal.shows(str(few.pid), str(many.pid))

    def test_help_interval_and_mouse(self) -> None:
        few, many = self.machine.run_program(), self.machine.run_program()
        many.asked("take 64")
        terminal = self.top()
        terminal.shows(str(few.pid), str(many.pid))
        terminal.press("?")
        terminal.shows("any key goes back", "now every 1 s")
        terminal.press("+")
        terminal.shows("q quit")
        terminal.press("+")
        terminal.shows("polls every 2 s", "by held, every 2 s")
        terminal.press("-")
        terminal.shows("polls every 1 s")
        terminal.press("o")
        lines = terminal.shows("by cap", "? help")
        terminal.click(lines[-1].index("/ filter"), len(lines) - 1)
        terminal.shows("filter:")
        terminal.press("Escape")
        lines = terminal.shows("? help")
        row = next(y for y, line in enumerate(lines) if line.split()[:1] == [str(few.pid)])
        terminal.click(20, row)
        terminal.press("c")
        terminal.shows(f"cap of {few.pid}")

    def test_read_only_it_acts_on_nothing(self) -> None:
        process = self.machine.run_program()
        terminal = self.top(options="--read-only")
        lines = terminal.shows(str(process.pid), "read-only", "q quit")
        self.assertNotIn("suspend", lines[-1])
        for key in "rcsu":
            terminal.press(key)
            terminal.shows("curb top --read-only changes nothing")
            terminal.press("j")
            terminal.shows("q quit")
        terminal.press("q")
        terminal.shows("ended with 0")

    def test_it_follows_the_size_of_the_window(self) -> None:
        self.machine.run_program()
        terminal = self.top()
        terminal.shows("q quit")
        for columns, lines in ((40, 10), (20, 4), (120, 40), (80, 24)):
            terminal.resize(columns, lines)
            self.assertTrue(within(lambda: [line[:6] for line in terminal.lines()][lines - 1 :] == ["q quit"]), terminal.lines())
        terminal.press("C-c")
        terminal.shows("ended with 0")

    def test_without_unicode_or_colours_it_is_ascii(self) -> None:
        self.machine.run_program()
        text = "\n".join(self.top(LC_ALL="C", NO_COLOR="1").shows("running", "q quit"))
        self.assertTrue(text.isascii(), text)


if __name__ == "__main__":
    BUILD = Path(sys.argv[1]).resolve()
    run_cases()
