// libconformance_user.so: a program's library, opened RTLD_LOCAL and linked with the stubs instead of the driver. It
// answers in the child's place.
#include "conformance_probe.hpp"

extern "C" __attribute__((visibility("default"))) int conformance_user(const char *when, const char *how, char **argv) {
    conformance::reference = conformance::linked_reference;
    return conformance::answer_when(when, how, argv);
}
