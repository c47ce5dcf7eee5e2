// Finds out whether an allocation comes from a framework that frees its cache and retries when it is refused. Other
// callers treat a refusal as an error.
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

// The frameworks found in this process.
struct Known {
    std::array<const char *, 2> frameworks{};  // those that retry; null: none
    const char *why_not = "no caller known to answer";
};

// Finds them among the loaded libraries. Takes the loader's lock, so call it on the worker only: a thread of the
// program may hold that lock while it waits for an allocator's.
Known inspect_libraries() noexcept;

// Notes that the framework has freed its cache on request. Thread-safe.
void note_answer(std::string_view framework) noexcept;
// True if that was within the last 2 seconds: its cache is still empty. Thread-safe.
bool answered_just_now(const char *framework) noexcept;

// Returns the framework whose allocator called this hook. nullptr for another or an unknown caller. Walks the stack,
// which takes some microseconds. Before glibc 2.35 it takes the loader's lock of the list of libraries, but not the one
// that is held while libraries are initialised.
const char *calling(Way way) noexcept;

}  // namespace curb::shim::caller_match
