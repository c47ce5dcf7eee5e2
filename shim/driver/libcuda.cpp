#include "driver/libcuda.hpp"

#include <dlfcn.h>
#include <link.h>

#include "host/real_libc.hpp"

namespace curb::shim::libcuda {
namespace {

constinit struct {
    const link_map *object = nullptr;
    Range addresses;
} the_library;

}  // namespace

// Two threads may run it at once: both store the same values.
void found(void *handle) noexcept {
    link_map *known = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &known) != 0) return;
    the_library.object = known;
    the_library.addresses = library_around(reinterpret_cast<std::uintptr_t>(known->l_ld));
}

void *function(const char *symbol) noexcept {
    const link_map *object = the_library.object;
    return object ? real::defined_in(object->l_addr, object->l_ld, symbol) : nullptr;
}

Range range() noexcept { return the_library.addresses; }

}  // namespace curb::shim::libcuda
