# fish completion for curb(1). fish finds it in share/fish/vendor_completions.d.
#
# Commands and options are what `curb COMMAND --help` lists, asked at each completion. Nothing here asks processes or the
# driver, which might make the shell wait.

# The rows below a heading of a command's help, as name, tab, description: __curb_rows HEADING [COMMAND...]
function __curb_rows
    command -q curb; or return
    curb $argv[2..] --help 2>/dev/null </dev/null | awk -v heading="$argv[1]:" '
        $0 == heading { inside = 1; next }
        /^$/ { inside = 0 }
        inside && /^  [^ ]/ {
            sub(/^  /, "")
            at = match($0, /   */)
            print at ? substr($0, 1, at - 1) "\t" substr($0, at + RLENGTH) : $0 "\t"
        }'
end

# The words of the line that name the command: `policy check`.
function __curb_path
    set -l path
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; and continue
        contains -- $word (__curb_rows Commands $path | string replace -r '\t.*' ''); or break
        set -a path $word
    end
    string join \n -- $path
end

# Options with their values' names, "--cap SIZE", of the command in the line.
function __curb_options
    __curb_rows Options (__curb_path)
end

# What is due at the cursor: `command` of curb run, the help's name of a value or argument (FILE, PID...), or nothing.
function __curb_due
    set -l path (__curb_path)
    set -l words (commandline -opc)[2..]
    set -l takes (__curb_options | string replace -r '\t.*' '' | string match -r '^\S+ .*')
    set -l value
    set -l count 0
    for word in $words
        if set -q value[1]
            set value
        else if test "$word" = --
            contains -- "$path" run 'policy explain' 'kernelspec install'; and echo command
            return
        else if string match -q -- '-*' $word
            for row in $takes
                contains -- $word (string split , -- (string split -f1 ' ' -- $row)); and set value (string split -f2 ' ' -- $row)
            end
        else
            set count (math $count + 1)
            if test "$path" = run -a $count -gt 1
                echo command
                return
            end
        end
    end
    if set -q value[1]
        echo $value
        return
    end
    test "$path" = run; and echo command; and return
    set -l arguments (__curb_rows Arguments $path | string replace -r '\t.*' '')
    set -l at (math $count - (count $path) + 1)
    if test $at -le (count $arguments)
        echo $arguments[$at]
    else if string match -q -- '*...' "$arguments[-1]"
        echo $arguments[-1]
    end
end

# Processes that can be asked, by their sockets; for `resume` those that were suspended, by their records.
function __curb_processes
    set -l ending .sock
    test (__curb_path) = resume; and set ending .suspended.json
    set -l folders /run/user/(id -u)/curb /tmp/curb-(id -u) $XDG_RUNTIME_DIR/curb
    test (id -u) = 0; and set -a folders /run/user/*/curb /tmp/curb-*
    for file in $folders/*$ending
        set -l pid (string replace -r '.*/(\d+)-.*' '$1' -- $file)
        test -r /proc/$pid/comm; and printf '%s\t%s\n' $pid (cat /proc/$pid/comm)
    end | sort -u
end

# The command of curb run, completed as it would be by itself.
function __curb_command
    set -l words (commandline -opc)
    set -l at 2
    if set -l dashes (contains -i -- -- $words)
        set at (math $dashes + 1)
    else
        set at (math (contains -i -- run $words) + 1)
    end
    set -l typed (commandline -ct)
    # An option in the place of the command is one of curb run.
    test $at -gt (count $words); and string match -q -- '-*' "$typed"; and return
    complete --do-complete=(string join ' ' -- (string escape -- $words[$at..]) "$typed")
end

function __curb_due_is
    string match -q -r -- $argv[1] (__curb_due)
end

complete -c curb -f
complete -c curb -n 'test (count (commandline -opc)) -le 2; and not __curb_due_is .' -a '(__curb_rows Commands (__curb_path))'
complete -c curb -n '__curb_due_is "^(FILE|TRACE|PATH)"' -F
complete -c curb -n '__curb_due_is "^PID"' -a '(__curb_processes)'
complete -c curb -n '__curb_due_is "^command"' -a '(__curb_command)'
complete -c curb -n 'string match -q -- "-*" (commandline -ct); and not contains -- -- (commandline -opc)' \
    -a '(__curb_options | string replace -r "^(?:-\w,)?(\S+)[^\t]*" "\$1")'
