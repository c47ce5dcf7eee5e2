// ELF notes of curb's programs and libraries, which can be read without running the file (readelf -n).
#pragma once

namespace curb::control {

inline constexpr char kNoteOwner[] = "curb";
// The types of the notes.
inline constexpr unsigned kVersionNote = 1;  // the version of curb
inline constexpr unsigned kCommandNote = 2;  // a program of curb's own, in which libcurb.so does nothing

}  // namespace curb::control

// Puts a note into the object file. `type` and `text` are string literals without escapes.
#define CURB_NOTE(type, text)                   \
    __asm__(                                    \
        ".pushsection .note.curb,\"a\",%note\n" \
        ".balign 4\n"                           \
        ".long 5, 2f - 1f, " type               \
        "\n"                                    \
        ".asciz \"curb\"\n"                     \
        ".balign 4\n"                           \
        "1: .asciz \"" text                     \
        "\"\n"                                  \
        "2: .balign 4\n"                        \
        ".popsection")
#define CURB_VERSION_NOTE(version) CURB_NOTE("1", version)
#define CURB_COMMAND_NOTE() CURB_NOTE("2", "")
