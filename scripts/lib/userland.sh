# shellcheck shell=bash
# Sourced by scripts that test in a new, minimal userland, which debootstrap makes as root.

# userland SUITE FOLDER [ARCHITECTURE]: makes a userland of a suite of debootstrap (bookworm, trixie, noble, …), from
# debian_mirror, in a new folder. For another architecture the kernel must be able to start its programs (binfmt_misc).
userland() {
    local suite=$1 folder=$2 architecture=${3:-$(dpkg --print-architecture)} recipe components=main mirror
    ((EUID == 0)) || fail "only root can make a userland"
    command -v debootstrap >/dev/null || fail "there is no debootstrap" "install it: apt-get install debootstrap"
    mirror=$(debian_mirror)
    recipe=$(readlink -f "/usr/share/debootstrap/scripts/$suite")
    [[ -e $recipe ]] || fail "debootstrap has no suite '$suite'"
    [[ $recipe != */gutsy ]] || components=main,universe # the recipe of all Ubuntu suites
    mkdir -p "$folder"
    chmod 755 "$folder" # for apt's own user
    # In two stages, because debootstrap does not ask the kernel about another architecture.
    {
        debootstrap --foreign --arch="$architecture" --variant=minbase --components="$components" "$suite" "$folder" "$mirror" &&
            chroot "$folder" /debootstrap/debootstrap --second-stage
    } >"$folder.log" 2>&1 || {
        tail -n 20 "$folder.log" >&2
        fail "debootstrap failed; its output is in $folder.log"
    }
    rm -f "$folder.log"
    echo '127.0.0.1 localhost' >"$folder/etc/hosts" # debootstrap does not write it
}

# inside FOLDER [NAME=VALUE]... -- COMMAND...: runs a command in a userland, in mount and pid namespaces of its own, which end
# with it. Of this machine it uses the kernel, /dev and the network. Its root is that of the namespace, as on a machine, so that
# programs in there can make and enter mount namespaces.
inside() {
    local folder=$1 variables=()
    shift
    while [[ $1 != -- ]]; do variables+=("$1") && shift; done
    shift
    # shellcheck disable=SC2016 # for the shell in there to fill in
    unshare --mount --pid --fork --kill-child bash -c 'folder=$1 && shift &&
        mount --bind "$folder" "$folder" && mount -t proc proc "$folder/proc" && mount --rbind /dev "$folder/dev" &&
        cd "$folder" && pivot_root . . && umount --lazy . && cd / && exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' \
        bash "$folder" "${variables[@]}" "$@"
}

# Makes the kernel run programs for aarch64 by qemu-user, as systemd does, until forget_aarch64.
binfmt=/proc/sys/fs/binfmt_misc registered=
emulate_aarch64() {
    [[ -e $binfmt/register ]] || mount -t binfmt_misc none "$binfmt" ||
        fail "this kernel has no binfmt_misc, so it cannot start programs for aarch64"
    [[ ! -e $binfmt/qemu-aarch64 ]] || return 0
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >"$binfmt/register"
    registered=$binfmt/qemu-aarch64
}
forget_aarch64() { [[ -z $registered ]] || echo -1 >"$registered"; }

# machine FOLDER COMMAND...: boots a Debian userland for arm64 in a machine that qemu emulates, with two processors, Debian's
# kernel and no network. Runs the command there as root and returns its exit status. Changes stay in the machine's memory.
machine() {
    local folder=$1 kernel status
    shift
    kernel=$(compgen -G "$folder.kernel/boot/vmlinuz-*") || {
        # The userland is the initramfs, so the kernel needs no modules.
        # shellcheck disable=SC2016 # for the shell in there to fill in
        inside "$folder" -- bash -c 'cd /tmp && apt-get -qq download "$(apt-cache depends linux-image-cloud-arm64 |
            sed -n "s/.*Depends: \(linux-image-\)/\1/p")"' >"$folder.log" 2>&1 ||
            fail "Debian's kernel for arm64 cannot be downloaded: $(tail -n 1 "$folder.log")"
        dpkg-deb -x "$folder"/tmp/linux-image-*.deb "$folder.kernel"
        rm -f "$folder"/tmp/linux-image-*.deb
        kernel=$(compgen -G "$folder.kernel/boot/vmlinuz-*")
    }
    {
        printf '%s\n' '#!/bin/bash' 'mount -t proc proc /proc' 'mount -t sysfs sysfs /sys' 'mount -t devtmpfs devtmpfs /dev' \
            'mkdir -p /dev/shm /dev/pts' 'mount -t tmpfs tmpfs /dev/shm' 'mount -t devpts devpts /dev/pts' 'ln -s /proc/self/fd /dev/fd' \
            'mount -t tmpfs tmpfs /run' 'ip link set lo up' 'hostname machine' \
            'export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8'
        printf '%q ' "$@"
        printf '%s\n' '</dev/null' 'echo "exit status $?"' 'sync' 'echo o >/proc/sysrq-trigger' 'sleep 60'
    } >"$folder/init"
    chmod 755 "$folder/init"
    (cd "$folder" && find . -xdev | cpio --quiet -o -H newc) >"$folder.cpio"
    qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -smp 2 -m 14G -nographic -nodefaults -no-reboot -serial stdio \
        -kernel "$kernel" -initrd "$folder.cpio" -append "console=ttyAMA0 quiet rdinit=/init" </dev/null |
        sed --unbuffered 's/\r$//' | tee "$folder.console" | grep --line-buffered -v '^exit status '
    status=$(sed -n 's/^exit status \([0-9]*\)$/\1/p' "$folder.console" | tail -n 1)
    rm -rf "$folder.cpio" "$folder/init"
    return "${status:-1}"
}
