// A plugin whose constructor, under the loader's lock, calls the function whose address is in CURB_AT_LOAD.
#include <cstdlib>

namespace {
[[gnu::constructor]] void at_load() {
    if (const char *address = std::getenv("CURB_AT_LOAD"))
        reinterpret_cast<void (*)()>(std::strtoull(address, nullptr, 10))();
}
}  // namespace
