// libconformance_user.so: a library of a program's, opened RTLD_LOCAL, that is linked with the stubs and not with the
// driver. The child has it answer in its place.
#include "conformance_probe.hpp"

extern "C" __attribute__((visibility("default"))) int conformance_user(const char *when, const char *how, char **argv) {
    conformance::reference = conformance::linked_reference;
    return conformance::answer_when(when, how, argv);
}
