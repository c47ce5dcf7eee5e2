#include "move/move.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "accounting/vmm.hpp"
#include "base/guarded.hpp"
#include "base/waiting.hpp"
#include "contexts/contexts.hpp"
#include "control/host_room.hpp"
#include "driver/driver.hpp"
#include "move/behind_gate.hpp"
#include "move/copy.hpp"
#include "move/zeros.hpp"
#include "policy/decisions/move.hpp"
#include "policy/values/size.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::move {
namespace {

using policy::Part;

// ---- the work under way ----

struct Sync {
    std::vector<CUcontext> contexts;
    bool running = false, failed = false;
};
template <class Act>
auto with_sync(Act act) {
    return leaked<Guarded<Sync>>().locked(act);
}
constinit FutexEvent synchronized;

// On a thread of its own: a synchronisation has no time limit, and the work may wait for a call of the program.
void synchronize() {
    const auto contexts = with_sync([](Sync &sync) { return std::exchange(sync.contexts, {}); });
    bool failed = false;
    for (const CUcontext context : contexts) {
        const contexts::Pin pin(context);
        const CurrentBehindGate current(pin ? context : nullptr);
        failed = failed || !pin || !current || driver_behind_gate().cuCtxSynchronize.uncounted() != CUDA_SUCCESS;
    }
    with_sync([=](Sync &sync) {
        sync.failed = failed;
        sync.running = false;
    });
    synchronized.post();
}

std::optional<std::vector<CUcontext>> all_contexts() {
    std::vector<CUcontext> out;
    for (const Device &device : devices::all()) {
        const auto known = contexts::on(device);
        if (!known) return std::nullopt;
        for (const contexts::Known &one : *known) out.push_back(one.context);
    }
    return out;
}

// ---- what is out ----

struct Block {
    vmm::Movable memory;
    std::vector<Part> zeros;
    std::size_t unmapped = 0;  // of its places, the first ones
    bool released = false;     // its memory; then `memory.handle` is not valid
    vmm::Handle made = 0;      // the driver's handle of the memory that takes its place; 0: none yet
};
// The memory of one device. Part::block and Copies::addresses are indexes of `blocks`.
struct Load {
    Device *device = nullptr;
    std::vector<Block> blocks;
    Copies copies;
};
struct Out {
    std::vector<Load> loads;
    // An error has ended the context of a device whose memory is back. The rest may take in() several calls.
    bool has_broken = false;
};
Out &all_out() noexcept { return leaked<Out>(); }
std::vector<Load> &loads() noexcept { return all_out().loads; }

unsigned threads() {
    cpu_set_t set;
    const bool is_known = sched_getaffinity(0, sizeof set, &set) == 0;
    return policy::copying_threads(is_known ? static_cast<unsigned>(CPU_COUNT(&set)) : 1,
                                   control::processor_quota(getpid()));
}

// ---- a block ----

// Makes a block inaccessible. What fails of it stays as it is, and map() undoes the rest.
void unmap(Block &block) noexcept {
    for (; block.unmapped < block.memory.places.size(); ++block.unmapped) {
        const vmm::Place &place = block.memory.places[block.unmapped];
        if (driver_behind_gate().cuMemUnmap(place.address, place.bytes) != CUDA_SUCCESS) return;
    }
}

// Gives the memory of a block back. What fails of it stays as it is, and in() undoes the rest.
void release(Block &block) noexcept {
    unmap(block);
    if (block.unmapped < block.memory.places.size()) return;
    block.released = driver_behind_gate().cuMemRelease(block.memory.handle) == CUDA_SUCCESS;
    if (block.released) vmm::moved(block.memory.key, 0);
}

// Makes a block accessible again. False if the driver refuses.
bool map(Block &block, CUstream stream) noexcept {
    const Driver &driver = driver_behind_gate();
    const vmm::Handle handle = block.released ? block.made : block.memory.handle;
    for (; block.unmapped != 0; --block.unmapped) {
        const vmm::Place &place = block.memory.places[block.unmapped - 1];
        if (driver.cuMemMap(place.address, place.bytes, place.offset, handle, 0) != CUDA_SUCCESS) return false;
        if (driver.cuMemSetAccess(place.address, place.bytes, place.access.data(), place.access.size()) == CUDA_SUCCESS)
            continue;
        driver.cuMemUnmap(place.address, place.bytes);
        return false;
    }
    return std::all_of(block.zeros.begin(), block.zeros.end(), [&](const Part &part) {
        const CUdeviceptr at = block.memory.places.front().address + part.offset;
        return driver.cuMemsetD8Async(at, 0, part.bytes, stream) == CUDA_SUCCESS;
    });
}

// ---- out ----

// Why memory stays, by vmm::Stays.
constexpr std::array<const char *, vmm::kStays> kStays{
    "that other processes may use", "that a network card, an array or a multicast object may use",
    "that is not mapped as a whole", "that was allocated before curb could move it"};

void add_staying(std::string &text, Bytes bytes, const char *why) {
    if (bytes != 0) text.append(text.empty() ? "" : ", ").append(policy::format_human(bytes)).append(" ").append(why);
}

// Memory that may leave, with its pages of zeros.
struct Candidate {
    vmm::Movable memory;
    CUcontext context = nullptr;
    std::vector<bool> zero;
};

// Returns the memory that curb can move, and adds to `stays` what it cannot.
std::vector<Candidate> candidates(std::string &stays) {
    vmm::Inventory inventory = vmm::movables();
    for (std::size_t why = 0; why < vmm::kStays; ++why) add_staying(stays, inventory.staying[why], kStays[why]);
    std::vector<Candidate> out;
    Bytes homeless = 0;
    for (vmm::Movable &memory : inventory.movable) {
        const auto known = contexts::on(*memory.device);
        if (known && !known->empty())
            out.push_back({std::move(memory), known->front().context, {}});
        else
            homeless += memory.bytes;
    }
    add_staying(stays, homeless, "on a device without a context");
    // A device after the other, and memory in the order of its addresses.
    std::sort(out.begin(), out.end(), [](const Candidate &a, const Candidate &b) {
        const auto order = [](const Candidate &one) {
            return std::pair(one.memory.device->ordinal, one.memory.places.front().address);
        };
        return order(a) < order(b);
    });
    return out;
}

void find_zeros(std::vector<Candidate> &all) {
    for (auto first = all.begin(), last = first; first != all.end(); first = last) {
        std::vector<Range> ranges;
        for (; last != all.end() && last->context == first->context; ++last)
            ranges.push_back({last->memory.places.front().address, last->memory.bytes});
        auto pages = zero_pages(first->context, ranges);
        for (auto one = first; one != last; ++one) one->zero = std::move(pages[static_cast<std::size_t>(one - first)]);
    }
}

Bytes sum(const std::vector<Part> &parts) {
    Bytes out = 0;
    for (const Part &part : parts) out += part.bytes;
    return out;
}

// The parts of the blocks that leave with each device, while its load is made.
class Loading {
  public:
    void add(Candidate &one) {
        if (loads_.empty() || loads_.back().device != one.memory.device) {
            finish();
            loads_.emplace_back();
            loads_.back().device = one.memory.device;
            loads_.back().copies.context = one.context;
        }
        Load &load = loads_.back();
        const std::size_t block = load.blocks.size();
        for (const Part &part : policy::runs(block, one.memory.bytes, one.zero, false)) copied_.push_back(part);
        auto zeros = policy::runs(block, one.memory.bytes, one.zero, true);
        load.copies.addresses.push_back(one.memory.places.front().address);
        load.blocks.push_back({.memory = std::move(one.memory), .zeros = std::move(zeros)});
    }
    // Empty if the address space has no room for the contents.
    std::vector<Load> take() && {
        finish();
        const bool has_room = std::all_of(loads_.begin(), loads_.end(), [](const Load &load) {
            return load.copies.chunks.empty() || !load.copies.host.empty();
        });
        return has_room ? std::move(loads_) : std::vector<Load>();
    }

  private:
    void finish() {
        if (loads_.empty()) return;
        Copies &copies = loads_.back().copies;
        copies.chunks = policy::chunks(std::exchange(copied_, {}));
        copies.host = HostMemory(copies.chunks.size());
    }

    std::vector<Load> loads_;
    std::vector<Part> copied_;  // of the last load
};

// Copies the contents of a device's memory, and makes what has been copied inaccessible meanwhile. Returns how many
// chunks. nullopt if that fails.
std::optional<std::size_t> copy_one(Load &load, const std::function<GoOn()> &goes_on) {
    const CurrentBehindGate current(load.copies.context);
    const Stream stream;
    if (!current || !stream) return std::nullopt;
    const auto unmap_one = [&](std::size_t block) { unmap(load.blocks[block]); };
    return copy_out(load.copies, stream, threads(), goes_on, unmap_one);
}

// Copies the contents of all loads to host memory. What is not copied when that has run out is in none of them any
// more, and is added to `stays`. False if that fails.
bool copy_all(std::vector<Load> &all, const std::function<GoOn()> &goes_on, Bytes &stays) {
    bool ends = false;
    for (Load &load : all) {
        const auto copied = ends ? 0 : copy_one(load, goes_on);
        if (!copied) return false;
        ends = ends || *copied < load.copies.chunks.size();
        const auto whole = static_cast<std::ptrdiff_t>(
            ends ? policy::cut_to_whole_blocks(load.copies.chunks, *copied, load.blocks.size()) : load.blocks.size());
        for (auto block = load.blocks.begin() + whole; block != load.blocks.end(); ++block)
            stays += block->memory.bytes;
        load.blocks.erase(load.blocks.begin() + whole, load.blocks.end());
        load.copies.addresses.resize(load.blocks.size());
        load.copies.host.cut(load.copies.chunks.size());
    }
    std::erase_if(all, [](const Load &load) { return load.blocks.empty(); });
    return true;
}

// Makes all memory accessible again, which has lost nothing. Blocks that the driver refuses to map stay in the loads.
void map_again(std::vector<Load> &all) {
    for (Load &load : all) {
        const CurrentBehindGate current(load.copies.context);
        std::move(load.copies.host).keep();
        load.copies.chunks.clear();
        std::erase_if(load.blocks, [](Block &block) {
            block.zeros.clear();
            return map(block, nullptr) || map(block, nullptr);
        });
        load.copies.addresses.resize(load.blocks.size());
    }
    std::erase_if(all, [](const Load &load) { return load.blocks.empty(); });
}

// ---- in ----

// Takes the memory back that was made for a block, so that it is out as before.
void unmake(Block &block) noexcept {
    if (block.made == 0) return;
    const Driver &driver = driver_behind_gate();
    for (; block.unmapped < block.memory.places.size(); ++block.unmapped) {
        const vmm::Place &place = block.memory.places[block.unmapped];
        driver.cuMemUnmap(place.address, place.bytes);
    }
    driver.cuMemRelease(std::exchange(block.made, 0));
}

// Makes the memory of all that is out, or none.
Back make_all() noexcept {
    for (Load &load : loads()) {
        for (Block &block : load.blocks) {
            if (!block.released || block.made != 0) continue;  // an attempt may have ended for want of host memory
            const CUresult made =
                driver_behind_gate().cuMemCreate(&block.made, block.memory.bytes, &block.memory.properties, 0);
            if (made == CUDA_SUCCESS) continue;
            block.made = 0;
            for (Load &other : loads()) std::for_each(other.blocks.begin(), other.blocks.end(), unmake);
            return made == CUDA_ERROR_OUT_OF_MEMORY ? Back::no_room : Back::failed;
        }
    }
    return Back::done;
}

// Maps and fills the memory of a device.
Back fill(Load &load) {
    const CurrentBehindGate current(load.copies.context);
    const Stream stream;
    if (!current || !stream) return Back::failed;
    const auto map_one = [&](std::size_t block) { return map(load.blocks[block], stream.get()); };
    return copy_in(load.copies, stream, threads(), map_one) ? Back::done : Back::failed;
}

// True if each call of the context fails.
bool is_broken(CUcontext context) noexcept {
    const CurrentBehindGate current(context);
    const auto fails = [] { return driver_behind_gate().cuCtxSynchronize.uncounted() != CUDA_SUCCESS; };
    return current && fails() && fails() && fails();
}

}  // namespace

bool has_any() { return !vmm::movables().movable.empty(); }

bool wait_for_work(std::uint64_t most_ms) {
    auto contexts = all_contexts();
    if (!contexts) return false;
    const bool may_begin = with_sync([&](Sync &sync) {
        if (sync.running) return false;
        sync = {std::move(*contexts), true, false};
        return true;
    });
    if (!may_begin) return false;
    if (!own_thread::start(synchronize, "curb-move")) {
        with_sync([](Sync &sync) { sync.running = false; });
        return false;
    }
    const auto is_done = [] { return with_sync([](const Sync &sync) { return !sync.running; }); };
    for (std::uint64_t waited = 0; !is_done() && waited < most_ms; waited += 10) synchronized.wait(10);
    return with_sync([](const Sync &sync) { return !sync.running && !sync.failed; });
}

policy::Result<Moved, std::string> out(Bytes host_memory, const std::function<GoOn()> &goes_on) {
    Moved moved;
    std::vector<Candidate> all = candidates(moved.stays);
    find_zeros(all);
    std::vector<policy::Leaver> leavers;
    leavers.reserve(all.size());
    for (const Candidate &one : all)
        leavers.push_back({one.memory.bytes, sum(policy::runs(0, one.memory.bytes, one.zero, false))});
    std::vector<std::size_t> leaving = policy::leaving(leavers, host_memory);
    std::sort(leaving.begin(), leaving.end());
    Loading loading;
    Bytes stays = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (std::binary_search(leaving.begin(), leaving.end(), i))
            loading.add(all[i]);
        else
            stays += leavers[i].bytes;
    }
    std::vector<Load> made = std::move(loading).take();
    if (made.empty() && !leaving.empty())
        return std::string("there is no address space for the contents of its memory");
    keep_at_most(0);  // earlier moves needed more
    if (!copy_all(made, goes_on, stays)) {
        map_again(made);
        loads() = std::move(made);
        if (!is_out()) return std::string("the contents of its memory could not be copied");
        return moved;  // the next call maps it
    }
    add_staying(moved.stays, stays, "for which host memory has no room");
    loads() = std::move(made);
    for (Load &load : loads()) {
        for (const auto &chunk : load.copies.chunks) moved.copied += sum(chunk);
        std::for_each(load.blocks.begin(), load.blocks.end(), release);
        moved.bytes += needed(*load.device);
    }
    return moved;
}

Bytes needed(const Device &device) noexcept {
    Bytes out = 0;
    for (const Load &load : loads())
        for (const Block &block : load.blocks)
            if (load.device == &device && block.released) out += block.memory.bytes;
    return out;
}

Bytes free_of(const Device &device) noexcept {
    std::size_t free = 0, total = 0;
    for (const Load &load : loads()) {
        if (load.device != &device) continue;
        const CurrentBehindGate current(load.copies.context);
        if (!current || driver_behind_gate().cuMemGetInfo_v2.uncounted(&free, &total) != CUDA_SUCCESS) return 0;
    }
    return free;
}

bool is_out() noexcept { return !loads().empty(); }

Back in() {
    if (const Back made = make_all(); made != Back::done) return made;
    while (!loads().empty()) {
        Load &load = loads().back();
        const Back back = fill(load);
        if (back == Back::failed && is_broken(load.copies.context)) {
            const auto map_one = [](Block &block) { map(block, nullptr); };
            std::for_each(load.blocks.begin(), load.blocks.end(), map_one);
            all_out().has_broken = true;
        } else if (back == Back::failed) {
            for (Load &other : loads()) std::for_each(other.blocks.begin(), other.blocks.end(), unmake);
            return back;
        }
        for (const Block &block : load.blocks)
            if (block.released) vmm::moved(block.memory.key, block.made);
        std::move(load.copies.host).keep();
        loads().pop_back();
    }
    return std::exchange(all_out().has_broken, false) ? Back::broken : Back::done;
}

}  // namespace curb::shim::move
