#include "move/copy.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/guarded.hpp"
#include "base/waiting.hpp"
#include "driver/driver.hpp"
#include "move/behind_gate.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::move {
namespace {

using policy::Bytes;
using policy::Part;

// What the threads share.
struct Work {
    const Copies *copies = nullptr;
    const Stream *stream = nullptr;
    bool is_out = false;
    // Chunks: which is the next one, from where on they may not be copied yet, and from where on they need not be.
    std::size_t next = 0, ready = 0, end = 0;
    // Which chunks are copied, and how many are, from the first one on.
    std::vector<bool> is_copied = {};
    std::size_t copied = 0;
    bool stopped = false;
    unsigned running = 0;  // threads
};
template <class Act>
auto locked(Act act) {
    return leaked<Guarded<Work>>().locked(act);
}
constinit FutexEvent ended;  // a thread has

void stop() {
    locked([](Work &work) { work.stopped = true; });
}
// The chunks from `chunk` on need not be copied.
void end_at(std::size_t chunk) {
    locked([=](Work &work) { work.end = std::min(work.end, chunk); });
}

// Returns the next chunk, once it may be copied. nullopt if there is none.
std::optional<std::size_t> take() {
    for (;;) {
        bool waits = false;
        const auto chunk = locked([&](Work &work) -> std::optional<std::size_t> {
            if (work.stopped || work.next >= work.end) return std::nullopt;
            waits = work.next >= work.ready;
            return waits ? std::nullopt : std::optional(work.next++);
        });
        if (!waits) return chunk;
        sleep_us(20);
    }
}

void note_copied(std::size_t chunk) {
    locked([=](Work &work) {
        work.is_copied[chunk] = true;
        while (work.copied < work.is_copied.size() && work.is_copied[work.copied]) ++work.copied;
    });
}

// Copies past the caches, which the data would only flush.
void copy_past_caches(char *to, const char *from, std::size_t bytes) noexcept {
    std::size_t at = 0;
#ifdef __SSE2__
    for (; at + 64 <= bytes; at += 64) {
        const auto *source = reinterpret_cast<const __m128i *>(from + at);
        auto *target = reinterpret_cast<__m128i *>(to + at);  // aligned: chunks and pages are
        const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
#endif
    std::memcpy(to + at, from + at, bytes - at);
}

// One thread's two buffers. The context is current.
class Lane : NoCopy {
  public:
    Lane(const Copies &copies, const Stream &stream) noexcept : copies_(copies), stream_(stream) {}
    ~Lane() { static_cast<void>(stream_.synchronize()); }  // its work uses the buffers
    explicit operator bool() const noexcept { return pinned_ && served_[0] && served_[1]; }

    // False if a copy fails.
    bool run_out() {
        std::optional<std::size_t> before;  // in the other buffer
        for (unsigned now = 0;; now ^= 1U) {
            auto chunk = take();
            if (chunk && !each_part(*chunk, now, kOut)) return false;
            if (chunk && !HostMemory::populate(host(*chunk), size(*chunk))) {
                end_at(*chunk);
                chunk.reset();
            }
            if (before) {
                if (!served_[now ^ 1U].wait()) return false;
                copy_past_caches(host(*before), buffer(now ^ 1U), size(*before));
                note_copied(*before);
            }
            if (!chunk) return true;
            before = chunk;
        }
    }
    bool run_in() {
        for (unsigned now = 0;; now ^= 1U) {
            const auto chunk = take();
            if (!chunk) return true;
            if (!served_[now].wait()) return false;
            std::memcpy(buffer(now), host(*chunk), size(*chunk));
            if (!each_part(*chunk, now, kIn)) return false;
        }
    }

  private:
    enum Direction : bool { kOut, kIn };

    // Begins to copy the parts of a chunk between the GPU and a buffer.
    bool each_part(std::size_t chunk, unsigned which, Direction direction) noexcept {
        char *at = buffer(which);
        for (const Part &part : copies_.chunks[chunk]) {
            const CUdeviceptr device = copies_.addresses[part.block] + part.offset;
            const Driver &driver = driver_behind_gate();
            const CUresult result = direction == kOut
                                        ? driver.cuMemcpyDtoHAsync_v2.uncounted(at, device, part.bytes, stream_.get())
                                        : driver.cuMemcpyHtoDAsync_v2.uncounted(device, at, part.bytes, stream_.get());
            if (result != CUDA_SUCCESS) return false;
            at += part.bytes;
        }
        return served_[which].record(stream_);
    }
    [[nodiscard]] std::size_t size(std::size_t chunk) const noexcept {
        Bytes sum = 0;
        for (const Part &part : copies_.chunks[chunk]) sum += part.bytes;
        return sum;
    }
    [[nodiscard]] char *host(std::size_t chunk) const noexcept { return copies_.host.chunk(chunk); }
    [[nodiscard]] char *buffer(unsigned which) const noexcept { return pinned_.begin() + which * policy::kChunk; }

    const Copies &copies_;
    const Stream &stream_;
    PinnedMemory pinned_{2 * policy::kChunk};
    Event served_[2];  // the GPU has done with a buffer
};

// The work of one thread. A thread that gets no buffers leaves it to the others.
void run() {
    const auto [copies, stream, is_out] =
        locked([](const Work &work) { return std::tuple(work.copies, work.stream, work.is_out); });
    const CurrentBehindGate current(copies->context);
    if (!current) return;
    Lane lane(*copies, *stream);
    if (lane && !(is_out ? lane.run_out() : lane.run_in())) stop();
}

void run_thread() {
    {
        const own_thread::Awake awake;
        run();
    }
    locked([](Work &work) { --work.running; });
    ended.post();
}

// Copies on so many threads, and calls `beside` until they have ended. Without a thread, copies on this one. Returns
// how many chunks are copied, from the first one on. nullopt if it has stopped, or no thread got buffers.
std::optional<std::size_t> copy(Work begun, unsigned threads, const std::function<void()> &beside) {
    const std::size_t chunks = begun.end = begun.copies->chunks.size();
    begun.is_copied.resize(begun.end);
    locked([&](Work &work) { work = std::move(begun); });
    bool any = false;
    for (std::size_t i = 0; i < std::min<std::size_t>(threads, chunks); ++i) {
        locked([](Work &work) { ++work.running; });
        if (own_thread::start(run_thread, "curb-move"))
            any = true;
        else
            locked([](Work &work) { --work.running; });
    }
    const auto go_on = [&]() noexcept {
        try {
            beside();
        } catch (...) {  // out of host memory; the threads use what the caller would destroy
            stop();
        }
    };
    go_on();
    if (!any && chunks != 0) run();
    while (locked([](const Work &work) { return work.running; }) != 0) {
        go_on();
        ended.wait(5);
    }
    return locked(
        [](const Work &work) { return work.stopped || work.next < work.end ? std::nullopt : std::optional(work.end); });
}

}  // namespace

std::optional<std::size_t> copy_out(const Copies &copies, const Stream &stream, unsigned threads,
                                    const std::function<GoOn()> &goes_on,
                                    const std::function<void(std::size_t)> &copied) {
    std::size_t block = 0;
    const auto tell = [&] {
        const std::size_t done = locked([](const Work &work) { return work.copied; });
        const std::size_t end =
            done == copies.chunks.size() ? copies.addresses.size() : copies.chunks[done].front().block;
        for (; block < end; ++block) copied(block);
        const GoOn answer = goes_on();
        if (answer == GoOn::no) stop();
        if (answer == GoOn::enough) locked([](Work &work) { work.end = std::min(work.end, work.next); });
    };
    return copy({.copies = &copies, .stream = &stream, .is_out = true, .ready = copies.chunks.size()}, threads, tell);
}

bool copy_in(const Copies &copies, const Stream &stream, unsigned threads,
             const std::function<bool(std::size_t)> &map) {
    std::size_t block = 0, chunk = 0;
    bool fails = false;
    const auto map_all = [&] {
        for (; block < copies.addresses.size() && !fails; ++block) {
            fails = !map(block);
            if (fails) return stop();
            // The chunks whose last block this is.
            while (chunk < copies.chunks.size() && copies.chunks[chunk].back().block <= block) ++chunk;
            locked([&](Work &work) { work.ready = chunk; });
        }
    };
    return copy({.copies = &copies, .stream = &stream}, threads, map_all) && stream.synchronize();
}

}  // namespace curb::shim::move
