// libFuzzer over what comes over the control socket, at either end: scripts/fuzz builds and runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "protocol_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *bytes, std::size_t size) {
    const std::string wrong = curb::fuzz::broken_protocol({reinterpret_cast<const char *>(bytes), size});
    if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
        std::abort();
    }
    return 0;
}
