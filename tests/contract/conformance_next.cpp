// libconformance_next.so: another preload, which asks for what stands behind it.
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

// volatile: not a tail call, which would ask for the caller.
EXPORT void *conformance_next(const char *symbol, const char *) {
    void *volatile next = dlsym(RTLD_NEXT, symbol);
    return next;
}
EXPORT void *conformance_versioned_next(const char *symbol, const char *version) {
    void *volatile next = dlvsym(RTLD_NEXT, symbol, version);
    return next;
}
