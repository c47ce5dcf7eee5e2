#include "admission/caller_match.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <tuple>

#include "base/libraries.hpp"
#include "host/clock.hpp"
#include "host/real_libc.hpp"
#include "policy/values/words.hpp"

namespace curb::shim::caller_match {
namespace {

// A counter that a library exports, of a feature whose use keeps the framework from retrying.
struct Counter {
    const char *library;
    const char *symbol;
};

// A library, by a part of its path and the beginning of its file name; "" for none.
struct File {
    const char *folder;
    const char *name;
};

struct Row {
    const char *framework;  // as in release/steps/framework_rows.hpp
    File library;
    int frames;                       // consecutive frames in the library that only its caching allocator has
    File bindings;                    // the library between it and the runtime, which may be linked into it
    std::array<Counter, 4> counters;  // empty: it always retries
};

// To add a caller, add a row, if its stack proves that it frees and retries. Why only these: docs/decisions/0022.
constexpr Row kRows[] = {
    // Read and disassembled (PyTorch 2.11). The caching allocator calls the runtime under four frames: alloc_block,
    // malloc of the device, malloc, allocate. Without the cache (PYTORCH_NO_CUDA_MEMORY_CACHING, or switched off later)
    // allocate calls it directly and does not retry. Nor does PyTorch retry for a MemPool or the pool of a graph, even
    // before the capture begins. Their counters start at 1, in libtorch_cuda or, before 2.11, in libc10_cuda. curb
    // never refuses a process that has made such a pool.
    {"torch",
     {"", "libc10_cuda.so"},
     3,
     {"", ""},
     {{{"libtorch_cuda.so", "_ZN2at4cuda7MemPool4uid_E"},
       {"libtorch_cuda.so", "_ZN2at4cuda7MemPool5uuid_E"},
       {"libc10_cuda.so", "_ZN3c104cuda7MemPool4uid_E"},
       {"libc10_cuda.so", "_ZN3c104cuda7MemPool5uuid_E"}}}},
    // Measured (CuPy 14.2). A pool allocates under six consecutive frames. Memory, alloc and _malloc do not retry, but
    // Python calls each of them, so their frames are never consecutive.
    {"cupy", {"/cupy/cuda/", "memory."}, 3, {"/cupy_backends/cuda/api/", "runtime."}, {}},
};
static_assert(std::size(kRows) == std::tuple_size_v<decltype(Known::frameworks)>);
constexpr const char *kRuntime = "libcudart";

using Count = std::atomic<std::uint64_t>;  // as PyTorch declares them (c10::CaptureId_t)

// The libraries at the last inspection.
struct Loaded {
    Range self;
    std::array<Range, 4> runtimes{};
    struct Library {
        Range range;
        Range bindings;
        std::array<const Count *, 4> counters{};
    };
    std::array<Library, std::size(kRows)> rows{};
};

constinit struct {
    std::mutex mutex;
    Loaded loaded;
    std::array<std::uint64_t, std::size(kRows)> answered_ms{};  // when each framework last freed its cache; 0: never
} state;

Loaded libraries() noexcept {
    const std::scoped_lock lock(state.mutex);
    return state.loaded;
}

bool is(const File &file, const char *path) noexcept {
    return *file.name && policy::file_name(path).starts_with(file.name) &&
           std::string_view(path).find(file.folder) != std::string_view::npos;
}

void note_library(const dl_phdr_info &info, Loaded &now) noexcept {
    const Range range = range_of(info);
    if (range.has(reinterpret_cast<std::uintptr_t>(&note_library))) now.self = range;
    const std::string_view name = policy::file_name(info.dlpi_name);
    if (name.starts_with(kRuntime))
        for (Range &runtime : now.runtimes)
            if (runtime.end == 0) {
                runtime = range;
                break;
            }
    for (std::size_t i = 0; i < std::size(kRows); ++i) {
        if (is(kRows[i].library, info.dlpi_name)) now.rows[i].range = range;
        if (is(kRows[i].bindings, info.dlpi_name)) now.rows[i].bindings = range;
    }
}

// Returns the counter's address. nullptr if no loaded library exports it. Keeps the library loaded, so that the address
// stays valid.
const Count *address_of(const Counter &counter) noexcept {
    // The counter may be in the executable, by a copy relocation.
    if (void *symbol = real::dlsym()(RTLD_DEFAULT, counter.symbol)) return static_cast<const Count *>(symbol);
    char path[PATH_MAX];  // a copy: another thread may unload the library
    const bool found = any_library([&](const dl_phdr_info &info) {
        const std::size_t length = std::strlen(info.dlpi_name);
        if (length >= sizeof path || !policy::file_name(info.dlpi_name).starts_with(counter.library)) return false;
        std::memcpy(path, info.dlpi_name, length + 1);
        return true;
    });
    void *library = found ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    void *symbol = library ? real::dlsym()(library, counter.symbol) : nullptr;
    if (!symbol) dlerror();
    return static_cast<const Count *>(symbol);
}

// True if curb can tell whether this version of the caller retries.
bool is_understood(const Row &row, const Loaded::Library &library) noexcept {
    return !row.counters.front().library || library.counters != decltype(library.counters){};
}
bool has_made_pools(const Loaded::Library &library) noexcept {
    for (const Count *counter : library.counters)
        if (counter && counter->load() != 1) return true;
    return false;
}

// A walk up the stack: through curb, the runtime and the bindings, to consecutive frames in the library.
struct Walk {
    const Loaded &now;
    const Loaded::Library &library;
    int needed;
    bool through_runtime = false;
    int frames = 0;  // consecutive ones, so far
    int steps = 0;
};
_Unwind_Reason_Code step(_Unwind_Context *context, void *into) {
    constexpr int kDeepest = 64;
    auto &walk = *static_cast<Walk *>(into);
    const std::uintptr_t address = _Unwind_GetIP(context) - 1;  // within the call
    if (++walk.steps > kDeepest) return _URC_END_OF_STACK;
    if (walk.library.range.has(address)) return ++walk.frames == walk.needed ? _URC_END_OF_STACK : _URC_NO_REASON;
    const bool has_bindings = walk.library.bindings.end != 0;
    const bool runtime =
        walk.library.bindings.has(address) || std::any_of(walk.now.runtimes.begin(), walk.now.runtimes.end(),
                                                          [&](const Range &range) { return range.has(address); });
    // With bindings, Python's frames may come first; without, the library's frames must be the first.
    const bool before = walk.frames == 0 && (runtime || walk.now.self.has(address));
    if (!before && !(has_bindings && walk.through_runtime)) return _URC_END_OF_STACK;
    walk.through_runtime |= runtime;
    walk.frames = 0;
    return _URC_NO_REASON;
}

}  // namespace

Known inspect_libraries() noexcept {
    Loaded now;
    any_library([&](const dl_phdr_info &info) {
        note_library(info, now);
        return false;
    });
    Known known;
    for (std::size_t i = 0; i < std::size(kRows); ++i) {
        Loaded::Library &library = now.rows[i];
        if (library.range.end == 0) continue;
        for (std::size_t counter = 0; counter < library.counters.size(); ++counter)
            if (kRows[i].counters[counter].library) library.counters[counter] = address_of(kRows[i].counters[counter]);
        if (!is_understood(kRows[i], library))
            known.why_not = "a version of the caller that curb does not know";
        else if (has_made_pools(library))
            known.why_not =
                "the program has made pools for graphs, or of its own, for which its framework does not retry";
        else
            known.frameworks[i] = kRows[i].framework;
    }
    const std::scoped_lock lock(state.mutex);
    state.loaded = now;
    return known;
}

const char *calling(Way way) noexcept {
    const Loaded now = libraries();
    for (std::size_t i = 0; i < std::size(kRows); ++i) {
        const Loaded::Library &library = now.rows[i];
        if (library.range.end == 0 || !is_understood(kRows[i], library) || has_made_pools(library)) continue;
        Walk walk{now, library, kRows[i].frames};
        _Unwind_Backtrace(step, &walk);
        // A runtime that is linked into the library adds frames of its own there, so the count would prove nothing.
        if (walk.frames >= kRows[i].frames && walk.through_runtime == (way == Way::runtime)) return kRows[i].framework;
    }
    return nullptr;
}

void note_answer(std::string_view framework) noexcept {
    const std::uint64_t now = now_ms();
    const std::scoped_lock lock(state.mutex);
    for (std::size_t i = 0; i < std::size(kRows); ++i)
        if (kRows[i].framework == framework) state.answered_ms[i] = now;
}

bool answered_just_now(const char *framework) noexcept {
    constexpr std::uint64_t kJustNow = 2000;
    const std::uint64_t now = now_ms();
    const std::scoped_lock lock(state.mutex);
    for (std::size_t i = 0; i < std::size(kRows); ++i)
        if (std::string_view(kRows[i].framework) == framework)
            return state.answered_ms[i] != 0 && now - state.answered_ms[i] < kJustNow;
    return false;
}

}  // namespace curb::shim::caller_match
