// libconformance_early.so: a library that uses the driver before main and after it, as some language bindings do.
#include <cstdlib>
#include <cstring>

#include "conformance_probe.hpp"

namespace {

bool meant(const char *when) {
    const char *asked = std::getenv("CONFORMANCE_WHEN");
    return asked && std::strcmp(asked, when) == 0;
}

const char *how() {
    conformance::reference = conformance::linked_reference;
    return std::getenv("CONFORMANCE_HOW");
}

__attribute__((constructor)) void constructor() {
    if (meant("constructor")) conformance::answer_requests(how());
}

__attribute__((destructor)) void destructor() {
    if (meant("destructor")) conformance::answer_requests(how());
}

}  // namespace
