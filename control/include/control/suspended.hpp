// What has to come back to a suspended process, kept by `curb suspend` for `curb resume`: in files of the process's
// user, because the two are typed in different shells, perhaps by different people, and the first terminal may be gone.
//
// A file stands in every runtime directory that can be had ($XDG_RUNTIME_DIR/curb, /run/user/UID/curb, /tmp/curb-UID):
// logging out takes the one away, tidying up the other. Root reads and writes as the process's user, so that nothing
// that user put in the way is followed with root's rights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/descriptor.hpp"
#include "policy/result.hpp"
#include "policy/size.hpp"

namespace curb::control::suspended {

// A process for as long as it lives: its pid may be another's later.
struct Process {
    int pid = 0;
    std::uint64_t start = 0;  // start_of(pid)
    unsigned uid = 0, gid = 0;
};
// When it was started, in ticks since the machine was; 0: there is no such process, or it has ended and is not yet
// waited for.
std::uint64_t start_of(int pid);

// Just before it was suspended. Sizes in bytes.
struct Gpu {
    std::string uuid;
    policy::Bytes held = 0;  // by the process, as NVML says
    policy::Bytes free = 0;  // of the device
    friend bool operator==(const Gpu &, const Gpu &) = default;
};
using Record = std::vector<Gpu>;

// As it stands in the file, for tests of what others may put there. Nothing: not a record of this process.
std::string text_of(const Process &process, const Record &record);
std::optional<Record> parse(const Process &process, const std::string &text);

// These may throw std::bad_alloc. An error says what cannot be done, where, and the remedy.
std::optional<std::string> write(const Process &process, const Record &record);
std::optional<Record> read(const Process &process);
void remove(const Process &process);
// Takes away what dead processes of the same user have left.
void remove_stale(const Process &process);

// One curb at a time may lock, move and unlock a process: what the other sees as locked is not left over, but work in
// progress. Ends with the object or with its holder.
class Claim {
  public:
    // The error says that another has it, or why it cannot be had.
    static policy::Result<Claim, std::string> take(const Process &process);

  private:
    explicit Claim(std::vector<Descriptor> files) : files_(std::move(files)) {}
    std::vector<Descriptor> files_;  // the files stay until the process has ended: see remove_stale
};

}  // namespace curb::control::suspended
