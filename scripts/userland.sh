# shellcheck shell=bash
# Sourced by scripts that try something in a userland that has nothing yet: made by debootstrap, as root.

# userland SUITE FOLDER [ARCHITECTURE]: bookworm, trixie, noble, … as debootstrap has it, from debian_mirror, in a folder that
# is not there. The kernel must be able to start the programs of another architecture (binfmt_misc).
userland() {
    local suite=$1 folder=$2 architecture=${3:-$(dpkg --print-architecture)} recipe components=main mirror
    ((EUID == 0)) || fail "a userland can be set up by root alone"
    command -v debootstrap >/dev/null || fail "there is no debootstrap" "install it: apt-get install debootstrap"
    mirror=$(debian_mirror)
    recipe=$(readlink -f "/usr/share/debootstrap/scripts/$suite")
    [[ -e $recipe ]] || fail "debootstrap has no suite '$suite'"
    [[ $recipe != */gutsy ]] || components=main,universe # Ubuntu's all follow that one
    mkdir -p "$folder"
    chmod 755 "$folder" # for apt's own user
    # In two stages, because debootstrap does not ask the kernel about another architecture.
    {
        debootstrap --foreign --arch="$architecture" --variant=minbase --components="$components" "$suite" "$folder" "$mirror" &&
            chroot "$folder" /debootstrap/debootstrap --second-stage
    } >"$folder.log" 2>&1 || {
        tail -n 20 "$folder.log" >&2
        fail "debootstrap failed; all that it said is in $folder.log"
    }
    rm -f "$folder.log"
    echo '127.0.0.1 localhost' >"$folder/etc/hosts" # which installers write, not debootstrap
}

# inside FOLDER [NAME=VALUE]... -- COMMAND...: runs a command there, with mounts and processes of its own, which end with it.
# Of this machine it uses the kernel, /dev and the network.
inside() {
    local folder=$1 variables=()
    shift
    while [[ $1 != -- ]]; do variables+=("$1") && shift; done
    shift
    # shellcheck disable=SC2016 # for the shell in there to fill in
    unshare --mount --pid --fork --kill-child bash -c 'folder=$1 && shift &&
        mount -t proc proc "$folder/proc" && mount --rbind /dev "$folder/dev" &&
        exec chroot "$folder" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' \
        bash "$folder" "${variables[@]}" "$@"
}
