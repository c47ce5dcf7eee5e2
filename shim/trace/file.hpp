// The file of a trace, in whole lines, within a program that knows nothing of it: whatever happens to the file, the
// program does not notice.
//
// Written by write(2), never mapped: a full disk, or a file that somebody truncates, would be a SIGBUS in the program.
// Used by one thread, with all signals blocked: SIGXFSZ, which goes to the thread that writes, stays pending there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "policy/result.hpp"

namespace curb::shim::trace {

// Gives the calling thread a table of descriptors of its own, without any in it: the program can neither close its
// descriptors nor find its own under their numbers, a fork child inherits none, and none counts against its limit.
// False: the kernel does not let us (before Linux 5.9, or in a sandbox); then the table stays the program's.
bool leave_programs_descriptors() noexcept;

class File {
  public:
    File() noexcept = default;
    // A new file, empty. What stands at `path` is replaced if it is a regular file: it is unlinked, and made anew as
    // one that is not there, so no symbolic link is followed and nobody's file is truncated or written to; a link, a
    // pipe or a device is refused. The error says why there is none, and what to do. May throw std::bad_alloc.
    static policy::Result<File, std::string> make(const std::string &path);

    explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

    struct Appended {
        std::size_t bytes = 0;  // of `lines` that are in the file now, as whole lines
        std::string error;      // why that is not all of them
        bool ended = false;     // and there is no use in trying again
    };
    // Looks first whether the file is as it was left: one that others have removed, truncated or written to is not
    // written to again. May throw std::bad_alloc.
    Appended append(std::string_view lines);

  private:
    [[nodiscard]] const char *what_others_did() const noexcept;

    control::Descriptor descriptor_;
    std::string path_;
    std::uint64_t bytes_ = 0;
};

}  // namespace curb::shim::trace
