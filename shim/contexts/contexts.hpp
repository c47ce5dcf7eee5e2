// The contexts of this process: what each is charged for itself and for its stack, given back when it goes.
//
// A context's cost is told by no argument: that of the first one on a device is measured, the others cost the same
// (measured on an H200). Its stack is the local memory of every thread that can be resident, taken at once when the
// limit rises and given back when it falls. Thread-safe; no lock is held while the driver is called, and a context that
// was asked for lately is found without one.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "devices.hpp"

namespace curb::shim::contexts {

// One context in the life of the process: the driver may use a handle again.
using Id = std::uint64_t;  // 0: none
struct Record;             // what is known of one

// Sleeps for 50 us: another thread makes a context, or credits one.
void wait_a_moment() noexcept;

// The newest context that is recorded.
Id newest() noexcept;

// A new context, for which `cost` has been charged (0: nothing was).
struct New {
    CUcontext context = nullptr;
    Bytes cost = 0;
    bool is_primary = false;
    Id older = ~Id{0};  // newest() when it was not there yet: a record up to this one is an ended context's
};
enum class Made {
    recorded,
    known,      // by another thread that made the same primary context: this charge is one too many
    ended,      // the handle is still recorded for a context that has ended: credit that one first, by ends()
    no_memory,  // of the host for the record: it must be destroyed again
};
Made made(Device &device, const New &context) noexcept;

// cuCtxAttach adds a user to a context, cuCtxDetach takes one away. detached() returns true if that was the last one,
// or the context is not known.
void attached(CUcontext context) noexcept;
bool detached(CUcontext context) noexcept;

// The context has ended: true if the caller is to credit what was in it, and then to call gone(). False: another thread
// has done so, or it is not known. `id` 0: whichever context has the handle.
bool ends(CUcontext context, Id id = 0) noexcept;
// Credits the context itself. False: it was not known.
bool gone(CUcontext context) noexcept;

// Keeps whoever destroys a context from doing so while it lives; short, or around one call of the driver. Empty: the
// context is not known, or about to go.
class Pin {
  public:
    explicit Pin(CUcontext context) noexcept;
    ~Pin();
    Pin(const Pin &) = delete;
    Pin &operator=(const Pin &) = delete;
    explicit operator bool() const noexcept { return id_ != 0; }
    [[nodiscard]] Id id() const noexcept { return id_; }

  private:
    Record *record_ = nullptr;
    Id id_ = 0;
};

// Around the call that may destroy a context: from here on nobody visits it, and those who do have left. Afterwards it
// can be visited again, if it is still there. Null: of none, and takes no lock, as in a fork child, where that may be
// held by a thread that is not there.
class DestroyGuard {
  public:
    explicit DestroyGuard(CUcontext context) noexcept;
    ~DestroyGuard();
    DestroyGuard(const DestroyGuard &) = delete;
    DestroyGuard &operator=(const DestroyGuard &) = delete;
    [[nodiscard]] Id id() const noexcept { return id_; }  // 0: it is not known

  private:
    CUcontext context_;
    Id id_ = 0;
};

// Another context than the thread's current one, made current for a while. Empty: it could not be.
class Current {
  public:
    explicit Current(CUcontext context) noexcept;
    ~Current();
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;
    explicit operator bool() const noexcept { return current_; }

  private:
    CUcontext context_ = nullptr;
    bool pushed_ = false;
    bool current_ = false;
};

// That of a context; 0: it is not known, or about to go.
Id id_of(CUcontext context) noexcept;

struct Known {
    CUcontext context = nullptr;
    Id id = 0;
};
// The contexts of a device. None: one of them is about to go, or there are more than anybody needs.
class All {
  public:
    [[nodiscard]] const Known *begin() const noexcept { return known_.data(); }
    [[nodiscard]] const Known *end() const noexcept { return known_.data() + count_; }
    bool add(const Known &one) noexcept {
        if (count_ == known_.size()) return false;
        known_[count_++] = one;
        return true;
    }

  private:
    std::array<Known, 16> known_{};
    std::size_t count_ = 0;
};
std::optional<All> on(const Device &device) noexcept;
// The device of a context; null: it is not known.
Device *device_of(CUcontext context) noexcept;

// What more a limit of `limit` bytes a thread takes in this context than it has now; 0: nothing, or it is not known.
// `now`: its limit, which is taken for that of the beginning when the context is seen here for the first time.
Bytes stack_growth(CUcontext context, Bytes limit, Bytes now) noexcept;
// That is its limit from here on: charges it, or gives back. Below the limit of the beginning a part of what the
// context itself cost has come back. Returns what has changed, which the caller traces.
struct StackChange {
    std::int64_t stack = 0;
    std::int64_t context = 0;
};
StackChange stack_set(CUcontext context, Bytes limit) noexcept;

// Whether the device's primary context is there. None: the driver does not tell.
std::optional<bool> primary_is_active(const Device &device) noexcept;
// Its handle, without keeping a reference; null: it is not there.
CUcontext primary_of(const Device &device) noexcept;
// The driver has given the program this handle of it.
void note_primary(const Device &device, CUcontext context) noexcept;
// The same by the books, without a call of the driver; null: it is not recorded.
CUcontext recorded_primary(const Device &device) noexcept;

// A context of its own for some of the multiprocessors (a green one): it holds on to the device's primary context, and
// what is allocated in it belongs to that one.
struct Green {
    Device *device = nullptr;     // null: not known
    CUcontext context = nullptr;  // its own; null: not asked for yet
};
void green_made(CUgreenCtx green, const Green &known) noexcept;
void note_green(CUgreenCtx green, CUcontext context) noexcept;
// The primary context that a green one of the current device belongs to; any other context itself.
CUcontext owner_of(CUcontext context) noexcept;
bool has_green() noexcept;  // whether there has been one
// Forgets the green context before the driver destroys it: its handles may come again.
Green green_gone(CUgreenCtx green) noexcept;

}  // namespace curb::shim::contexts

namespace curb::shim {

// The context that is current in this thread; null: none.
CUcontext current_context() noexcept;
// The context that memory allocated now in this thread goes away with.
CUcontext owner_of_memory() noexcept;

}  // namespace curb::shim
