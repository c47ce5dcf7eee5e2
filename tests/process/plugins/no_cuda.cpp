// A plugin that looks up a function, but none of the driver's.
#include <dlfcn.h>

namespace {
void *found = nullptr;
}

extern "C" __attribute__((visibility("default"))) int plugin_allocates() {
    found = dlsym(RTLD_DEFAULT, "malloc");
    return found ? 0 : 1;
}
