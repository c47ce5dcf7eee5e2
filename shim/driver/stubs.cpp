#include "driver/stubs.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <array>
#include <climits>
#include <cstdint>
#include <cstring>

#include "base/keep_errno.hpp"
#include "base/libraries.hpp"
#include "host/real_libc.hpp"
#include "host/unwinder.hpp"

namespace curb::shim::stubs {
namespace {

constinit thread_local const Call *innermost = nullptr;

void *other_than(const void *own, void *found) noexcept { return found == own ? nullptr : found; }

// Searches the library's dependencies. Reopening the library makes the loader list them, also for one that was loaded
// only as another's dependency.
void *in_dependencies(const char *path, const char *symbol) noexcept {
    void *library = *path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (!library) return nullptr;
    void *found = real::dlsym()(library, symbol);
    dlclose(library);
    return found;
}

void *find(const char *symbol, const void *own, const void *caller, bool anywhere) noexcept {
    const KeepErrno keep_errno;
    std::array<char, PATH_MAX> path{};  // of the caller's library; empty for the program itself, or if unknown
    void *defined = nullptr;            // the definition in the first library except libcurb.so
    any_library([&](const dl_phdr_info &info) {
        const Range range = range_of(info);
        if (range.has(reinterpret_cast<std::uintptr_t>(&find))) return false;
        if (range.has(reinterpret_cast<std::uintptr_t>(caller)))
            std::strncpy(path.data(), info.dlpi_name, path.size() - 1);
        if (const auto *dynamic = dynamic_of(info); dynamic && !defined)
            defined = real::defined_in(info.dlpi_addr, dynamic, symbol);
        return false;
    });
    void *found = defined ? other_than(own, in_dependencies(path.data(), symbol)) : nullptr;
    // The global scope wins, but we search it last, so that dlerror() has its error.
    dlerror();
    if (void *global = other_than(own, real::dlsym()(RTLD_NEXT, symbol))) return global;
    if (!found && anywhere) found = defined;
    if (found || anywhere) dlerror();
    return found;
}

// The first return address outside libcurb.so.
struct Outside {
    const Range self;
    std::uintptr_t address = 0;
};
_Unwind_Reason_Code step(_Unwind_Context *context, void *into) {
    auto &outside = *static_cast<Outside *>(into);
    const std::uintptr_t address = _Unwind_GetIP(context) - 1;  // inside the call instruction
    if (outside.self.has(address)) return _URC_NO_REASON;
    outside.address = address;
    return _URC_END_OF_STACK;
}

}  // namespace

void *definition(const char *symbol, const void *own, const void *caller) noexcept {
    return find(symbol, own, caller, true);
}
void *definition_in_scope(const char *symbol, const void *own, const void *caller) noexcept {
    return find(symbol, own, caller, false);
}

const void *caller() noexcept {
    if (!unwinder::load()) return nullptr;
    Outside outside{library_around(reinterpret_cast<std::uintptr_t>(&find))};
    _Unwind_Backtrace(step, &outside);
    return reinterpret_cast<const void *>(outside.address);  // NOLINT(performance-no-int-to-ptr)
}

Call::Call(const void *function) noexcept : function_(function), outer_(innermost) { innermost = this; }
Call::~Call() { innermost = outer_; }
bool Call::is_nested() const noexcept {
    for (const Call *call = outer_; call; call = call->outer_)
        if (call->function_ == function_) return true;
    return false;
}

}  // namespace curb::shim::stubs
