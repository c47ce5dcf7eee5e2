"""The cases of surroundings_test.py."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import surroundings_files as files
import surroundings_runs as runs
from surroundings_here import (
    ENOSYS,
    EPERM,
    KILL,
    MODERN,
    NEVER_MADE,
    Case,
    give_to_user,
    limit,
    need_filters,
    require_root,
    without_calls,
)


def in_root(name: str, proc: bool = True, before: files.Before = files.make_root, **more: Any) -> Case:
    return Case(
        name,
        files.new_root(proc),
        before=before,
        through=("chroot", "@/root"),
        environment={"LD_LIBRARY_PATH": "/t", "CURB_LIBRARY": "/t/libcurb.so"},
        under_curb={"LD_PRELOAD": "/t/libcurb.so", "CURB_POLICY": "/job.json"},
        asked=None,
        **more,
    )


def no_threads(name: str, before: files.Before, lines: int) -> Case:
    one = limit(resource.RLIMIT_NPROC, 1)
    return Case(name, prepare=one, as_user=True, before=before, asked=None, lines=lines, says="no thread")


def bad_policy(what: str, says: str, **more: Any) -> Case:
    return Case(f"the policy {what}", refused=True, lines=2, says=says, **more)


CASES = [
    Case("a full disk: log and trace", files.FULL, before=files.both_full, lines=2),
    Case("a full disk: the runtime directory", "mount -t tmpfs -o nr_inodes=1,mode=700 none @/runtime"),
    Case("a full disk: an edit of the policy that was cut off", meanwhile=files.full_then_policy, asked=True, lines=4),
    Case("a device that is always full as log", before=files.log_to("/dev/full"), asked=True),
    Case("a read-only runtime directory", "mount -t tmpfs -o ro none @/runtime"),
    Case("a read-only /tmp", files.READ_ONLY, without=("XDG_RUNTIME_DIR",)),
    Case("a noexec runtime directory", "mount -t tmpfs -o noexec,mode=700 none @/runtime", asked=True),
    in_root("no /tmp, no /etc, no /dev: a bare root", without=("XDG_RUNTIME_DIR", "HOME")),
    in_root("a bare root without /proc", proc=False, without=("XDG_RUNTIME_DIR",)),
    in_root("a bare root and a rule about a user", before=files.rule_about_a_user),
    Case("no /proc", files.EMPTY_PROC, asked=None),
    Case("hidepid", "mount -t proc -o hidepid=2 proc /proc", before=require_root),
    Case("no /dev/shm", "mount -t tmpfs -o ro none /dev/shm", asked=True),
    Case("no cgroups", "if [ -d /sys/fs/cgroup ]; then mount -t tmpfs -o ro none /sys/fs/cgroup; fi", asked=True),
    Case("no HOME, no runtime directory", without=("HOME", "XDG_RUNTIME_DIR"), asked=False),
    Case(
        "HOME and XDG_CONFIG_HOME that are not there",
        environment={"HOME": "/nonexistent", "XDG_CONFIG_HOME": "none"},
        asked=True,
    ),
    Case("16 descriptors", prepare=limit(resource.RLIMIT_NOFILE, 16)),
    Case("3 descriptors", program_words=("limit=nofile:3",), refused=True, lines=3, says="Too many open files"),
    Case("little address space", program_words=("limit=as:+24",)),
    no_threads("no threads", give_to_user, lines=1),
    no_threads("no threads, and a trace", files.traced_by_user, lines=2),
    Case("a small stack", prepare=limit(resource.RLIMIT_STACK, 64 << 10), asked=True),
    Case("a stack that threads would inherit, 16 KiB", program_words=("limit=stack:16384",), asked=True),
    Case("an unlimited stack", prepare=limit(resource.RLIMIT_STACK, resource.RLIM_INFINITY), asked=True),
    Case("files that may not grow", prepare=limit(resource.RLIMIT_FSIZE, 0), before=files.both_full),
    Case("stderr is a file that may not grow", whole=runs.same_with_stderr(runs.a_file, runs.files_may_not_grow)),
    Case("no queued signals", prepare=limit(resource.RLIMIT_SIGPENDING, 0), asked=True),
    Case("no locked memory", prepare=limit(resource.RLIMIT_MEMLOCK, 0), asked=True),
    Case("no core files", prepare=limit(resource.RLIMIT_CORE, 0), asked=True),
    Case(
        "modern system calls that are not there (ENOSYS)", prepare=without_calls(ENOSYS, *MODERN), before=need_filters
    ),
    Case(
        "modern system calls that are refused (EPERM)",
        prepare=without_calls(EPERM, *(set(MODERN) - {"clone3"})),
        before=need_filters,
    ),
    Case(
        "system calls that end the process, of those that curb never makes",
        prepare=without_calls(KILL, *NEVER_MADE),
        before=need_filters,
        asked=True,
    ),
    Case("no sockets (EPERM)", prepare=without_calls(EPERM, "socket", "socketpair"), before=need_filters),
    Case("no listening (EPERM)", prepare=without_calls(EPERM, "bind", "listen", "connect"), before=need_filters),
    Case(
        "no inotify",
        prepare=without_calls(ENOSYS, "inotify_init1", "inotify_add_watch"),
        before=need_filters,
        asked=True,
    ),
    Case(
        "no table of descriptors of one's own",
        prepare=without_calls(EPERM, "close_range", "unshare"),
        before=files.trace_to("@/trace"),
        asked=True,
    ),
    Case("no names for threads", prepare=without_calls(ENOSYS, "prctl", "readlink", "getcwd"), before=need_filters),
    Case("another's socket directory", before=files.runtime_folder(files.anothers)),
    Case("a link in place of the socket directory", before=files.runtime_folder(files.link)),
    Case("a socket directory of mode 0666", before=files.runtime_folder(files.mode(0o666)), asked=None),
    Case("a socket directory of mode 0777", before=files.runtime_folder(files.mode(0o777)), asked=None),
    Case("a file in place of the socket directory", before=files.runtime_folder(Path.touch)),
    Case(
        "no inotify instance left",
        through=("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"', "sh"),
        before=files.unprivileged_inotify,
    ),
    Case(
        "a namespace of pids",
        through=("unshare", "-mpfUr", "--mount-proc", "--"),
        before=files.unprivileged_inotify,
        asked=None,
    ),
    Case("an environment of a megabyte", environment={f"BALLAST_{i}": "x" * 100_000 for i in range(10)}, asked=True),
    Case("odd characters in the library's path", whole=runs.odd_library_path),
    Case("a clock that goes backwards", whole=runs.clock_backwards),
    Case("no visible device", environment={"CUDA_VISIBLE_DEVICES": ""}),
    Case(
        "umask 0777", prepare=files.odd_umask, as_user=True, before=give_to_user, after=files.mode_of_umask, asked=True
    ),
    Case(
        "a daemon that closes all descriptors and opens its own",
        before=files.log_to("@/log"),
        program_words=("daemon",),
        after=runs.log_goes_on,
    ),
    Case("stdin closed", whole=runs.closed(0)),
    Case("stdout closed", whole=runs.closed(1)),
    Case("stderr closed", whole=runs.closed(2)),
    Case("stdin, stdout and stderr closed", whole=runs.closed(0, 1, 2)),
    Case("stdout a full pipe", whole=runs.full_stdout),
    Case("stderr a full pipe that is never read", whole=runs.same_with_stderr(runs.full_pipe)),
    Case(
        "stderr a broken pipe, SIGPIPE as it is",
        whole=runs.same_with_stderr(runs.broken_pipe, runs.default_pipe_signal),
    ),
    Case(
        "stderr a broken pipe, SIGPIPE blocked", whole=runs.same_with_stderr(runs.broken_pipe, runs.blocked_pipe_signal)
    ),
    Case("stderr a broken socket", whole=runs.same_with_stderr(runs.broken_socket, runs.default_pipe_signal)),
    Case("stderr a full device", whole=runs.same_with_stderr(runs.full_device)),
    Case(
        "a Turkish locale, whose point is a comma",
        environment={"LC_ALL": "tr_TR.UTF-8", "LOCPATH": "@/locales"},
        program_words=("locale",),
        before=files.turkish_locale,
        after=files.trace_is_json,
        asked=True,
    ),
    Case("an empty argv[0]", whole=runs.empty_argv0),
    Case("a folder that was deleted", whole=runs.deleted_folder),
    bad_policy("is a FIFO without a writer", "not a regular file", before=files.policy_is(os.mkfifo)),
    bad_policy("is a device", "not a regular file", under_curb={"CURB_POLICY": "/dev/zero"}),
    bad_policy("is a directory", "it is a directory", before=files.policy_is(Path.mkdir)),
    bad_policy(
        "has gigabytes", "larger than 1 MiB", before=files.policy_is(files.sparse_gigabytes), after=files.starts_at_once
    ),
    bad_policy("may not be read", "may not be read", before=files.unreadable, as_user=True),
    bad_policy("is a link to itself", "circle", before=files.policy_is(lambda path: path.symlink_to(path.name))),
    Case("the log is a FIFO without a reader", before=files.fifo("log", files.log_to("@/log", "warning")), asked=True),
    Case("the trace is a FIFO without a reader", before=files.fifo("trace", files.trace_to("@/trace")), asked=True),
    Case("the log is a directory", before=files.log_to("@", "warning"), asked=True, says="log.file"),
    Case("under strace", whole=runs.under_tracer("strace", "-f", "-o", "/dev/null")),
    Case(
        "under gdb",
        whole=runs.under_tracer("gdb", "-q", "-batch", "-ex", "handle SIGUSR1 nostop noprint", "-ex", "run", "--args"),
    ),
]
