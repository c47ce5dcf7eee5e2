#include "driver/driver.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/keep_errno.hpp"
#include "driver/libcuda.hpp"
#include "driver/thunks/thunks.hpp"
#include "host/real_libc.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim {

constinit Driver detail::the_driver;
constinit Driver detail::counting_driver;

namespace {

using detail::counting_driver;
using detail::the_driver;

enum class StreamForm : std::uint8_t { legacy, per_thread };

// One row of entry_points.def, as look-ups use it.
struct Row {
    const char *symbol;
    const char *base;
    int since;
    StreamForm form;
    void *(*wrapper)() noexcept;
};

constexpr auto legacy = StreamForm::legacy;
constexpr auto per_thread = StreamForm::per_thread;

// Functions, not addresses, so that the table is a constant: programs call dlsym before any constructor has run.
template <auto Export>
void *export_address() noexcept {
    return reinterpret_cast<void *>(Export);
}
template <auto Member>
void fill_slot(void *address) noexcept {
    auto &slot = (the_driver.*Member).address;
    slot.store(reinterpret_cast<decltype(slot.load())>(address));
}

// Takes the address of every export, so a row without a wrapper does not link.
constexpr Row kRows[] = {
#define CURB_WRAP(symbol, base, since, stream, rule) {#symbol, base, since, stream, &export_address<&::symbol>},
#include "driver/tables/entry_points.def"
};
constexpr std::size_t kRowCount = std::size(kRows);

// The driver's address in the slot of a row; null if it is unknown. By the slot's position: a function for each row
// would be 30 KB of code and relocations.
using Pointer = std::atomic<void *>;
Pointer &slot_of(const Row &row) noexcept {
    static_assert(sizeof(Driver::cuInit) == sizeof(Pointer));
    return reinterpret_cast<Pointer *>(&the_driver)[&row - kRows];
}

// Rows sorted by the driver's address. Built once, when the driver is found.
struct Wrappers {
    struct Wrapper {
        void *address;
        void *wrapper;
    };
    std::array<Wrapper, kRowCount> rows{};
    std::size_t count = 0;
};
constinit Wrappers wrappers;

// Fills the slots of all functions that libcuda exports. Two threads may run it at once, or one late: all store the
// same values, and keep those that adopt() has stored.
void fill(void *handle) noexcept {
    auto *look_up = real::dlsym();
    Wrappers sorted;
    for (const Row &row : kRows) {
        void *address = look_up(handle, row.symbol), *wrapper = row.wrapper();
        if (!address || address == wrapper) continue;
        slot_of(row).store(address);
        sorted.rows[sorted.count++] = {address, wrapper};
    }
#define CURB_CALL(symbol) fill_slot<&Driver::symbol>(look_up(handle, #symbol));
#include "driver/tables/entry_points.def"
    dlerror();  // clear the error for symbols that an older driver lacks
    std::sort(sorted.rows.begin(), sorted.rows.begin() + sorted.count,
              [](const auto &a, const auto &b) { return a.address < b.address; });
    wrappers = sorted;
    libcuda::found(handle);
    thunks::fill();
    curb_gate.fetch_and(~gate::kNoDriver);
}

}  // namespace

// Never loads libcuda: a program that does not use it must stay without it.
bool detail::find_driver() noexcept {
    if ((curb_gate.load() & gate::kNoDriver) == 0) return true;
    const KeepErrno keep_errno;
    // NODELETE: if libcuda were unloaded, our slots would dangle. A handle alone would not keep it from a program that
    // closes it more often than it opened it.
    constexpr int kIfLoaded = RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE;
    void *handle = dlopen("libcuda.so.1", kIfLoaded);
    if (!handle) handle = dlopen("libcuda.so.1", kIfLoaded);  // the first may have lacked memory
    if (!handle) dlerror();
    if (handle) fill(handle);
    return handle != nullptr;
}

bool driver_loaded() noexcept { return detail::find_driver(); }

void detail::load_driver() noexcept {
    const KeepErrno keep_errno;
    if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) dlerror();
    find_driver();
}

namespace {

template <class... Args>
void end(Slot<CUresult(Args...)> &slot) noexcept {
    slot.address.store([](Args...) { return CUDA_ERROR_DEINITIALIZED; });
}

// Returns a driver whose functions all return CUDA_ERROR_DEINITIALIZED.
const Driver &ended_driver() noexcept {
    static Driver driver;
    static constinit std::atomic<bool> made{false};
    if (!made) {
#define CURB_WRAP(symbol, base, since, stream, rule) end(driver.symbol);
#define CURB_CALL(symbol) end(driver.symbol);
#include "driver/tables/entry_points.def"
        made = true;
    }
    return driver;
}

}  // namespace

const Driver &detail::driver_slowly() noexcept {
    find_driver();
    gate::note_call();
    if (gate::is_closed() && !gate::wait()) return ended_driver();
    return gate::counts_all() && !own_thread::is_own() ? counting_driver : the_driver;
}

namespace {

bool is_counting(const void *slot) noexcept { return slot >= &counting_driver && slot < &counting_driver + 1; }
std::size_t index_of(const void *slot) noexcept {
    const Driver *table = is_counting(slot) ? &counting_driver : &the_driver;
    const auto place = static_cast<const char *>(slot) - reinterpret_cast<const char *>(table);
    return static_cast<std::size_t>(place) / sizeof(Slot<CUresult()>);
}
// Returns the thunk of a function, and fills the slot with it. Null if libcuda lacks the function.
void *counting(std::size_t index) noexcept {
    void *function = reinterpret_cast<Pointer *>(&the_driver)[index];
    if (!function) return nullptr;
    void *thunk = thunks::counting(function);
    reinterpret_cast<Pointer *>(&counting_driver)[index].store(thunk);
    return thunk;
}

}  // namespace

const char *name_of_slot(const void *slot) noexcept {
    const std::size_t index = index_of(slot);
    return index < kRowCount ? kRows[index].symbol : "a function of the driver";
}

void *detail::fallback_for(const void *slot) noexcept {
    const std::size_t index = index_of(slot);
    if (is_counting(slot))
        if (void *thunk = counting(index)) return thunk;
    if (index >= kRowCount) return nullptr;  // a function that curb calls and does not export
    const Row &row = kRows[index];
    const bool loaded = find_driver();
    if (void *function = slot_of(row)) return function;  // another thread has loaded libcuda
    if (void *stub = stubs::definition(row.symbol, row.wrapper(), stubs::caller())) return stub;
    if (!loaded) load_driver();
    return slot_of(row);
}

void *wrapper_of(void *driver_address) noexcept {
    const auto *begin = wrappers.rows.data(), *end = begin + wrappers.count;
    const auto *found = std::lower_bound(begin, end, driver_address,
                                         [](const auto &row, void *address) { return row.address < address; });
    return found != end && found->address == driver_address ? found->wrapper : nullptr;
}

const char *symbol_of(void *driver_address) noexcept {
    if (!driver_address) return nullptr;
    for (const Row &row : kRows)
        if (slot_of(row) == driver_address) return row.symbol;
    return thunks::name_at(driver_address);
}

void *wrapper_named(const char *symbol) noexcept {
    for (const Row &row : kRows)
        if (std::strcmp(row.symbol, symbol) == 0) return row.wrapper();
    return thunks::named(symbol);
}

void *nvml_wrapper_named(const char *symbol) noexcept {
#define CURB_NVML(name, rule) \
    if (std::strcmp(symbol, #name) == 0) return reinterpret_cast<void *>(&::name);
#include "driver/tables/entry_points.def"
    return nullptr;
}

void *adopt(const char *name, int version, std::uint64_t flags, void *driver_address) noexcept {
    const StreamForm form = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? per_thread : legacy;
    const Row *best = nullptr;
    for (const Row &row : kRows)
        if (row.form == form && row.since <= version && std::strcmp(row.base, name) == 0 &&
            (!best || row.since > best->since))
            best = &row;
    // If the row has its own address, this one is of a variant newer than the table: return it unwrapped.
    if (!best || slot_of(*best) != nullptr) return nullptr;
    slot_of(*best).store(driver_address);
    return best->wrapper();
}

}  // namespace curb::shim
