// Guards curb's own work within a call of the program: it leaves errno as it was, and is no cancellation point. (A
// cancelled thread unwinds its stack, and a noexcept function on it would end the process.) Never around a call of the
// driver that the program makes: it can be cancelled there as without curb.
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
