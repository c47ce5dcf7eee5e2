#include "trace/stack.hpp"

#include <dlfcn.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

#include "policy/values/words.hpp"

namespace curb::shim::trace::stack {
namespace {

constexpr std::size_t kMostFrames = 48;
constexpr std::size_t kLongestName = 1000;  // of a function; C++ has longer ones
constexpr std::uint64_t kEveryNs = 1'000'000, kAtOnce = 256;

constinit std::atomic<std::uint64_t> due_ns{0};

struct Frames {
    std::array<std::uintptr_t, kMostFrames> calls;
    std::size_t size = 0;
};

_Unwind_Reason_Code step(_Unwind_Context *context, void *into) {
    auto &frames = *static_cast<Frames *>(into);
    const std::uintptr_t back = _Unwind_GetIP(context);
    if (back == 0 || frames.size == kMostFrames) return _URC_END_OF_STACK;
    frames.calls[frames.size++] = back - 1;  // within the call
    return _URC_NO_REASON;
}

std::string hex(std::uintptr_t value) {
    std::array<char, 2 * sizeof value> digits;
    return "0x" + std::string(digits.begin(), std::to_chars(digits.begin(), digits.end(), value, 16).ptr);
}

const void *own_library() noexcept {
    Dl_info self{};
    return dladdr(reinterpret_cast<const void *>(&own_library), &self) != 0 ? self.dli_fbase : nullptr;
}

std::string name_of(std::uintptr_t call, const Dl_info &where) {
    const std::string_view library = policy::file_name(where.dli_fname ? where.dli_fname : "");
    const bool is_named = where.dli_sname && *where.dli_sname && std::strlen(where.dli_sname) <= kLongestName;
    if (!is_named) return std::string(library) + "+" + hex(call - reinterpret_cast<std::uintptr_t>(where.dli_fbase));
    return where.dli_sname + ("+" + hex(call - reinterpret_cast<std::uintptr_t>(where.dli_saddr))) + " (" +
           std::string(library) + ")";
}

}  // namespace

bool may_take(std::uint64_t now_ns) noexcept {
    std::uint64_t due = due_ns;
    while (due <= now_ns + kAtOnce * kEveryNs)
        if (due_ns.compare_exchange_weak(due, std::max(due, now_ns) + kEveryNs)) return true;
    return false;
}

std::string take() {
    Frames frames;
    _Unwind_Backtrace(step, &frames);
    return {reinterpret_cast<const char *>(frames.calls.data()), frames.size * sizeof frames.calls[0]};
}

std::string names_of(std::string_view addresses) {
    const void *own = own_library();
    std::string out;
    for (std::uintptr_t call = 0; addresses.size() >= sizeof call; addresses.remove_prefix(sizeof call)) {
        std::memcpy(&call, addresses.data(), sizeof call);
        Dl_info where{};
        const bool is_known = dladdr(reinterpret_cast<const void *>(call), &where) != 0;
        if (is_known && where.dli_fbase == own) continue;
        if (!out.empty()) out += " < ";
        out += is_known ? name_of(call, where) : hex(call);  // code made at run time has no library
    }
    return out;
}

}  // namespace curb::shim::trace::stack
