// Who calls: whether an allocation comes from a framework that answers a refusal by giving back what it caches, and by
// asking again. Everybody else takes a refusal for an error.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace curb::shim::caller_match {

// How a framework's allocator reaches the driver.
enum class Way : std::uint8_t {
    none,     // never: no known framework retries such a call
    runtime,  // cuMemAlloc, called by the CUDA runtime
    direct,   // cuMemCreate, called by the framework itself
};

// What is known of the libraries in this process.
struct Known {
    std::array<const char *, 2> frameworks{};  // those that answer; null: one less
    const char *why_not = "no caller known to answer";
};

// Looks for them. Takes the loader's lock, so only on the worker: a thread of the program may hold that while it waits
// for an allocator's.
Known inspect_libraries() noexcept;

// The framework has been asked, and has given back what it caches. Thread-safe.
void note_answer(std::string_view framework) noexcept;
// True if that was within the last 2 seconds: there is nothing left to press for. Thread-safe.
bool answered_just_now(const char *framework) noexcept;

// The framework whose cache this call of a wrapper of ours is to fill; null: another caller, or one that cannot be
// told. Some microseconds: it walks the stack. Takes no lock of ours; the loader's only before glibc 2.35, the one that
// is not held while libraries are initialised.
const char *calling(Way way) noexcept;

}  // namespace curb::shim::caller_match
