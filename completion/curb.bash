# bash completion for curb(1). Bash finds it as /usr/share/bash-completion/completions/curb, or with `source curb.bash`
#
# `curb --complete WORDS...` prints what may stand in the place of the last word. It asks neither processes nor the
# driver, which might make the shell wait. Works with and without bash-completion, and under set -u.

# The words up to the cursor as the shell's grammar has them, into `words`, and where each began in COMP_WORDS, into
# `starts`. Readline breaks words at ":" and "=" too; parts with nothing between them in the line belong together.
_curb_words() {
    local i part line=${COMP_LINE:0:COMP_POINT} blank
    words=() starts=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if [[ $i == 0 || $line == [[:blank:]]* ]]; then blank=1; else blank=0; fi
        line=${line##+([[:blank:]])}
        part=${COMP_WORDS[i]:-}
        if ((i == COMP_CWORD)); then part=$line; fi # without what stands behind the cursor
        line=${line#"$part"}
        if ((!blank)) && [[ $part == [:=]* || ${words[-1]} == *[:=] ]]; then
            words[-1]+=$part
        else
            words+=("$part") starts+=("$i")
        fi
    done
}

# The candidates that begin with the word at the cursor. What stands behind a tab in one is shown beside it while there
# are others, if it is short, and is never put into the line.
_curb_offer() {
    local candidate word sign breaks='' done='' found=()
    for candidate in "$@"; do
        if [[ $candidate == '*'* ]]; then candidate="\\$candidate"; fi
        if [[ ${candidate%%$'\t'*} == "$current"* ]]; then found+=("$candidate"); fi
    done
    # Readline puts the candidate in the place of what stands behind the last break in the word.
    for sign in : =; do
        if [[ ${COMP_WORDBREAKS:-} == *$sign* ]]; then breaks+=$sign; fi
    done
    if [[ -n $breaks ]]; then done=${current%"${current##*["$breaks"]}"}; fi
    for candidate in ${found[@]+"${found[@]}"}; do
        candidate=${candidate#"$done"}
        word=${candidate%%$'\t'*}
        # 37, 42: keys that put each of them into the line
        if ((${#found[@]} > 1)) && [[ ${COMP_TYPE:-9} != @(37|42) && $candidate == *$'\t('* ]]; then
            COMPREPLY+=("$word  ${candidate#*$'\t'}")
        else
            COMPREPLY+=("$word")
        fi
    done
}

# Readline's own completion of files knows quotes and blanks.
_curb_files() { compopt -o default 2>/dev/null || mapfile -t COMPREPLY < <(compgen -f -- "$current"); }

# The command of `curb run`, which begins at COMP_WORDS[$1], completes as it would by itself.
_curb_command() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
    else
        _curb_files
    fi
}

_curb() {
    local extglob words starts current curb answer IFS=$' \t\n'
    COMPREPLY=()
    extglob=$(shopt -p extglob)
    shopt -s extglob
    _curb_words
    current=${words[-1]}
    curb=${words[0]}
    type -P -- "$curb" >/dev/null || curb=curb
    mapfile -t answer < <("$curb" --complete "${words[@]:1}" 2>/dev/null </dev/null)
    case ${answer[0]:-} in
    :files) if [[ $current == -*=* ]]; then current=${current#*=}; fi && _curb_files ;;
    ':command '*) _curb_command "${starts[${answer[0]#:command } + 1]}" ;;
    *) _curb_offer ${answer[@]+"${answer[@]}"} ;;
    esac
    eval "$extglob"
    return 0
}

complete -F _curb curb
