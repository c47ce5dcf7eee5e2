// Records the blocks of cuMemAlloc that curb has made by virtual memory management, and those of other processes that
// this one has opened. The charge of its own is in allocations::.
//
// Thread-safe. Each call takes a lock. Only BlockRemoval::commit() calls the driver, and the last Reference.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "accounting/vmm.hpp"
#include "control/runtime_dir.hpp"

namespace curb::shim::vmm {

struct Block {
    CUdeviceptr start = 0;
    Device *device = nullptr;
    CUcontext context = nullptr;  // its end frees the block
    Bytes asked = 0, bytes = 0;   // by the program; mapped, in granules
    std::uint64_t id = 0;         // no other block of this process has it; 0: it is another process's
};

// True if there are blocks. Takes no lock.
bool any_blocks() noexcept;
// Records a block, with curb's reference of its physical memory. False if host memory is exhausted.
bool add_block(const Block &block, Handle drivers, const CUmemAllocationProp &properties,
               const CUmemAccessDesc &access) noexcept;
// Returns the block that has this address in its granules; nullopt if there is none.
std::optional<Block> block_around(CUdeviceptr address) noexcept;
// True if a block has an address of this range.
bool any_block_in(CUdeviceptr address, Bytes bytes) noexcept;
// Returns the first block of the device that starts above `after`; nullopt after the last one.
std::optional<Block> next_block_on(const Device &device, CUdeviceptr after) noexcept;
// Records access that was set for the block at `start`. False if host memory is exhausted.
bool block_accessible(CUdeviceptr start, const CUmemAccessDesc &access) noexcept;

// Answers of the driver that must not change when the memory is moved.
enum class BlockId : std::uint8_t { buffer, memory_block };
inline constexpr std::size_t kBlockIds = 2;
// Returns the first answer that the program got for the block at `start`; that is `drivers` if it has not asked before.
std::uint64_t block_id(CUdeviceptr start, BlockId which, std::uint64_t drivers) noexcept;
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as the program has set it for the block at `start`; nullopt if it has not.
void set_sync_memops(CUdeviceptr start, unsigned value) noexcept;
std::optional<unsigned> sync_memops(CUdeviceptr start) noexcept;

// ---- blocks that other processes have open ----

// True if the driver can give a descriptor of the block's memory.
bool is_exportable(CUdeviceptr start) noexcept;

struct Opening {
    std::uint64_t number = 0;
    control::ProcessName by;  // pid 0: it is not visible here
};
// A block that another process opens: its memory, which stays while this exists.
struct Lent {
    std::uint64_t opening = 0;
    Reference memory;
    Handle handle = 0;  // the driver's
};
// Records that a process opens the block with this start and id. nullopt if it is gone, or host memory is exhausted.
std::optional<Lent> lend(CUdeviceptr start, std::uint64_t id, const control::ProcessName &to) noexcept;
// Records that it has closed the block.
void returned(CUdeviceptr start, std::uint64_t opening) noexcept;
// Forgets what processes had open that have ended. Reads /proc, under no lock. May throw std::bad_alloc.
void forget_ended_openings();
// True if another process has a block open, as far as this process knows.
bool any_lent() noexcept;

// ---- blocks of other processes ----

// What a program passes to open a block: the bytes of its CUipcMemHandle.
using ImportName = std::array<unsigned char, 64>;
struct Import {
    ImportName name{};
    std::uint64_t opening = 0;  // in the process that made it
    unsigned opens = 1;         // by the program
};
// Records a block of another process. Returns its address. If another thread has opened it in the same context
// meanwhile, counts that once more and returns its address. 0 if host memory is exhausted.
CUdeviceptr add_import(const Block &block, Handle drivers, const CUmemAccessDesc &access,
                       const Import &import) noexcept;
// Counts an open of a block that is open in this context, and returns its address; 0 if it is not.
CUdeviceptr open_again(const ImportName &name, CUcontext context) noexcept;
// True if the block is open here by this opening.
bool is_open_as(CUdeviceptr start, std::uint64_t opening) noexcept;
// Counts a close. False if it is the last one: then close by BlockRemoval.
bool close_one(CUdeviceptr start) noexcept;

struct BlockRecord {
    Block block;
    Reference memory;  // without a device, so that it credits nothing
    std::vector<CUmemAccessDesc> access;
    std::array<std::uint64_t, kBlockIds> ids{};  // 0: not asked for
    std::optional<unsigned> sync_memops;
    std::vector<Opening> openings;   // of a block of this process
    std::unique_ptr<Import> import;  // null: it is this process's
};
using BlockRecords = std::map<CUdeviceptr, BlockRecord>;  // by start

// Guards a free. Removes the block before the call, because afterwards the driver may give its address to another
// thread. Puts it back unless commit() was called.
class BlockRemoval : NoCopy {
  public:
    explicit BlockRemoval(CUdeviceptr start) noexcept;  // the block at `start`, if no other open of it is left
    explicit BlockRemoval(CUcontext context) noexcept;  // a block of this context
    ~BlockRemoval();
    explicit operator bool() const noexcept { return !removed_.empty(); }
    [[nodiscard]] const Block *operator->() const noexcept { return &removed_.begin()->second.block; }
    [[nodiscard]] const Import *import() const noexcept { return removed_.begin()->second.import.get(); }
    // Takes the driver's handle out of the record, for the caller to release. 0 if there is none, or if the block is
    // being lent: then the loan's end releases it.
    [[nodiscard]] Handle take_handle() noexcept;
    // Puts it back.
    void put_handle(Handle drivers) noexcept;
    // Call it when the driver has unmapped the block. Has the driver release a handle that is left.
    void commit() noexcept { removed_.clear(); }

  private:
    BlockRecords removed_;  // one, or none
};

}  // namespace curb::shim::vmm
