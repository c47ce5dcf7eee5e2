// A preload behind libcurb.so that looks up a symbol with RTLD_NEXT.
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int second_preload_marker() { return 1; }
EXPORT void *second_preload_next_marker() {
    void *volatile next = dlsym(
        RTLD_NEXT, "second_preload_marker");  // volatile: after a tail call RTLD_NEXT would mean next after the caller
    return next;
}
