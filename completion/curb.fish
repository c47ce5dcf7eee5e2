# fish completion for curb(1). fish finds it in share/fish/vendor_completions.d.
#
# Commands and options are what `curb COMMAND --help` lists, asked at each completion. Nothing here asks processes or the
# driver.

# The rows below a heading of a help text, their columns separated by a tab. A row that is broken goes on deeper.
function __curb_rows --argument-names heading
    curb $argv[2..-1] --help 2>/dev/null </dev/null | awk -v heading="$heading:" '
        function row() { if (left != "") print left "\t" right }
        $0 == heading { inside = 1; next }
        $0 == "" { if (inside) { row(); exit } }
        !inside { next }
        /^  [^ ]/ { row(); text = substr($0, 3); at = index(text, "  "); left = at ? substr(text, 1, at - 1) : text
                    right = at ? substr(text, at) : ""; sub(/^ +/, "", right); next }
        { sub(/^ +/, ""); right = right == "" ? $0 : right " " $0 }'
end

# The command that the line names so far: "ps", "policy check". Fails behind the command of `curb run`.
function __curb_path
    set -l words (commandline -opc)[2..-1]
    if contains -- -- $words
        return 1
    end
    if test (count $words) -gt 0; and test "$words[1]" = policy; and test (count $words) -gt 1
        echo policy
        echo $words[2]
    else if test (count $words) -gt 0
        echo $words[1]
    end
end

function __curb_words
    set -l path (__curb_path); or return
    __curb_rows Commands $path
    for row in (__curb_rows Options $path)
        set -l parts (string split \t -- $row)
        # "-h,--help" and "--cap [KEY=]SIZE...": the long name
        set -l name (string match -r -- '--[a-z-]+' $parts[1])
        test -n "$name"; and printf '%s\t%s\n' $name "$parts[2]"
    end
end

function __curb_processes
    set -l folders /run/user/(id -u)/curb /tmp/curb-(id -u) "$XDG_RUNTIME_DIR/curb"
    test (id -u) = 0; and set -a folders /run/user/*/curb /tmp/curb-*
    for file in $folders/*.sock
        set -l pid (string match -r '^[0-9]+' (string split -r -m1 / $file)[-1])
        test -r /proc/$pid/comm; and printf '%s\t%s\n' $pid (cat /proc/$pid/comm)
    end | sort -u
end

function __curb_takes_pids
    set -l path (__curb_path); or return 1
    contains -- "$path" ps release cap suspend resume doctor
end

function __curb_takes_files
    set -l path (__curb_path); or return 0
    contains -- "$path[1]" run report replay metrics; or test "$path[1]" = policy -a (count $path) -gt 1
end

# The command of `curb run`, which begins behind --, completes as it would by itself.
function __curb_program
    set -l words (commandline -opc)
    set -l begin (math (contains -i -- -- $words) + 1)
    complete -C (string join ' ' -- $words[$begin..-1] (commandline -ct))
end

complete -c curb -n 'not __curb_takes_files' -f
complete -c curb -a '(__curb_words)'
complete -c curb -n __curb_takes_pids -a '(__curb_processes)'
complete -c curb -n 'contains -- -- (commandline -opc)' -a '(__curb_program)'
