// The record of a suspended process: the memory that it needs back. `curb suspend` writes it and `curb resume` reads
// it, perhaps in another shell and by another user, so it is a file of the process's user.
//
// The file is written to every runtime directory that can be used ($XDG_RUNTIME_DIR/curb, /run/user/UID/curb,
// /run/curb/UID, /tmp/curb-UID or a spare): a logout deletes the one, a clean-up of /tmp the other. Root reads and
// writes with the rights of the process's user, so that it does not follow that user's symbolic links with its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/descriptor.hpp"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::control::suspended {

// Identifies a process: its pid may be another's later.
struct Process {
    int pid = 0;
    std::uint64_t start = 0;  // start_of(pid)
    unsigned uid = 0, gid = 0;
};
// Returns the start of the process in clock ticks since boot. 0 if there is no such process, or if it is a zombie.
std::uint64_t start_of(int pid);
// True if the process with that start has ended. False if /proc cannot be read (no free descriptor). Changes errno.
bool has_ended(int pid, std::uint64_t start) noexcept;

// The end of the file's name, which begins with the process's pid.
inline constexpr const char *kRecordName = ".suspended.json";

// One device just before the suspend. Sizes in bytes.
struct Gpu {
    std::string uuid;
    policy::Bytes held = 0;  // by the process, as NVML reports
    policy::Bytes free = 0;  // of the device
    friend bool operator==(const Gpu &, const Gpu &) = default;
};
using Record = std::vector<Gpu>;

// The text of the file, and back. parse() returns nullopt if the text is not a record of this process. For tests.
std::string text_of(const Process &process, const Record &record);
std::optional<Record> parse(const Process &process, const std::string &text);

// These may throw std::bad_alloc. write() returns the error, what failed and where; nullopt if one directory has the
// record. read() returns nullopt if none has it.
std::optional<std::string> write(const Process &process, const Record &record);
std::optional<Record> read(const Process &process);
void remove(const Process &process);
// Deletes the files of dead processes of the same user.
void remove_stale(const Process &process);

// Lets one curb at a time lock, move and unlock a process: a process that is locked under a claim is work in progress,
// not left over. Ends with the object, or with the process that holds it.
class Claim {
  public:
    static constexpr const char *kTaken = "another curb is suspending or resuming it right now; let it finish";

    // Waits up to `patience` for another curb that has the claim. The error says that it still has it, or why the claim
    // cannot be made. A user can lock these files for ever, so root waits 10 s at least for those of another user, and
    // then has a claim that is not alone.
    static policy::Result<Claim, std::string> take(const Process &process, std::chrono::milliseconds patience = {});

    // False if another process of the user has the files too. If it is a curb, it may have locked the process.
    [[nodiscard]] bool is_alone() const { return is_alone_; }

  private:
    Claim(std::vector<Descriptor> files, bool is_alone) : files_(std::move(files)), is_alone_(is_alone) {}
    std::vector<Descriptor> files_;  // the files stay until the process has ended: see remove_stale
    bool is_alone_;
};

}  // namespace curb::control::suspended
