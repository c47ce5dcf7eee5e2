// A preload that stands behind libcurb.so and asks for what comes next after itself.
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int second_preload_marker() { return 1; }
EXPORT void *second_preload_next_marker() {
    void *volatile next =
        dlsym(RTLD_NEXT, "second_preload_marker");  // volatile: not a tail call, which would ask for the caller
    return next;
}
