// The version of curb in a program or library, as an ELF note: it can be read without running the file (readelf -n).
#pragma once

namespace curb::control {

inline constexpr char kNoteOwner[] = "curb";
inline constexpr unsigned kVersionNote = 1;  // the note's type

}  // namespace curb::control

// Puts the note into the object file. `version` is a string literal without escapes.
#define CURB_VERSION_NOTE(version)              \
    __asm__(                                    \
        ".pushsection .note.curb,\"a\",%note\n" \
        ".balign 4\n"                           \
        ".long 5, 2f - 1f, 1\n"                 \
        ".asciz \"curb\"\n"                     \
        ".balign 4\n"                           \
        "1: .asciz \"" version                  \
        "\"\n"                                  \
        "2: .balign 4\n"                        \
        ".popsection")
