#include "traffic.hpp"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <iterator>

#include "properties.hpp"

namespace load {

namespace {

// Returns a size: half are of a few sizes that recur, as in training, most others are small, and some meet the cap.
std::uint64_t size(unsigned random) {
    constexpr std::uint64_t kUsual[] = {512,      4 * kKiB, 64 * kKiB, 256 * kKiB, 1 * kMiB,
                                        2 * kMiB, 3 * kMiB, 6 * kMiB,  12 * kMiB,  20 * kMiB};
    const unsigned kind = random % 8, rest = random / 8;
    if (kind < 4) return kUsual[rest % std::size(kUsual)];
    if (kind < 6) return 1 + rest % (64 * kKiB);
    if (kind < 7) return 1 + rest % (4 * kMiB);
    return 1 + rest % (48 * kMiB);
}

}  // namespace

Traffic::Traffic(How how) : how_(how), shared_(how.devices), slots_(how.blocks) {
    expect(cuInit(0), "cuInit");
    for (unsigned device = 0; device < how_.devices; ++device) {
        Place &place = shared_[device];
        place.device = static_cast<int>(device);
        if (how_.by_green) make_first_context(place.device);
        expect(cuDevicePrimaryCtxRetain(&place.context, place.device), "cuDevicePrimaryCtxRetain");
        expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
        for (int i = 1; i + 1 < Place::kStreams; ++i)
            expect(cuStreamCreate(&place.streams[i], i % 2 ? CU_STREAM_NON_BLOCKING : 0), "cuStreamCreate");
        expect(cuDeviceGetDefaultMemPool(&place.pools[0], place.device), "cuDeviceGetDefaultMemPool");
        const CUmemPoolProps properties = families::pool_on(CU_MEM_LOCATION_TYPE_DEVICE, place.device);
        std::uint64_t everything = ~0ULL;
        expect(cuMemPoolCreate(&place.pools[1], &properties), "cuMemPoolCreate");
        expect(cuMemPoolSetAttribute(place.pools[1], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything),
               "cuMemPoolSetAttribute");
        expect(cuMemPoolCreate(&place.pools[2], &properties), "cuMemPoolCreate");
    }
}

void Traffic::make_first_context(int device) {
    CUdevResource multiprocessors{};
    CUdevResourceDesc description = nullptr;
    expect(cuDeviceGetDevResource(device, &multiprocessors, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
    expect(cuDevResourceGenerateDesc(&description, &multiprocessors, 1), "cuDevResourceGenerateDesc");
    std::barrier begin(4);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            CUgreenCtx green = nullptr;
            CUcontext context = nullptr;
            begin.arrive_and_wait();
            if (i % 2)
                expect(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
            else
                expect(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
        });
}

void Traffic::expect(CUresult result, const char *what, const char *family) {
    if (result == CUDA_SUCCESS) return;
    constexpr std::uint64_t kTold = 20;
    if (counts_.wrong++ < kTold) std::fprintf(stderr, "%s%s%s: error %d\n", what, *family ? ", " : "", family, result);
}

std::vector<Place> Traffic::own_places(bool pools) {
    std::vector<Place> places = shared_;
    for (Place &place : places) {
        const CUmemPoolProps properties = families::pool_on(CU_MEM_LOCATION_TYPE_DEVICE, place.device);
        expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
        expect(cuStreamCreate(&place.streams[Place::kStreams - 1], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        if (pools) expect(cuMemPoolCreate(&place.pools[Place::kPools - 1], &properties), "cuMemPoolCreate");
    }
    return places;
}

void Traffic::leave(const std::vector<Place> &places) {
    for (const Place &place : places) {
        expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
        if (CUmemoryPool pool = place.pools[Place::kPools - 1];
            pool != shared_[static_cast<std::size_t>(place.device)].pools[Place::kPools - 1])
            expect(cuMemPoolDestroy(pool), "cuMemPoolDestroy");
        expect(cuStreamDestroy_v2(place.streams[Place::kStreams - 1]), "cuStreamDestroy");
    }
}

const families::Family &Traffic::drawn(unsigned random) {
    const auto weight = [&](const families::Family &one) {
        const bool is_shared = std::string_view(one.name).ends_with("_imported");
        if (how_.movable && (one.memory.trait == Trait::managed || is_shared)) return 0U;
        return std::find(how_.without.begin(), how_.without.end(), one.memory.trait) == how_.without.end() ? one.weight
                                                                                                           : 0U;
    };
    unsigned sum = 0;
    for (const families::Family &one : families::families()) sum += weight(one);
    const auto *one = families::families().data();
    for (unsigned at = random % sum; at >= weight(*one); ++one) at -= weight(*one);
    // Memory of some families stays until the primary context ends: too many blocks would fill the cap for good.
    const bool stays = one->memory.ends_with == families::EndsWith::primary_context;
    return stays && --left_that_stay_ < 0 ? families::families().front() : *one;
}

void Traffic::give(const Block &block, unsigned random, const std::vector<Place> &places) {
    const Place &place = places[static_cast<std::size_t>(block.device)];
    expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
    expect(block.family->give({calls_, place, random}, block), "free", block.family->name);
    ++counts_.given;
}

// Makes another call of programs: one that lets pools give memory back, or a query of the free memory.
void Traffic::other(Random &random, const Place &place) {
    std::size_t free = 0, total = 0;
    switch (random() % 5) {
        case 0: return expect(cuStreamSynchronize(place.streams[random() % Place::kStreams]), "cuStreamSynchronize");
        case 1: {
            const std::unique_lock lock(families::captures());
            const CUresult result = cuCtxSynchronize();
            // An open capture makes this call fail, and the call breaks the capture.
            return expect(result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_SUCCESS : result, "cuCtxSynchronize");
        }
        case 2: return expect(cuMemPoolTrimTo(place.pools[random() % Place::kPools], 32 * kMiB), "cuMemPoolTrimTo");
        case 3: return expect(cuDeviceGraphMemTrim(place.device), "cuDeviceGraphMemTrim");
        default: expect(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    }
    if (free > total) expect(CUDA_ERROR_UNKNOWN, "cuMemGetInfo: more is free than there is");
}

void Traffic::step(Random &random, const std::vector<Place> &places) {
    Slot &slot = slots_[random() % slots_.size()];
    Block block;
    {
        const std::lock_guard lock(slot.mutex);
        std::swap(block, slot.block);
    }
    if (block.family) return give(block, static_cast<unsigned>(random()), places);
    const Place &place = places[random() % places.size()];
    expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
    if (random() % 64 == 0) other(random, place);
    block = {.family = &drawn(static_cast<unsigned>(random())),
             .device = place.device,
             .bytes = size(static_cast<unsigned>(random()))};
    const CUresult result = block.family->take({calls_, place, static_cast<unsigned>(random())}, block);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        ++counts_.refused;
        return;
    }
    expect(result, "allocation", block.family->name);
    if (result != CUDA_SUCCESS) return;
    ++counts_.taken;
    {
        const std::lock_guard lock(slot.mutex);
        std::swap(block, slot.block);
    }
    if (block.family) give(block, static_cast<unsigned>(random()), places);  // another was put there meanwhile
}

void Traffic::live(Random random) {
    ++counts_.lives;
    const std::vector<Place> places = own_places(random() % 4 == 0 && how_.pools_end);
    const auto steps = static_cast<std::int64_t>(200 + random() % 4000);
    for (std::int64_t i = 0; i < steps && left_.fetch_sub(1, std::memory_order_relaxed) > 0; ++i) {
        step(random, places);
        if (how_.pause_us != 0) usleep(how_.pause_us);
    }
    leave(places);
}

void Traffic::sit(std::uint64_t seed) {
    Random random(static_cast<Random::result_type>(seed % 2147483647));
    random.discard(20);  // its first numbers depend closely on the seed
    while (left_.load(std::memory_order_relaxed) > 0) std::thread([&] { live(Random(random())); }).join();
}

void Traffic::work(std::uint64_t operations) {
    left_ = static_cast<std::int64_t>(operations);
    ++rounds_;
    for (unsigned seat = 0; seat < how_.threads; ++seat)
        seats_.emplace_back([this, seed = how_.seed * 1'000'003 + rounds_ * 1009 + seat + 1] { sit(seed); });
}

void Traffic::wait() {
    for (std::thread &seat : seats_) seat.join();
    seats_.clear();
}

void Traffic::stop() {
    left_ = 0;
    wait();
}

void Traffic::synchronize() {
    end_open_captures();
    for (const Place &place : shared_) {
        expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
        expect(cuCtxSynchronize(), "cuCtxSynchronize");
    }
}

void Traffic::end_open_captures() {
    for (Slot &slot : slots_) {
        if (!slot.block.family || slot.block.family->memory.trait != Trait::open_capture) continue;
        give(slot.block, 0, shared_);
        slot.block = {};
    }
}

void Traffic::give_everything_back() {
    const std::vector<Place> places = own_places(false);
    for (Slot &slot : slots_) {
        if (slot.block.family) give(slot.block, 0, places);
        slot.block = {};
    }
    leave(places);
    for (const Place &place : shared_) {
        expect(cuCtxSetCurrent(place.context), "cuCtxSetCurrent");
        expect(cuCtxSynchronize(), "cuCtxSynchronize");
        for (int i = 0; i < Place::kPools; ++i) expect(cuMemPoolTrimTo(place.pools[i], 0), "cuMemPoolTrimTo");
        expect(cuDeviceGraphMemTrim(place.device), "cuDeviceGraphMemTrim");
        expect(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), "cuCtxSetLimit");  // the default, which launches have raised
    }
}

}  // namespace load
