# shellcheck shell=bash
# Sourced by the other scripts: the root of the tree, the compiler and cmake, compiling, error messages.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
JOBS=${JOBS:-$(nproc)}
export JOBS

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    shift
    (($# == 0)) || printf '    %s\n' "$@" >&2
    exit 1
}

# Prints the compiler's major version, "12"; "0" if there is no such compiler.
gcc_major() {
    local version
    version=$("$1" -dumpversion 2>/dev/null) || version=0
    printf '%s\n' "${version%%.*}"
}

# Succeeds if cmake is installed and at least 3.25.
cmake_is_new_enough() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
    [[ -n $version ]] && ((${version%.*} > 3 || (${version%.*} == 3 && ${version#*.} >= 25)))
}

# compile PRESET: builds what is configured. Ninja shows its status line on a terminal; elsewhere a line every few seconds
# says how far it is.
compile() {
    local command=(cmake --build --preset "$1" --parallel "$JOBS")
    if [[ -t 1 ]]; then "${command[@]}"; else "${command[@]}" | plain_status; fi
}

# Reads ninja's output. Prints its newest status every 5 s, also during a step that takes longer, and other lines at once.
plain_status() {
    local line='' part status='' next=$((SECONDS + 5)) start=$SECONDS result
    while
        result=0
        IFS= read -r -t 1 part || result=$?
        line+=$part
        ((result == 0 || result > 128)) # more than 128: a second has passed
    do
        if ((result == 0)); then
            if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
                status="step ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
            else
                printf '%s\n' "$line"
            fi
            line=
        fi
        ((SECONDS < next)) && continue
        next=$((SECONDS + 5))
        [[ -z $status ]] || printf '%s: compiling: %s, %d s\n' "${0##*/}" "$status" "$((SECONDS - start))"
    done
    [[ -z $line ]] || printf '%s\n' "$line"
}

# Prints CURB_MIRROR, or the mirror that apt uses on this machine.
debian_mirror() {
    local mirror=${CURB_MIRROR:-}
    # shellcheck disable=SC2016 # for apt-get to fill in
    [[ -n $mirror ]] || mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Identifier: Packages' |
        sed -n 's/ \(Debian\|Ubuntu\)$//p' | sed -n 1p)
    [[ -n $mirror ]] || fail "apt knows no mirror here" "name one: CURB_MIRROR=URL"
    printf '%s\n' "$mirror"
}

# Selects the newer compiler and cmake that scripts/setup installs beside older ones of the distribution (Ubuntu 22.04).
use_toolchain() {
    if [[ -x $root/.venv/bin/cmake ]]; then PATH=$root/.venv/bin:$PATH; fi
    if [[ -z ${CXX:-} ]] && (($(gcc_major g++) < 12)) && command -v g++-12 >/dev/null; then
        export CC=gcc-12 CXX=g++-12
    fi
}
use_toolchain
