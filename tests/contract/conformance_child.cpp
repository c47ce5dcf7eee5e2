// The program under test: answers requests (conformance_probe.hpp). Once built as it is, once linked with the driver.
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
    return conformance::answer_when(when, how, argv);
}
