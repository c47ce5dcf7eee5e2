// Blocks that other processes have open, and blocks of other processes.

#include <algorithm>
#include <mutex>

#include "accounting/blocks.hpp"
#include "accounting/vmm_records.hpp"
#include "control/proc.hpp"

namespace curb::shim::vmm {
namespace {

// True unless it is known that the process has ended: a block must stay as long as another process may use it.
bool may_live(const control::ProcessName &process) {
    if (process.pid <= 0) return true;
    if (control::has_ended(process.pid)) return false;
    const auto now = control::name_of(process.pid);
    return !now || *now == process;
}

}  // namespace

bool is_exportable(CUdeviceptr start) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_at(start);
    return found && found->memory->properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

std::optional<Lent> lend(CUdeviceptr start, std::uint64_t id, const control::ProcessName &to) noexcept try {
    const std::scoped_lock lock(registry().mutex);
    BlockRecord *found = registry().block_at(start);
    if (!found || found->import || found->block.id != id || found->memory->handle == 0) return std::nullopt;
    found->openings.push_back({++registry().last_opening, to});
    return Lent{registry().last_opening, found->memory, found->memory->handle};
} catch (...) {
    return std::nullopt;
}

void returned(CUdeviceptr start, std::uint64_t opening) noexcept {
    const std::scoped_lock lock(registry().mutex);
    if (BlockRecord *found = registry().block_at(start))
        std::erase_if(found->openings, [=](const Opening &one) { return one.number == opening; });
}

void forget_ended_openings() {
    std::vector<control::ProcessName> processes;
    const auto is_known = [&](const control::ProcessName &one) {
        return std::find(processes.begin(), processes.end(), one) != processes.end();
    };
    {
        const std::scoped_lock lock(registry().mutex);
        for (const auto &[start, record] : registry().blocks)
            for (const Opening &one : record.openings)
                if (!is_known(one.by)) processes.push_back(one.by);
    }
    std::erase_if(processes, may_live);
    if (processes.empty()) return;
    const std::scoped_lock lock(registry().mutex);
    for (auto &[start, record] : registry().blocks)
        std::erase_if(record.openings, [&](const Opening &one) { return is_known(one.by); });
}

bool any_lent() noexcept {
    const std::scoped_lock lock(registry().mutex);
    const auto &all = registry().blocks;
    return std::any_of(all.begin(), all.end(), [](const auto &one) { return !one.second.openings.empty(); });
}

CUdeviceptr add_import(const Block &block, Handle drivers, const CUmemAccessDesc &access, const Import &import) noexcept
    try {
    auto memory = std::make_shared<Memory>(drivers, block.bytes, Handles::curbs);
    BlockRecord record{block, memory, {access}, {}, {}, {}, std::make_unique<Import>(import)};
    const std::scoped_lock lock(registry().mutex);
    if (const CUdeviceptr known = registry().count_open(import.name, block.context)) return known;
    registry().blocks[block.start] = std::move(record);
    registry().count_blocks();
    memory->handle = drivers;
    return block.start;
} catch (...) {
    return 0;
}

CUdeviceptr open_again(const ImportName &name, CUcontext context) noexcept {
    const std::scoped_lock lock(registry().mutex);
    return registry().count_open(name, context);
}

bool is_open_as(CUdeviceptr start, std::uint64_t opening) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_at(start);
    return found && found->import && found->import->opening == opening;
}

bool close_one(CUdeviceptr start) noexcept {
    const std::scoped_lock lock(registry().mutex);
    const BlockRecord *found = registry().block_at(start);
    if (!found || !found->import || found->import->opens == 1) return false;
    --found->import->opens;
    return true;
}

}  // namespace curb::shim::vmm
