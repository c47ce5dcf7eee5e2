// Records memory of the virtual memory management calls. Physical memory lives until its last reference (create,
// retain, import) and its last mapping are gone. Programs release a handle right after mapping it, so we count both.
//
// Where memory may be moved, the program's handle is curb's, since the driver gives moved memory another one. Then curb
// has the driver's only reference, and counts the program's.
//
// Source: cuMemRelease, CUDA Driver API 13.0. Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/devices.hpp"

namespace curb::shim::vmm {

struct Memory;                                // physical memory; its last holder credits the device
using Reference = std::shared_ptr<Memory>;    // destroying the last holder may call the driver
using Handle = CUmemGenericAllocationHandle;  // the program's, unless it says the driver's

// Whose handles the program gets.
enum class Handles : std::uint8_t { drivers, curbs };

// Records memory that the driver has made under `handle`, charged to `device`. Returns the program's handle. nullopt if
// host memory is exhausted.
std::optional<Handle> created(Handle drivers, Device &device, Bytes bytes, const CUmemAllocationProp &properties,
                              Handles handles) noexcept;
// Records a handle of the driver that the program imports, and returns the program's. Adds a reference if it is of this
// process's own memory. Other memory gets a record without a charge, because the process that created it is charged.
// `device`: the memory's device; null if unknown.
Handle imported(Handle drivers, Device *device, Handles handles) noexcept;
// Records that other processes may access the memory of this handle.
void exported(Handle handle) noexcept;
// True if other processes may access memory of this one, or it has memory of others.
bool any_shared() noexcept;
// Adds a reference under a handle that the driver returned for the memory mapped at `address`.
void retained(Handle drivers, CUdeviceptr address) noexcept;
// Adds a reference to the memory mapped at `address`, and returns the program's handle. nullopt if the memory has a
// handle of the driver's, or none.
std::optional<Handle> retain(CUdeviceptr address) noexcept;

// The memory of a handle, for a call that takes one. Keeps the memory until the guard ends.
class Named : NoCopy {
  public:
    explicit Named(Handle handle) noexcept;
    // Returns the driver's handle. An unknown handle is the driver's.
    [[nodiscard]] Handle drivers() const noexcept { return drivers_; }
    // Records that the driver uses the memory where curb does not see it: it cannot be moved any more.
    void pin() const noexcept;

  private:
    friend bool mapped(CUdeviceptr address, Bytes bytes, Bytes offset, const Named &memory) noexcept;
    Handle drivers_;
    Reference memory_;
};

// Records a mapping. False if host memory is exhausted.
bool mapped(CUdeviceptr address, Bytes bytes, Bytes offset, const Named &memory) noexcept;
// Records the access that the program has set for the mappings in a range.
void accessible(CUdeviceptr address, Bytes bytes, std::span<const CUmemAccessDesc> access) noexcept;
// Records that the memory mapped at this address is used where curb does not see it.
void pin_at(CUdeviceptr address) noexcept;

// Guards cuMemRelease. Removes a reference before the call, because afterwards the driver may return the handle to
// another thread. Puts it back unless commit() was called.
class Release : NoCopy {
  public:
    explicit Release(Handle handle) noexcept;
    ~Release();
    [[nodiscard]] Ledger *ledger() const noexcept;  // null if the memory is not charged
    // Returns the driver's handle, for the driver to release. nullopt if curb keeps it for other references or
    // mappings.
    [[nodiscard]] std::optional<Handle> drivers() const noexcept { return drivers_; }
    // Call it when the driver has released the handle, or need not.
    void commit() noexcept { reference_.reset(); }

  private:
    Handle handle_;
    std::optional<Handle> drivers_;
    Reference reference_;
};

struct Mapping {
    Reference memory;
    Bytes bytes = 0;
    Bytes offset = 0;                     // in the memory
    std::vector<CUmemAccessDesc> access;  // a row for each location
};
using Mappings = std::map<CUdeviceptr, Mapping>;  // by first address

// Guards cuMemUnmap, which may unmap many mappings. Removes those that begin in the range before the call, and puts
// them back unless commit() was called. Is an operation of each ledger whose memory is mapped there. Allocates nothing.
class Unmapping : NoCopy {
  public:
    Unmapping(CUdeviceptr address, Bytes bytes) noexcept;
    ~Unmapping();
    // Call it when the driver has unmapped the range.
    void commit() noexcept;

  private:
    Mappings removed_;
    std::bitset<devices::kMost> devices_;
};

// ---- moving ----

// Where memory is mapped.
struct Place {
    CUdeviceptr address = 0;
    Bytes bytes = 0, offset = 0;
    std::vector<CUmemAccessDesc> access;
};
// Physical memory of a device that may be released, and made again under another handle.
struct Movable {
    Memory *key = nullptr;
    Device *device = nullptr;
    Bytes bytes = 0;
    CUmemAllocationProp properties{};
    Handle handle = 0;          // the driver's; curb has its only reference
    std::vector<Place> places;  // one or more; the first one maps the whole, and its device may access it
    bool is_block = false;      // a cuMemAlloc of the program, not memory of its own VMM calls
};
// Why memory stays on its device.
enum class Stays : std::uint8_t {
    shared,     // other processes may access it
    pinned,     // a network card, an array or a multicast object may use it
    unmapped,   // it has no address, or only a part of it has one, so it cannot be read
    untracked,  // its handle is the driver's
};
inline constexpr std::size_t kStays = 4;
struct Inventory {
    std::vector<Movable> movable;
    std::array<Bytes, kStays> staying{};
};
// Returns the memory of this process by how it may be moved. Call it with the gate closed and no call under way; the
// keys are valid until the gate opens. May throw std::bad_alloc.
Inventory movables();
using ByDevice = std::array<Bytes, devices::kMost>;
// Returns how many bytes of each device movables() would find movable now. Copies no records. Call it at any time. May
// throw std::bad_alloc.
ByDevice movable_bytes();
// Records the driver's handle of memory that was moved. 0: it is out of its device.
void moved(Memory *key, Handle drivers) noexcept;

}  // namespace curb::shim::vmm
