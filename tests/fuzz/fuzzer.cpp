// Runs the checks of any text (CURB_CHECKS) on the inputs of libFuzzer. scripts/fuzz builds and runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include CURB_CHECKS

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *bytes, std::size_t size) {
    const std::string wrong = curb::fuzz::broken({reinterpret_cast<const char *>(bytes), size});
    if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
        std::abort();
    }
    return 0;
}
