// What curb does within one of the program's calls leaves errno as it was, and is no cancellation point: to cancel a
// thread is to unwind its stack, which a function that must not throw answers by ending the process. A call that the
// program makes of the driver stays what it is without curb, so no guard is around it.
#pragma once

#include <pthread.h>

#include <cerrno>

namespace curb::shim {

class KeepErrno {
  public:
    KeepErrno() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation_); }
    ~KeepErrno() {
        int ours = 0;
        pthread_setcancelstate(cancellation_, &ours);
        errno = saved_;
    }
    KeepErrno(const KeepErrno &) = delete;
    KeepErrno &operator=(const KeepErrno &) = delete;

  private:
    int saved_ = errno;
    int cancellation_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace curb::shim
