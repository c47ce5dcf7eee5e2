// A trace's file, written in whole lines. No problem with the file may affect the program.
//
// Uses write(2), not mmap: a full disk or a truncated file would raise SIGBUS in the program. One thread uses it, with
// all signals blocked, so that SIGXFSZ, which goes to the writing thread, stays pending there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "policy/values/result.hpp"

namespace curb::shim::trace {

// Gives the calling thread its own empty descriptor table. The program then cannot close the thread's descriptors or
// get the same numbers, fork children inherit none, and none counts against the program's limit. False if the kernel
// forbids it (before Linux 5.9, or in a sandbox): the thread then shares the program's table.
bool leave_programs_descriptors() noexcept;

class File {
  public:
    File() noexcept = default;
    // Creates an empty file. A regular file at `path` is unlinked first and never truncated or written to. A link, a
    // pipe or a device at `path` is an error, so no symbolic link is followed. The error gives the reason and the
    // remedy. May throw std::bad_alloc.
    static policy::Result<File, std::string> make(const std::string &path);

    explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

    struct Appended {
        std::size_t bytes = 0;  // of `lines` written, as whole lines
        std::string error;      // the reason if not all were written
        bool ended = false;     // true if another attempt is useless
    };
    // Appends lines. Fails if others have removed, truncated or written to the file. May throw std::bad_alloc.
    Appended append(std::string_view lines);

  private:
    [[nodiscard]] const char *what_others_did() const noexcept;

    control::Descriptor descriptor_;
    std::string path_;
    std::uint64_t bytes_ = 0;
};

}  // namespace curb::shim::trace
