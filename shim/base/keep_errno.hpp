// Guard for curb's own work inside a call of the program: restores errno and disables thread cancellation. (Cancelling
// unwinds the stack, and a noexcept function on it would end the process.) Do not hold it around the driver call that
// the program asked for: the thread must stay cancellable there, as without curb.
#pragma once

#include <pthread.h>

#include <cerrno>

#include "base/lifetime.hpp"

namespace curb::shim {

class KeepErrno : NoCopy {
  public:
    KeepErrno() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation_); }
    ~KeepErrno() {
        int previous = 0;
        pthread_setcancelstate(cancellation_, &previous);
        errno = saved_;
    }

  private:
    int saved_ = errno;
    int cancellation_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace curb::shim
