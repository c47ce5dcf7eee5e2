// A plugin that does something as it is loaded, with the loader's lock held: what the program says.
#include <cstdlib>

namespace {
[[gnu::constructor]] void at_load() {
    if (const char *address = std::getenv("CURB_AT_LOAD"))
        reinterpret_cast<void (*)()>(std::strtoull(address, nullptr, 10))();
}
}  // namespace
