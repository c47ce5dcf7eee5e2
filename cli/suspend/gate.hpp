// The gate of a process under curb: while it is closed, the process's CUDA calls wait in libcurb.so. While the process
// is out of its GPUs, the driver would end it at a synchronisation or a query.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "control/status.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::cli {

class Gate {
  public:
    explicit Gate(int pid) : pid_(pid) {}
    // Opens the gate, unless leave_closed() was called.
    ~Gate();
    Gate(const Gate &) = delete;
    Gate &operator=(const Gate &) = delete;

    // Closes the gate and waits, at most `patience`, for the calls that must return first. Returns why the process
    // cannot be moved, and the remedy. nullopt if it can. `force`: accepts that calls may bypass the gate.
    std::optional<std::string> close(policy::Duration patience, bool force);
    // Has the process move out what curb itself can move, or takes over such a nap, and keeps that out as close() keeps
    // the gate closed. Returns the nap. nullopt if nothing has left so within `patience`: then the gate is as before.
    std::optional<control::NapStatus> move_lightly(policy::Duration patience);
    // Makes a napping process stay out until it is resumed. False if it does not nap.
    [[nodiscard]] bool turn_nap_into_suspend();
    // Asks the process to keep the gate closed. Call it at least once a second until the process is out: after 3 s
    // without a request the process opens the gate, since curb may have been killed.
    void keep_closed();
    // Leaves the gate closed when this object is destroyed. Call it when the process is out.
    void leave_closed();
    // Reports to the process how many bytes the driver has moved to host memory: for its trace, and because what
    // move_lightly() has moved is out until `curb resume` then. Does nothing before leave_closed().
    void report(policy::Bytes moved) const;
    // True if the process's calls wait.
    [[nodiscard]] bool is_closed() const { return closed_; }

  private:
    int pid_;
    bool closed_ = false, is_left_ = false, is_light_ = false;
    std::chrono::steady_clock::time_point asked_;
};

// Makes the process begin a nap and waits, at most `patience`, until it is out of its GPUs. Returns the bytes that it
// has moved, or why it has not left.
policy::Result<policy::Bytes, std::string> begin_nap(int pid, policy::Duration patience);

// True if the process is out by move_lightly() and stays out.
bool is_kept_out(int pid);
// Has a process bring back what curb itself has moved, and waits, at most `patience`, until it has. `took`: the time of
// the driver's part. nullopt if nothing is out. Else returns that nap, or why it has not ended.
std::optional<policy::Result<control::NapStatus, std::string>> end_light_nap(int pid, policy::Duration patience,
                                                                             policy::Duration took = {});

// Opens the gate of a process that runs again. `took`: the time of the resume. (If the process does not answer, its
// next CUDA call opens the gate 0.1 s later.)
void open_gate(int pid, policy::Duration took);

}  // namespace curb::cli
