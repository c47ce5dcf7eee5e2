# fish completion for curb(1). fish finds it in share/fish/vendor_completions.d.
#
# `curb --complete WORDS...` prints what may stand in the place of the last word. It asks neither processes nor the
# driver, which might make the shell wait.
function __curb_complete
    command -q curb; or return
    set -l words (commandline -opc)[2..]
    set -l typed (commandline -ct)
    set -l answer (curb --complete $words "$typed" 2>/dev/null </dev/null)
    if test "$answer[1]" = :files
        __fish_complete_path (string replace -r '^-[^=]*=' '' -- "$typed")
    else if set -l at (string match -rg '^:command (.*)' -- "$answer[1]")
        complete --do-complete=(string join ' ' -- (string escape -- $words[(math $at + 1)..]) "$typed")
    else
        string join \n -- $answer
    end
end

complete -c curb -f -a '(__curb_complete)'
