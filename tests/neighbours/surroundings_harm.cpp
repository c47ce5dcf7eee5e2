// A library that ends every program in which it is, once /etc/ld.so.preload has been written by curb-preload, which
// keeps a copy of the one before: what passes the check and does harm all the same.
#include <unistd.h>

namespace {
__attribute__((constructor)) void harm() {
    if (access("/etc/ld.so.preload.before-curb", F_OK) == 0) _exit(1);
}
}  // namespace
