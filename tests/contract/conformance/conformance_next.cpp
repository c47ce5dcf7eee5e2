// libconformance_next.so: another preload, which looks up the functions behind it.
#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

// volatile prevents a tail call, after which dlsym would look up behind the caller.
EXPORT void *conformance_next(const char *symbol, const char *) {
    void *volatile next = dlsym(RTLD_NEXT, symbol);
    return next;
}
EXPORT void *conformance_versioned_next(const char *symbol, const char *version) {
    void *volatile next = dlvsym(RTLD_NEXT, symbol, version);
    return next;
}
