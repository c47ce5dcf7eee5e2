#include "host/unwinder.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <typeinfo>

// std::terminate calls this. It replaces libstdc++'s own, whose demangler is 47 KB: the type's name is printed as it
// is.
void __gnu_cxx::__verbose_terminate_handler() {
    const std::type_info *thrown = abi::__cxa_current_exception_type();
    dprintf(STDERR_FILENO, "terminate called%s%s\n", thrown ? " after throwing an instance of " : "",
            thrown ? thrown->name() : "");
    std::abort();
}

#ifdef CURB_LINKED_UNWINDER

bool curb::shim::unwinder::load() noexcept { return true; }

#else

#include <dlfcn.h>
#include <unwind.h>

#include <atomic>

#include "base/keep_errno.hpp"
#include "host/real_libc.hpp"

// Every unwinder function that libstdc++ and curb call. Each is defined below as a call of the real one, so that the
// linker adds neither libgcc_s nor libgcc's archive: its unwinder would be a second one in the process and needs
// glibc 2.35.
#define CURB_UNWINDER(ROW)                                                                           \
    ROW(_Unwind_Reason_Code, _Unwind_RaiseException, (_Unwind_Exception * thrown), (thrown))         \
    ROW(_Unwind_Reason_Code, _Unwind_Resume_or_Rethrow, (_Unwind_Exception * thrown), (thrown))      \
    ROW(void, _Unwind_Resume, (_Unwind_Exception * thrown), (thrown))                                \
    ROW(void, _Unwind_DeleteException, (_Unwind_Exception * thrown), (thrown))                       \
    ROW(_Unwind_Reason_Code, _Unwind_Backtrace, (_Unwind_Trace_Fn step, void *into), (step, into))   \
    ROW(void *, _Unwind_GetLanguageSpecificData, (_Unwind_Context * context), (context))             \
    ROW(_Unwind_Ptr, _Unwind_GetRegionStart, (_Unwind_Context * context), (context))                 \
    ROW(_Unwind_Ptr, _Unwind_GetDataRelBase, (_Unwind_Context * context), (context))                 \
    ROW(_Unwind_Ptr, _Unwind_GetTextRelBase, (_Unwind_Context * context), (context))                 \
    ROW(_Unwind_Ptr, _Unwind_GetIP, (_Unwind_Context * context), (context))                          \
    ROW(_Unwind_Ptr, _Unwind_GetIPInfo, (_Unwind_Context * context, int *before), (context, before)) \
    ROW(void, _Unwind_SetIP, (_Unwind_Context * context, _Unwind_Ptr address), (context, address))   \
    ROW(void, _Unwind_SetGR, (_Unwind_Context * context, int number, _Unwind_Word value), (context, number, value))

namespace curb::shim::unwinder {
namespace {

struct Functions {
#define CURB_SLOT(result, name, parameters, arguments) std::atomic<decltype(&::name)> name{nullptr};
    CURB_UNWINDER(CURB_SLOT)
#undef CURB_SLOT
    std::atomic<bool> are_found{false};
};
constinit Functions functions;

template <class F>
bool find(void *library, const char *name, std::atomic<F> &slot) noexcept {
    slot = reinterpret_cast<F>(real::dlsym()(library, name));
    return slot != nullptr;
}

}  // namespace

// Two threads may run this at once: both store the same values. The library stays loaded.
bool load() noexcept {
    if (functions.are_found) return true;
    const KeepErrno keep_errno;
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW);
    bool found = library != nullptr;
#define CURB_FIND(result, name, parameters, arguments) found = found && find(library, #name, functions.name);
    CURB_UNWINDER(CURB_FIND)
#undef CURB_FIND
    if (!found) dlerror();  // clear it: the error is not the program's
    functions.are_found = found;
    return found;
}

}  // namespace curb::shim::unwinder

// A cancelled thread may unwind through curb's frames before curb is active, so each function loads the library itself.
#define CURB_FORWARD(result, name, parameters, arguments) \
    extern "C" result name parameters {                   \
        using namespace curb::shim::unwinder;             \
        if (!load()) std::abort();                        \
        return functions.name.load() arguments;           \
    }
CURB_UNWINDER(CURB_FORWARD)
#undef CURB_FORWARD

#endif
