// libFuzzer over the reader of traces, and what is made of them: scripts/fuzz builds and runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "trace_read_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *bytes, std::size_t size) {
    const std::string wrong = curb::fuzz::broken_trace({reinterpret_cast<const char *>(bytes), size});
    if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
        std::abort();
    }
    return 0;
}
