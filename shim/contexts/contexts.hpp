// The contexts of this process, with the charge for each context and for its stack.
//
// No argument gives a context's cost: curb measures the first one on a device, and the others cost the same (measured
// on an H200). The stack is the local memory of every thread that can be resident; the driver allocates all of it when
// the limit rises and frees it when the limit falls. Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <optional>
#include <vector>

#include "base/table.hpp"
#include "device/devices.hpp"

namespace curb::shim::contexts {

// Identifies one context for the life of the process. Handles do not, because the driver reuses them. 0: none.
using Id = std::uint64_t;

// Time between two checks while another thread creates or credits a context.
inline constexpr std::uint64_t kMomentUs = 50;

// Returns the Id of the newest recorded context.
Id newest() noexcept;

// A new context. `cost`: the bytes charged for it.
struct New {
    CUcontext context = nullptr;
    Bytes cost = 0;
    bool is_primary = false;
    Id older = ~Id{0};  // newest() before its creation: a record with an Id up to this is of a context that has ended
};
enum class Added {
    recorded,
    known,      // another thread recorded the same primary context: credit this charge again
    ended,      // the handle is still recorded for a context that has ended: credit that one first, by claim_end()
    no_memory,  // no host memory for the record: destroy the context again
};
Added add(Device &device, const New &context) noexcept;

// Count the users of a context, for cuCtxAttach and cuCtxDetach. detached() returns true if that was the last user or
// if the context is unknown.
void attached(CUcontext context) noexcept;
bool detached(CUcontext context) noexcept;

// Call it when a context has ended. True if the caller must credit the memory in it and then call remove(). False if
// another thread has done that, or if the context is unknown. `id` 0: the context that has the handle now.
bool claim_end(CUcontext context, Id id = 0) noexcept;
// Credits the context itself and removes its record. False if it is unknown.
bool remove(CUcontext context) noexcept;

// Keeps other threads from destroying a context during the guard's lifetime. Hold it briefly, or for one driver call.
// Empty if the context is unknown or about to be destroyed.
class Pin : NoCopy {
  public:
    explicit Pin(CUcontext context) noexcept;
    ~Pin();
    explicit operator bool() const noexcept { return id_ != 0; }
    [[nodiscard]] Id id() const noexcept { return id_; }

  private:
    CUcontext context_;
    Id id_ = 0;
};

// Guards a call that may destroy a context. Waits until no thread pins it and prevents new pins. Afterwards threads can
// pin it again if it still exists. With a null context it does nothing and takes no lock: in a fork child a thread that
// no longer exists may hold the lock.
class DestroyGuard : NoCopy {
  public:
    explicit DestroyGuard(CUcontext context) noexcept;
    ~DestroyGuard();
    [[nodiscard]] Id id() const noexcept { return id_; }  // 0 if the context is unknown

  private:
    CUcontext context_;
    Id id_ = 0;
};

// Makes a context current in this thread during the guard's lifetime. Empty if that fails.
class Current : NoCopy {
  public:
    explicit Current(CUcontext context) noexcept;
    ~Current();
    explicit operator bool() const noexcept { return current_; }

  private:
    CUcontext context_ = nullptr;
    bool pushed_ = false;
    bool current_ = false;
};

// Returns the context's Id; 0 if it is unknown or about to be destroyed.
Id id_of(CUcontext context) noexcept;

struct Known {
    CUcontext context = nullptr;
    Id id = 0;
};
// Returns the contexts of the device. nullopt if one of them is about to be destroyed, or if host memory is exhausted.
std::optional<std::vector<Known>> on(const Device &device) noexcept;
// Returns the device of a context; null if it is unknown.
Device *device_of(CUcontext context) noexcept;

// Returns the bytes by which a stack limit of `limit` bytes per thread would raise the context's memory; 0 if none or
// if it is unknown. `now`: the present limit, recorded as the initial one at the first call for this context.
Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept;
// Records the new stack limit, and charges or credits the difference. Below the initial limit it credits a part of the
// context's own cost. Returns the changes, which the caller traces.
struct StackChange {
    std::int64_t stack = 0;
    std::int64_t context = 0;
};
StackChange stack_set(CUcontext context, Bytes limit) noexcept;

// True if the device's primary context is active. nullopt if the driver fails.
std::optional<bool> primary_is_active(const Device &device) noexcept;
// Returns the handle of the active primary context, and keeps no reference. Null if it is not active. Calls the driver.
CUcontext primary_of(const Device &device) noexcept;
// Stores the handle that the driver returned to the program.
void note_primary(const Device &device, CUcontext context) noexcept;
// Returns the recorded handle without calling the driver; null if none is recorded.
CUcontext recorded_primary(const Device &device) noexcept;

// A green context (for some of the multiprocessors). It keeps the device's primary context alive, and memory allocated
// in it belongs to the primary context.
struct Green {
    Device *device = nullptr;     // null if unknown
    CUcontext context = nullptr;  // its CUcontext; null until the program asks for it
};
using Greens = Table<CUgreenCtx, Green>;
void green_made(CUgreenCtx green, Device &device) noexcept;
void note_green(CUgreenCtx green, CUcontext context) noexcept;
// Returns the primary context for a green context of the current device, and any other context itself.
CUcontext owner_of(CUcontext context) noexcept;
bool has_green() noexcept;  // true once the program has asked for the CUcontext of a green context
// Removes the record until the Removal ends; for a call that may destroy the green context.
Greens::Removal remove_green(CUgreenCtx green) noexcept;

}  // namespace curb::shim::contexts

namespace curb::shim {

// Returns the thread's current context; null if none. Calls the driver.
CUcontext current_context() noexcept;
// Returns the context whose destruction frees memory that this thread allocates now.
CUcontext owner_of_memory() noexcept;
// The current device, and owner_of_memory(). Both null if no context is current or CUDA is not initialised. Calls the
// driver, once if the process sees one device.
struct MemoryOwner {
    Device *device = nullptr;
    CUcontext context = nullptr;
};
MemoryOwner memory_owner() noexcept;

}  // namespace curb::shim
