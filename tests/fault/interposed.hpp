// Makes calls of libcurb.so to libc fail, one after the other: this program interposes the functions. A call counts if
// its return address is in libcurb.so, which includes the libstdc++ within it and excludes all other callers.
#pragma once

#include "program.hpp"

namespace fault {

enum class Kind { allocation, system_call };

// Finds libcurb.so. Call it before plan(). False if libcurb.so is not loaded.
bool find_library();

// Fault::code is the number of an error in the system call's list.
class HostCalls final : public Injector {
  public:
    explicit HostCalls(Kind kind) : kind_(kind) {}
    void plan(const Fault &fault) override;
    // Makes the next call of the calling thread fail, and none of other threads.
    void plan_next_of_this_thread();
    void pause(bool pause) override;
    const char *failed() override;
    std::uint64_t calls() override;

  private:
    void plan(const Fault &fault, bool of_planner);

    Kind kind_;
};

}  // namespace fault
