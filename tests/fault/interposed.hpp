// What libcurb.so asks of libc, failed one after the other: this program stands in front of libc for it. A call counts
// by its return address, so that those of libstdc++ within libcurb.so are among them and those of everybody else are
// not.
#pragma once

#include "program.hpp"

namespace fault {

enum class Kind { allocation, system_call };

// Finds libcurb.so. False: it is not loaded. Before anything is planned.
bool find_library();

// Fault::code: of the errors that a system call may give, the one of this number.
class HostCalls final : public Injector {
  public:
    explicit HostCalls(Kind kind) : kind_(kind) {}
    void plan(const Fault &fault) override;
    // The next one fails that the calling thread makes; those of other threads do not.
    void plan_next_of_this_thread();
    void pause(bool pause) override;
    const char *failed() override;
    std::uint64_t calls() override;

  private:
    void plan(const Fault &fault, bool of_planner);

    Kind kind_;
};

}  // namespace fault
