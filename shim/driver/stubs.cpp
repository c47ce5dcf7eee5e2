#include "stubs.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <array>
#include <climits>
#include <cstdint>
#include <cstring>

#include "keep_errno.hpp"
#include "range.hpp"
#include "real_libc.hpp"
#include "unwinder.hpp"

namespace curb::shim::stubs {
namespace {

constinit thread_local const Call *innermost = nullptr;

// The result of one pass over the loaded libraries. The pass must not allocate: dl_iterate_phdr holds a loader lock
// that the program's allocator may wait for.
struct Pass {
    const char *symbol;
    std::uintptr_t caller;
    std::array<char, PATH_MAX> path{};  // of the caller's library; empty for the program itself, or if unknown
    void *defined = nullptr;            // the definition in the first library except libcurb.so
};

int inspect(dl_phdr_info *info, std::size_t, void *into) {
    auto &pass = *static_cast<Pass *>(into);
    const Range range = range_of(*info);
    if (range.has(reinterpret_cast<std::uintptr_t>(&inspect))) return 0;
    if (range.has(pass.caller)) std::strncpy(pass.path.data(), info->dlpi_name, pass.path.size() - 1);
    for (int i = 0; i < info->dlpi_phnum && !pass.defined; ++i)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            pass.defined = real::defined_in(
                info->dlpi_addr, reinterpret_cast<const ElfW(Dyn) *>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
                pass.symbol);
    return 0;
}

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
    Pass pass{symbol, reinterpret_cast<std::uintptr_t>(caller)};
    dl_iterate_phdr(inspect, &pass);
    void *found = pass.defined ? other_than(own, in_dependencies(pass.path.data(), symbol)) : nullptr;
    // The global scope wins, but we search it last, so that dlerror() has its error.
    dlerror();
    if (void *global = other_than(own, real::dlsym()(RTLD_NEXT, symbol))) return global;
    if (!found && anywhere) found = pass.defined;
    if (found || anywhere) dlerror();
    return found;
}

// The first return address outside libcurb.so.
struct Outside {
    Range self;
    std::uintptr_t address = 0;
};
int find_self(dl_phdr_info *info, std::size_t, void *into) {
    auto &self = static_cast<Outside *>(into)->self;
    self = range_of(*info);
    return self.has(reinterpret_cast<std::uintptr_t>(&find_self)) ? 1 : 0;
}
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
    Outside outside;
    dl_iterate_phdr(find_self, &outside);
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
