# bash completion for curb(1). Bash finds it as /usr/share/bash-completion/completions/curb, or with `source curb.bash`
#
# Commands and options are what `curb COMMAND --help` lists, asked at each completion (3 ms a question). Nothing here
# asks processes or the driver, which might make the shell wait. Works with and without bash-completion, and under set -u.

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

# The rows below a heading of $1, a help text, into `rows`: what stands in their first column.
_curb_rows() { # HELP HEADING
    local line inside=0
    rows=()
    while IFS= read -r line; do
        if [[ $line == "$2:" ]]; then
            inside=1
        elif [[ -z $line ]]; then
            inside=0
        elif ((inside)) && [[ $line =~ ^'  '([^ ]+( [^ ]+)*) ]]; then
            rows+=("${BASH_REMATCH[1]}")
        fi
    done <<<"$1"
}

# Candidates that begin with the word at the cursor. What stands behind a tab in one is shown beside it while there are
# others, and is never put into the line.
_curb_offer() {
    local candidate sign breaks='' done='' found=()
    for candidate in "$@"; do
        if [[ ${candidate%%$'\t'*} == "$current"* ]]; then found+=("$candidate"); fi
    done
    # Readline puts the candidate in the place of what stands behind the last break in the word.
    for sign in : =; do
        if [[ ${COMP_WORDBREAKS:-} == *$sign* ]]; then breaks+=$sign; fi
    done
    if [[ -n $breaks ]]; then done=${current%"${current##*["$breaks"]}"}; fi
    if [[ $breaks == *=* ]]; then prefix=; fi
    for candidate in "${found[@]}"; do
        candidate=$prefix${candidate#"$done"}
        if ((${#found[@]} == 1)) || [[ ${COMP_TYPE:-9} == @(37|42) ]]; then
            COMPREPLY+=("${candidate%%$'\t'*}") # 37, 42: keys that put each of them into the line
        else
            COMPREPLY+=("${candidate/$'\t'/  }")
        fi
    done
}

# Readline's own completion of files knows quotes and blanks.
_curb_files() { compopt -o default 2>/dev/null || mapfile -t COMPREPLY < <(compgen -f -- "$current"); }

# Processes that can be asked, by their sockets; for `resume` those that were suspended, by their records.
_curb_processes() { # ENDING
    local file folder pid name seen=' ' found=() nullglob
    local folders=("/run/user/$UID/curb" "/tmp/curb-$UID" "${XDG_RUNTIME_DIR:-/run/user/$UID}/curb")
    nullglob=$(shopt -p nullglob)
    shopt -s nullglob
    if ((UID == 0)); then folders+=(/run/user/*/curb /tmp/curb-*); fi
    for folder in "${folders[@]}"; do
        for file in "$folder"/*"$1"; do
            pid=${file##*/} pid=${pid%%-*}
            [[ $pid == +([0-9]) && $seen != *" $pid "* ]] || continue
            IFS= read -r name <"/proc/$pid/comm" || continue
            seen+="$pid "
            found+=("$pid"$'\t'"(${name//[^[:print:]]/?})")
        done 2>/dev/null
    done
    eval "$nullglob"
    _curb_offer "${found[@]}"
}

# Release steps, as the schema of policies lists them.
_curb_steps() {
    local schema names pattern='"title": "release steps"[^]]*"enum": \[([^]]*)\]'
    schema=$("$curb" policy schema 2>/dev/null </dev/null) || return 0
    [[ $schema =~ $pattern ]] || return 0
    IFS=$' \n' read -r -d '' -a names <<<"${BASH_REMATCH[1]//[\",]/ }" || :
    _curb_offer "${names[@]}"
}

# Keys of GPUs, as policies write them: by the kernel driver's own files.
_curb_gpus() {
    local file name value count=0 keys=('\*')
    for file in /proc/driver/nvidia/gpus/*/information; do
        [[ -r $file ]] || continue
        keys+=("cuda:$count" "nvml:$count")
        while IFS=: read -r name value; do
            case $name in 'GPU UUID' | 'Bus Location') keys+=("${value##+([[:blank:]])}") ;; esac
        done <"$file"
        ((++count))
    done
    ((count)) || keys+=(cuda:0 nvml:0)
    _curb_offer "${keys[@]}"
}

# What stands for a value or an argument in the help says what it is.
_curb_values() { # NAME-IN-HELP OPTION
    case $1 in
    PID*) if [[ $path == resume ]]; then _curb_processes .suspended.json; else _curb_processes .sock; fi ;;
    FILE* | TRACE* | PATH*) _curb_files ;;
    KEY*) _curb_gpus ;;
    NAME*) if [[ $2 == --step ]]; then _curb_steps; fi ;;
    esac
}

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
    local extglob words starts rows path='' help option row current prefix='' curb i IFS=$' \t\n'
    COMPREPLY=()
    extglob=$(shopt -p extglob)
    shopt -s extglob
    _curb_words
    current=${words[-1]}
    curb=${words[0]}
    type -P -- "$curb" >/dev/null || curb=curb
    if help=$("$curb" --help 2>/dev/null </dev/null); then _curb_complete; fi
    eval "$extglob"
    return 0
}

_curb_complete() {
    local last=$((${#words[@]} - 1)) commands=() options=() arguments=() takes=' ' at=1 name names

    # Down to the command that the words lead to.
    while :; do
        _curb_rows "$help" Commands
        if ((${#rows[@]} == 0)); then break; fi
        commands=("${rows[@]}")
        while ((at < last)) && [[ ${words[at]} == -* ]]; do ((++at)); done
        if ((at >= last)); then break; fi
        [[ " ${commands[*]} " == *" ${words[at]} "* ]] || return 0
        path+=${path:+ }${words[at]} commands=()
        ((++at))
        # shellcheck disable=SC2086 # one word or two
        help=$("$curb" $path --help 2>/dev/null </dev/null) || return 0
    done

    _curb_rows "$help" Options
    for row in "${rows[@]}"; do
        name=${row%% *}
        IFS=, read -r -a names <<<"$name"
        options+=("${names[@]}")
        if [[ $row == *' '* ]]; then takes+="${name//,/ }=${row#* } "; fi
    done
    _curb_rows "$help" Arguments
    arguments=("${rows[@]}")

    # Over the words that are complete, to what the last one is.
    local count=0
    for ((i = at; i < last; i++)); do
        if [[ ${words[i]} == -- ]] || [[ $path == run && ${words[i]} != -* ]]; then
            [[ ${words[i]} != -- ]] || ((++i))
            if [[ $path == run || $path == 'policy explain' || $path == 'kernelspec install' ]]; then _curb_command "${starts[i]}"; fi
            return
        fi
        if [[ ${words[i]} == -* ]]; then
            if [[ $takes == *" ${words[i]}="* && ${words[i]} != *=* && ${words[i + 1]} != -- ]]; then
                ((i + 1 < last)) || break
                ((++i))
            fi
        else
            ((++count))
        fi
    done

    option=${words[i]}
    if ((i < last)); then # its value is due
        row=${takes#*" $option="}
        _curb_values "${row%% *}" "$option"
    elif [[ $current == -*=* ]]; then
        option=${current%%=*}
        [[ $takes == *" $option="* ]] || return 0
        row=${takes#*" $option="}
        current=${current#*=} prefix=$option=
        _curb_values "${row%% *}" "$option"
    elif [[ $current == -* ]]; then
        _curb_offer "${options[@]}"
    elif ((${#commands[@]})); then
        _curb_offer "${commands[@]}"
    elif [[ $path == run ]]; then
        _curb_command "${starts[last]}"
    elif ((${#arguments[@]})); then
        name=${arguments[count < ${#arguments[@]} ? count : ${#arguments[@]} - 1]}
        if ((count < ${#arguments[@]})) || [[ $name == *... ]]; then _curb_values "$name" ''; fi
    fi
}

complete -F _curb curb
