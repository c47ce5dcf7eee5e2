// The program under test: answers requests (conformance_probe.hpp), or has the library CONFORMANCE_USER answer them.
// Built three times: alone, linked with the driver, and linked with the stubs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "conformance_probe.hpp"

int main(int, char **argv) {
    const char *when = std::getenv("CONFORMANCE_WHEN"), *how = std::getenv("CONFORMANCE_HOW");
    if (!when || !how) {
        std::fputs("started by conformance\n", stderr);
        return 2;
    }
#ifdef CONFORMANCE_LINKED
    conformance::reference = conformance::linked_reference;
#endif
    if (const char *user = std::getenv("CONFORMANCE_USER")) {
        void *library = dlopen(user, RTLD_NOW | RTLD_LOCAL);
        if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 2;
        using Answer = int(const char *, const char *, char **);
        return reinterpret_cast<Answer *>(dlsym(library, "conformance_user"))(when, how, argv);
    }
    return conformance::answer_when(when, how, argv);
}
