// errno is the program's: what curb does within one of its calls leaves it as it was.
#pragma once

#include <cerrno>

namespace curb::shim {

class KeepErrno {
  public:
    KeepErrno() noexcept = default;
    ~KeepErrno() { errno = saved_; }
    KeepErrno(const KeepErrno &) = delete;
    KeepErrno &operator=(const KeepErrno &) = delete;

  private:
    int saved_ = errno;
};

}  // namespace curb::shim
