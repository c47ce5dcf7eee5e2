# shellcheck shell=bash
# Sourced by the scripts beside it: the root of the tree, the compiler and the cmake to use, how to speak.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
JOBS=${JOBS:-$(nproc)}
export JOBS

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    shift
    (($# == 0)) || printf '    %s\n' "$@" >&2
    exit 1
}

# "12" of a compiler, "0" where there is none.
gcc_major() {
    local version
    version=$("$1" -dumpversion 2>/dev/null) || version=0
    printf '%s\n' "${version%%.*}"
}

# Whether cmake is there and at least 3.25.
cmake_is_new_enough() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
    [[ -n $version ]] && ((${version%.*} > 3 || (${version%.*} == 3 && ${version#*.} >= 25)))
}

# Where apt has this machine's own packages from, or CURB_MIRROR.
debian_mirror() {
    local mirror=${CURB_MIRROR:-}
    # shellcheck disable=SC2016 # for apt-get to fill in
    [[ -n $mirror ]] || mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Identifier: Packages' |
        sed -n 's/ \(Debian\|Ubuntu\)$//p' | sed -n 1p)
    [[ -n $mirror ]] || fail "apt knows no mirror here" "name one: CURB_MIRROR=URL"
    printf '%s\n' "$mirror"
}

# What scripts/setup may have put beside an older compiler or cmake of the distribution's (Ubuntu 22.04).
use_toolchain() {
    if [[ -x $root/.venv/bin/cmake ]]; then PATH=$root/.venv/bin:$PATH; fi
    if [[ -z ${CXX:-} ]] && (($(gcc_major g++) < 12)) && command -v g++-12 >/dev/null; then
        export CC=gcc-12 CXX=g++-12
    fi
}
use_toolchain
