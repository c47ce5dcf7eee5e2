// Records the blocks of cuMemAlloc that curb has made by virtual memory management. Their charge is in allocations::.
//
// Thread-safe. Each call takes a lock. Only BlockRemoval::commit() calls the driver.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "accounting/vmm.hpp"

namespace curb::shim::vmm {

struct Block {
    CUdeviceptr start = 0;
    Device *device = nullptr;
    CUcontext context = nullptr;  // its end frees the block
    Bytes asked = 0, bytes = 0;   // by the program; mapped, in granules
};

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

struct BlockRecord {
    Block block;
    Reference memory;  // without a device, so that it credits nothing
    std::vector<CUmemAccessDesc> access;
    std::array<std::uint64_t, kBlockIds> ids{};  // 0: not asked for
    std::optional<unsigned> sync_memops;
};
using BlockRecords = std::map<CUdeviceptr, BlockRecord>;  // by start

// Guards a free. Removes the block before the call, because afterwards the driver may give its address to another
// thread. Puts it back unless commit() was called.
class BlockRemoval : NoCopy {
  public:
    explicit BlockRemoval(CUdeviceptr start) noexcept;  // the block at `start`
    explicit BlockRemoval(CUcontext context) noexcept;  // a block of this context
    ~BlockRemoval();
    explicit operator bool() const noexcept { return !removed_.empty(); }
    [[nodiscard]] const Block *operator->() const noexcept { return &removed_.begin()->second.block; }
    // Call it when the driver has unmapped the block. Has the driver release the physical memory.
    void commit() noexcept { removed_.clear(); }

  private:
    BlockRecords removed_;  // one, or none
};

}  // namespace curb::shim::vmm
