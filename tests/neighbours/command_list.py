"""The commands that programs_test.py runs beside every program's --version and --help, and the programs that it never runs."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    words: list[str]
    masked: bool = False
    """Numbers are not compared, even if both bare runs print the same: pids, their number of digits, and so on."""
    without: str = ""
    """A regular expression of the lines that any preload adds. If it is set, the order of lines is not compared."""


# Programs that never run: regular expressions of their names, and why.
STOPPED = {
    r"chromium.*|google-chrome.*|firefox.*": "start browsers",
    r"X|Xorg|Xvfb|Xwayland|xinit|startx": "start a display",
}
# Programs that do not run without a namespace: they change the machine, or may if they misread their arguments.
UNSAFE = {
    r"halt|poweroff|reboot|shutdown|init|telinit|runlevel|kexec|systemctl|systemd-.*": "end the system",
    r"kill|killall.*|pkill|skill|snice|fuser|start-stop-daemon": "end other processes",
    r"mkfs.*|mke2fs|mkswap|fsck.*|e2fsck|dosfsck|tune2fs|resize2fs|.*fdisk|parted|wipefs|blk.*|dd": "write to disks",
    r"losetup|badblocks|debugfs|hdparm|swapo(n|ff)|fstrim|cryptsetup|(lv|vg|pv|dm).*|mdadm": "write to disks",
    r"(switch|pivot)_root|u?mount.*|nsenter|unshare|chroot|modprobe|insmod|rmmod|depmod|sysctl": "change the system",
    r"user.*|group.*|pass.*|chpasswd|chgpasswd|newusers|vi(pw|gr)|(pw|grp|add|del).*|ch(fn|sh|age)": "change users",
    r"login|su|sudo.*|newgrp|sg|agetty|getty|sulogin": "change users",
    r"dpkg.*|apt.*|update-.*|invoke-rc\.d|service|rc.*|deb-.*|debconf.*|ucf.*|(add|remove)-shell": "change packages",
    r"ip|ifconfig|route|iptables.*|nft.*|tc|bridge|dhclient.*|arp|ethtool|if(up|down)": "change the network",
    r"shred|rm|rmdir|mv|ln|truncate|install|logrotate|hwclock|date|crontab|at|batch": "change files or times",
}

SHELL = """
set -e
f() { local i; for i in 1 2 3; do echo "line $i $1"; done; }
f a | sort -r | tr a-z A-Z
x=$(f b | wc -l); echo $x
(exit 3) || echo "status $?"
trap 'echo got usr1' USR1; kill -USR1 $$
trap 'echo bye' EXIT
cat <<END | sed s/here/there/
here is a document
END
sleep 0 & wait
echo to stderr >&2
ls -d / /usr | while read -r name; do echo "[$name]"; done
printf '%s\\n' z y x > list; sort list; rm list
exec 5>&1; echo by five >&5
"""
PYTHON = """
import os, signal, subprocess, sys, threading
def work(): return sum(range(100000))
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append('usr1')); os.kill(os.getpid(), signal.SIGUSR1)
print(got, subprocess.run(['/bin/sh', '-c', 'echo child; exit 4'], stdout=subprocess.PIPE))
pid = os.fork()
if pid == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(sorted(os.listdir('/proc/self/fd')), sorted(os.listdir('/proc/self/task')).__len__())
import ctypes; print(ctypes.CDLL(None).abs(-5), ctypes.CDLL('libm.so.6').abs(6))
sys.exit(9)
"""
PERL = """
$SIG{USR1} = sub { print "usr1\\n" }; kill USR1 => $$;
my $out = `echo child`; print $out; system('exit 5'); print $? >> 8, "\\n";
my $pid = fork(); if (!$pid) { exit 6 } waitpid $pid, 0; print $? >> 8, "\\n"; exit 3;
"""
GIT = """
export GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000'
git init -q -b main . && git config user.name a && git config user.email a@b && echo text > file && git add file
git commit -q -m 'a commit' && git log --stat && git status --short && git show HEAD:file && git fsck 2>&1 && git gc -q
"""
BUILDING = """
printf 'int main(void) { return 6; }\\n' > a.c && gcc -O1 a.c -o a && ./a; echo $?
printf 'a: b\\n\\techo making a\\nb:\\n\\t@echo b\\n' > Makefile && make -j2
ar rc l.a a.c && ar t l.a && tar cf - a.c | tar tf - && gzip -c a.c | gunzip | cmp - a.c
"""

# ldd's lines for any preload and for the libraries that it needs.
ITS_LINES = r"^.*(libcurb|libgcc_s)\.so.*\n"
# The message of the 32-bit loader about a 64-bit preload.
NOT_FOR_32_BITS = r"^ERROR: ld\.so: object '\S+' from LD_PRELOAD cannot be preloaded \(wrong ELF class: .*\n"

OTHERS = [
    Command(["bash", "-c", SHELL]),
    Command(["dash", "-c", SHELL]),
    Command(["sh", "-c", "ulimit -a; umask; set -- a b; shift; echo $# $0"]),
    Command(["bash", "-ic", "echo $-"], masked=True),
    Command(["env", "-i", "/bin/echo", "nothing is preloaded here"]),
    Command(["python3", "-c", PYTHON], masked=True),
    Command(["python3", "-c", "import nothing_of_this_name"]),
    Command(["python3", "-m", "pip", "--version"]),
    Command(["pip", "list"]),
    Command(["perl", "-e", PERL]),
    Command(["perl", "-V:version"]),
    Command(["sh", "-c", GIT]),
    Command(["sh", "-c", BUILDING], masked=True),
    Command(["ldd", "/bin/ls"], masked=True, without=ITS_LINES),
    Command(["ldd", "/bin/bash"], masked=True, without=ITS_LINES),
    Command(["ldconfig", "-p"]),  # linked statically
    Command(["/usr/lib/ld-linux.so.2", "/usr/lib32/libc.so.6"], without=NOT_FOR_32_BITS),
    Command(["dpkg", "-l"]),
    Command(["dpkg", "-L", "bash"]),
    Command(["dpkg", "-S", "/bin/ls"]),
    Command(["dpkg-query", "-W", "-f", "${Package}\n"]),
    Command(["apt-cache", "policy", "bash"]),
    Command(["apt-cache", "show", "bash"]),
    Command(["apt-config", "dump"]),
    Command(["gdb", "-nx", "-q", "-batch", "-ex", "run", "-ex", "info inferiors", "/bin/true"], masked=True),
    Command(["gdb", "-nx", "-q", "-batch", "-ex", "print 6 * 7"]),
    Command(["strace", "-o", "/dev/null", "/bin/true"]),
    # Set-user-ID programs: there the loader ignores paths in LD_PRELOAD without a message.
    Command(["passwd", "-S"]),
    Command(["su", "-c", "id", "root"]),
    Command(["mount"]),
    Command(["newgrp", "root"]),
    Command(["chage", "-l", "root"]),
    Command(["ps", "-o", "comm", "-p", "1"]),
    Command(["find", "/etc/apt", "-type", "f"]),
    Command(["awk", "BEGIN { \"date +%Y\" | getline y; print y > \"/dev/stderr\"; system(\"exit 3\"); exit 4 }"]),
    Command(["xargs", "-n1", "echo"]),
    Command(["timeout", "0.2", "sleep", "30"]),
    Command(["nice", "-n", "3", "nice"]),
    Command(["openssl", "dgst", "-sha256", "/bin/ls"]),
    Command(["node", "-e", "console.log(6 * 7); process.exit(3)"]),
    Command(["java", "-version"]),
    Command(["cmake", "-P", "/dev/null"]),
    Command(["getent", "passwd", "root"]),
    Command(["locale"]),
    Command(["false"]),
    Command(["bash", "-c", "kill -SEGV $$"]),
    Command(["bash", "-c", "kill -USR1 $$"]),
]
