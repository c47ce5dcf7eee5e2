// libbench_switch.so: a preload before libcurb.so, or before the driver alone, by which a whole program runs some steps
// through the preload behind it, and others by the driver's own functions. Both kinds are then compared in one process.
//
// A program that looks up a driver function gets a thunk, which jumps to one of the two. It starts with the preload's.
// The program calls bench_switch() between its steps. Calls of a framework's own threads may be under way then: each
// goes one way or the other. It cannot switch functions to which the program is linked (-lcuda).
//
// curb's books miss what happens in direct steps. That does no harm if each block is freed as it was allocated: by
// curb or directly. Otherwise curb would keep the record of freed memory, and could give its address out again from its
// cache, with another size. So cuMemAlloc_v2 and cuMemFree_v2 have wrappers here in place of thunks. Other memory
// (pitched, managed, mapped, of pools) has none: the bench's programs allocate it before their steps, and keep it.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>

#include "abi/cuda_abi.h"
#include "driver/tail_jump.hpp"
#include "probe/symbols.hpp"

// libcuda 13.0 has about 670 functions.
#define SWITCH_THUNKS 1024
#define SWITCH_STRING_OF(number) #number
#define SWITCH_STRING(number) SWITCH_STRING_OF(number)
#if defined(__x86_64__)
#define SWITCH_THUNK(slot) "jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define SWITCH_THUNK(slot) "adrp x16, " slot "\nadd x16, x16, #:lo12:" slot "\nldr x16, [x16]\nbr x16\n"
#endif

// Thunk N jumps to the address in slot N.
asm(".pushsection .bss.switch_slots, \"aw\", %nobits\n.balign 8\n"
    "switch_slots: .skip 8 * " SWITCH_STRING(SWITCH_THUNKS) "\n.popsection\n"
    ".pushsection .text.switch_thunks, \"ax\"\n.balign 16\nswitch_thunks:\n.cfi_startproc\n.set switch_number, 0\n"
    ".rept " SWITCH_STRING(SWITCH_THUNKS) "\n.balign 16\n" SWITCH_THUNK("switch_slots + 8 * switch_number")
    ".set switch_number, switch_number + 1\n.endr\n.cfi_endproc\n.popsection\n");
extern "C" {
extern __attribute__((visibility("hidden"))) std::atomic<void *> switch_slots[SWITCH_THUNKS];
extern __attribute__((visibility("hidden"))) const std::array<char, 16> switch_thunks[SWITCH_THUNKS];
}

namespace {

constexpr const char *kDriver = "libcuda.so.1";

// A function as the preload gives it out, and the driver's own.
struct Pair {
    void *preload, *direct;
    friend bool operator==(const Pair &, const Pair &) = default;
};

std::mutex mutex;  // for all that follows, except that calls read `direct_now` and the wrappers' addresses without it
std::array<Pair, SWITCH_THUNKS> pairs;  // of each thunk
std::size_t used = 0;                   // thunks
bool too_few = false;                   // thunks
std::atomic<bool> direct_now{false};

// A function with a wrapper here, `here`.
struct Wrapped {
    const char *name;
    void *here;
    std::atomic<void *> preload{nullptr}, direct{nullptr};

    template <class Function>
    Function *now(bool directly) const {
        return reinterpret_cast<Function *>((directly ? direct : preload).load(std::memory_order_relaxed));
    }
};
extern Wrapped get_proc_address, get_proc_address_v2, mem_alloc, mem_free;

// Returns the address that the program gets.
void *switched(Pair pair) {
    const std::scoped_lock lock(mutex);
    for (Wrapped *one : {&get_proc_address, &get_proc_address_v2, &mem_alloc, &mem_free}) {
        if (!one->direct) one->direct = own_symbol(kDriver, one->name);
        if (pair.direct != one->direct) continue;
        one->preload = pair.preload;
        return one->here;
    }
    const std::size_t thunk = std::distance(pairs.begin(), std::find(pairs.begin(), pairs.begin() + used, pair));
    if (thunk == pairs.size()) {
        too_few = true;
        return pair.preload;
    }
    if (thunk == used) {
        pairs[used++] = pair;
        switch_slots[thunk] = direct_now ? pair.direct : pair.preload;
    }
    return const_cast<char *>(switch_thunks[thunk].data());
}

template <class... Status>
CUresult look_up(const Wrapped &by, const char *name, void **function, int version, uint64_t flags, Status *...status) {
    auto *preloads = by.now<CUresult(const char *, void **, int, uint64_t, Status *...)>(false);
    const CUresult result = preloads(name, function, version, flags, status...);
    if (result != CUDA_SUCCESS || !function || !*function) return result;
    auto *drivers = by.now<CUresult(const char *, void **, int, uint64_t, Status *...)>(true);
    void *direct = nullptr;
    if (drivers(name, &direct, version, flags, static_cast<Status *>(nullptr)...) == CUDA_SUCCESS && direct)
        *function = switched({*function, direct});
    return result;
}
CUresult look_up_v1(const char *name, void **function, int version, uint64_t flags) {
    return look_up(get_proc_address, name, function, version, flags);
}
CUresult look_up_v2(const char *name, void **function, int version, uint64_t flags,
                    CUdriverProcAddressQueryResult *status) {
    return look_up(get_proc_address_v2, name, function, version, flags, status);
}

struct ByPlace {
    std::size_t operator()(CUdeviceptr pointer) const noexcept { return pointer >> 9; }
};
// For each block of cuMemAlloc_v2: did the driver's own function allocate it? Has the blocks of both, so that both cost
// the same. Leaked, because threads may allocate until the process ends.
auto &blocks = *new std::unordered_map<CUdeviceptr, bool, ByPlace>;

CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
    const bool directly = direct_now.load(std::memory_order_relaxed);
    const CUresult result = mem_alloc.now<decltype(::cuMemAlloc_v2)>(directly)(pointer, bytes);
    if (result == CUDA_SUCCESS) {
        const std::scoped_lock lock(mutex);
        blocks[*pointer] = directly;
    }
    return result;
}
CUresult free_block(CUdeviceptr pointer) {
    bool directly = false;
    {
        const std::scoped_lock lock(mutex);  // not across the free: then another thread can get the address
        if (const auto block = blocks.find(pointer); block != blocks.end()) {
            directly = block->second;
            blocks.erase(block);
        }
    }
    return mem_free.now<decltype(::cuMemFree_v2)>(directly)(pointer);
}

Wrapped get_proc_address{"cuGetProcAddress", reinterpret_cast<void *>(look_up_v1)};
Wrapped get_proc_address_v2{"cuGetProcAddress_v2", reinterpret_cast<void *>(look_up_v2)};
Wrapped mem_alloc{"cuMemAlloc_v2", reinterpret_cast<void *>(allocate)};
Wrapped mem_free{"cuMemFree_v2", reinterpret_cast<void *>(free_block)};

using Dlsym = void *(void *, const char *);

// Returns the dlsym of the preload behind this one, or glibc's. dlsym itself would be ours.
Dlsym *next_dlsym() {
    static Dlsym *const next = [] {
        void *glibcs = own_symbol("libc.so.6", "dlsym");
        if (!glibcs) glibcs = own_symbol("libdl.so.2", "dlsym");  // up to 2.33
        return reinterpret_cast<Dlsym *>(reinterpret_cast<Dlsym *>(glibcs)(RTLD_NEXT, "dlsym"));
    }();
    return next;
}

void *answer(void *handle, const char *name) {
    void *found = next_dlsym()(handle, name);
    void *direct = found ? own_symbol(kDriver, name) : nullptr;
    return direct ? switched({found, direct}) : found;
}

}  // namespace

// Other look-ups than of the driver's functions in a library are the next dlsym's.
extern "C" __attribute__((used, visibility("hidden"))) void *switch_choose_dlsym(void *handle,
                                                                                 const char *name) noexcept {
    const bool ours = handle != RTLD_NEXT && handle != RTLD_DEFAULT && name && name[0] == 'c' && name[1] == 'u' &&
                      name[2] >= 'A' && name[2] <= 'Z';
    return reinterpret_cast<void *>(ours ? answer : next_dlsym());
}
CURB_TAIL_JUMP("dlsym", "switch_choose_dlsym");

// From now on the thunks jump to the driver's own functions, or to the preload's. Returns null, or why the two cannot
// be compared.
extern "C" __attribute__((visibility("default"))) const char *bench_switch(int direct) noexcept {
    const std::scoped_lock lock(mutex);
    direct_now = direct != 0;
    for (std::size_t i = 0; i < used; ++i)
        switch_slots[i].store(direct ? pairs[i].direct : pairs[i].preload, std::memory_order_relaxed);
    if (too_few) return "libbench_switch.so has too few thunks";
    return used ? nullptr : "the program finds no function of the driver by dlsym or cuGetProcAddress";
}
