// The gate of a process under curb: while it is closed, the process's calls wait in libcurb.so instead of reaching the
// driver, which would end the process at a synchronisation or a query while it is out of its GPUs.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "policy/duration.hpp"
#include "policy/result.hpp"
#include "policy/size.hpp"

namespace curb::cli {

class Gate {
  public:
    explicit Gate(int pid) : pid_(pid) {}
    // Opens the gate, unless it must stay closed.
    ~Gate();
    Gate(const Gate &) = delete;
    Gate &operator=(const Gate &) = delete;

    // Closes the gate and waits, at most `patience`, until no call is under way that must return before. Returns why
    // the process cannot be moved, and the remedy; nullopt if it can be. `force`: goes on where only calls past the
    // gate are feared.
    std::optional<std::string> close(policy::Duration patience, bool force);
    // True if the process was out by a nap: now it stays out until it is resumed.
    [[nodiscard]] bool turn_nap_into_suspend();
    // Asks the process to keep it closed. Called at least each second until the process is out: without these requests
    // it opens the gate by itself, since curb may have been killed.
    void keep_closed();
    // The process is out: the gate stays closed when this object goes.
    void leave_closed();
    // Reports to a process that was left so how many bytes are in host memory, for its trace.
    void report(policy::Bytes moved) const;
    // True if the process's calls wait now.
    [[nodiscard]] bool is_closed() const { return closed_; }

  private:
    int pid_;
    bool closed_ = false, is_left_ = false;
    std::chrono::steady_clock::time_point asked_;
};

// Has the process begin a nap, and waits until it is out of its GPUs, at most `patience`. Returns the bytes that it has
// moved, or why it stays.
policy::Result<policy::Bytes, std::string> begin_nap(int pid, policy::Duration patience);

// Opens the gate of a process that runs again; `took`: the way back. (If it cannot be asked, its next call opens it,
// 0.1 s later.)
void open_gate(int pid, policy::Duration took);

}  // namespace curb::cli
