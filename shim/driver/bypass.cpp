// What counts is where a reference leads, so relocations are not looked up by name: their places are read, and held
// against the driver's addresses. A lazy slot that nobody has used yet leads to its own library, and is no finding.
//
// dl_iterate_phdr holds a lock of the loader while it calls back. An allocator of the program's may itself wait for
// that lock (to unwind, to load) while it holds its own, so nothing is allocated there; and each object is visited by a
// call of its own, so that nobody waits for more than one object. References are read where the loader has written
// them. Other memory of a library is read through /proc/self/mem, which answers an error where the program has unmapped
// or protected it.
#include "bypass.hpp"

#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "driver.hpp"
#include "range.hpp"
#include "real_libc.hpp"

// Reads what others write: slots that are bound meanwhile, red zones between variables.
#define CURB_READS_OTHERS __attribute__((no_sanitize("address", "thread", "undefined")))

namespace curb::shim {
namespace {

using Address = std::uintptr_t;

#if defined(__x86_64__)
constexpr std::array<std::uint64_t, 3> kAddressTypes{R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
#elif defined(__aarch64__)
constexpr std::array<std::uint64_t, 3> kAddressTypes{R_AARCH64_ABS64, R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT};
#endif

constexpr Address kMostVariables = Address{64} << 20;  // of a library, that are looked through
constexpr std::size_t kMostObjects = 100'000;          // no end of them: the list changes under our feet

// Where references can lead, and what they are held against.
struct Targets {
    Range driver;           // its object
    void *dlsym = nullptr;  // glibc's own
    void *dlvsym = nullptr;
};

// One object, as it was found under the lock.
struct Object {
    std::array<char, PATH_MAX> path{};
    const char *bound = nullptr;   // the first of the driver's functions that it is bound to
    std::size_t count = 0;         // how many different ones
    bool looks_up_itself = false;  // bound to glibc's dlsym
    std::array<Range, 8> variables{};
};

struct Visit {
    const Targets &targets;
    std::size_t index;
    std::size_t at = 0;
    unsigned long long unloaded = 0;
    Object *object;
};

// The segment that can be read and has all of it; empty: none has.
Range segment_of(const dl_phdr_info &info, Address begin, Address size) noexcept {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto &segment = info.dlpi_phdr[i];
        const Range range{info.dlpi_addr + segment.p_vaddr, info.dlpi_addr + segment.p_vaddr + segment.p_memsz};
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_R) != 0 && range.has(begin, size)) return range;
    }
    return {};
}
bool is_mapped(const dl_phdr_info &info, Address begin, Address size) noexcept {
    return segment_of(info, begin, size).end != 0;
}

// The relocations of one object that can be references to functions.
struct Relocations {
    const ElfW(Rela) *begin = nullptr;
    std::size_t count = 0;
};
struct Tables {
    Relocations data, calls;
};

Tables tables_of(const dl_phdr_info &info) noexcept {
    const ElfW(Dyn) *entry = nullptr;
    for (int i = 0; i < info.dlpi_phnum; ++i)
        if (info.dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = reinterpret_cast<const ElfW(Dyn) *>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    if (!entry || !is_mapped(info, reinterpret_cast<Address>(entry), sizeof *entry)) return {};
    Address data = 0, data_size = 0, relative = 0, calls = 0, calls_size = 0, calls_type = DT_RELA;
    for (; entry->d_tag != DT_NULL; ++entry) {
        switch (entry->d_tag) {
            case DT_RELA: data = entry->d_un.d_ptr; break;
            case DT_RELASZ: data_size = entry->d_un.d_val; break;
            case DT_RELACOUNT: relative = entry->d_un.d_val; break;
            case DT_JMPREL: calls = entry->d_un.d_ptr; break;
            case DT_PLTRELSZ: calls_size = entry->d_un.d_val; break;
            case DT_PLTREL: calls_type = entry->d_un.d_val; break;
            default: break;
        }
    }
    const auto table = [&](Address begin, Address size) -> Relocations {
        // glibc has made addresses of these, but for an object whose dynamic section cannot be written (the vDSO).
        if (begin < info.dlpi_addr) begin += info.dlpi_addr;
        if (size == 0 || !is_mapped(info, begin, size)) return {};
        return {reinterpret_cast<const ElfW(Rela) *>(begin), size / sizeof(ElfW(Rela))};
    };
    Tables out{table(data, data_size), calls_type == DT_RELA ? table(calls, calls_size) : Relocations{}};
    // Those that only move with the object come first, and are most of them: a million in the largest libraries.
    const std::size_t passed_over = std::min<std::size_t>(relative, out.data.count);
    out.data.begin += passed_over;
    out.data.count -= passed_over;
    return out;
}

CURB_READS_OTHERS void hold_against(const Relocations &relocations, const dl_phdr_info &info, const Targets &targets,
                                    Object &object) noexcept {
    std::array<const char *, 64> seen{};  // more are not counted apart
    Range segment;                        // of the last place: the next one is mostly in it too
    for (std::size_t i = 0; i < relocations.count; ++i) {
        const ElfW(Rela) &one = relocations.begin[i];
        const std::uint64_t type = ELF64_R_TYPE(one.r_info);
        if (type != kAddressTypes[0] && type != kAddressTypes[1] && type != kAddressTypes[2]) continue;
        const Address place = info.dlpi_addr + one.r_offset;
        if (place % alignof(Address) != 0) continue;
        if (!segment.has(place, sizeof place)) segment = segment_of(info, place, sizeof place);
        if (segment.end == 0) continue;
        const Address leads_to = __atomic_load_n(reinterpret_cast<const Address *>(place), __ATOMIC_RELAXED);
        void *const function = reinterpret_cast<void *>(leads_to);
        if (function == targets.dlsym || function == targets.dlvsym) object.looks_up_itself = true;
        const char *symbol = targets.driver.has(leads_to) ? symbol_of(function) : nullptr;
        if (!symbol) continue;
        if (!object.bound) object.bound = symbol;
        const auto end = seen.begin() + static_cast<std::ptrdiff_t>(std::min(object.count, seen.size()));
        if (std::find(seen.begin(), end, symbol) != end) continue;
        if (end != seen.end()) *end = symbol;
        ++object.count;
    }
}

int visit(dl_phdr_info *info, std::size_t, void *into) {
    auto &now = *static_cast<Visit *>(into);
    if (now.at++ != now.index) return 0;
    now.unloaded = info->dlpi_subs;
    Object &object = *now.object;
    object = {};
    if (range_of(*info).begin == now.targets.driver.begin) return 1;  // the driver may list its own functions
    std::strncpy(object.path.data(), info->dlpi_name, object.path.size() - 1);
    const Tables tables = tables_of(*info);
    hold_against(tables.calls, *info, now.targets, object);
    hold_against(tables.data, *info, now.targets, object);
    std::size_t count = 0;
    for (int i = 0; i < info->dlpi_phnum && count < object.variables.size(); ++i) {
        const auto &segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
        const Address begin = info->dlpi_addr + segment.p_vaddr;
        object.variables[count++] = {begin, begin + segment.p_memsz};
    }
    return 1;
}

struct DriverSought {
    Address inside;
    Range found;
};
int find_driver_object(dl_phdr_info *info, std::size_t, void *into) {
    auto &sought = *static_cast<DriverSought *>(into);
    const Range whole = range_of(*info);
    if (!whole.has(sought.inside)) return 0;
    sought.found = whole;
    return 1;
}

// Regular files of /proc are read by pread alone, which fails on a socket or pipe that has taken the number, and
// leaves a file's position where it is.
class ProcFile {
  public:
    explicit ProcFile(const char *path) noexcept : file_(open(path, O_RDONLY | O_CLOEXEC)) {}
    // How much was read; 0: the end, or it cannot be read.
    std::size_t read(void *into, std::size_t size, Address at) const noexcept {
        const ssize_t got = file_.ours() ? pread(file_.number(), into, size, static_cast<off_t>(at)) : -1;
        return got > 0 ? static_cast<std::size_t>(got) : 0;
    }

  private:
    control::Descriptor file_;
};

// A function of the driver's whose address stands in the library's variables; null: none does.
const char *kept_in(const Object &object, const Range &driver) {
    const ProcFile memory("/proc/thread-self/mem");
    std::vector<Address> block(8192);
    for (const Range &range : object.variables) {
        const Address begin = (range.begin + sizeof(Address) - 1) / sizeof(Address) * sizeof(Address);
        const Address end = std::min(range.end, begin + kMostVariables);
        for (Address at = begin; at < end;) {
            const std::size_t wanted = std::min<std::size_t>(block.size() * sizeof(Address), end - at);
            const std::size_t got = memory.read(block.data(), wanted, at);
            for (std::size_t i = 0; i < got / sizeof(Address); ++i)
                if (driver.has(block[i]))
                    if (const char *symbol = symbol_of(reinterpret_cast<void *>(block[i]))) return symbol;
            // A page that cannot be read: the next one may be.
            at += got / sizeof(Address) != 0 ? got / sizeof(Address) * sizeof(Address) : 4096;
        }
    }
    return nullptr;
}

std::string path_of(const Object &object) {
    if (object.path[0] != '\0') return object.path.data();
    std::array<char, PATH_MAX> program{};  // the loader gives the program itself no name
    const ssize_t size = readlink("/proc/thread-self/exe", program.data(), program.size());
    return size > 0 ? std::string(program.data(), static_cast<std::size_t>(size)) : "the program itself";
}

std::string more_than_one(const char *symbol, std::size_t count) {
    return symbol + (count > 1 ? " and " + std::to_string(count - 1) + " more" : std::string());
}

// The objects of the program's own name space. False: some went meanwhile, and others took their places in the list.
bool look_at_objects(const Targets &targets, std::vector<control::Passed> &out) {
    const auto object = std::make_unique<Object>();
    unsigned long long unloaded = 0;
    for (std::size_t index = 0; index < kMostObjects; ++index) {
        Visit now{targets, index, 0, 0, object.get()};
        if (dl_iterate_phdr(visit, &now) == 0) return true;
        if (index > 0 && now.unloaded != unloaded) return false;
        unloaded = now.unloaded;
        if (object->bound) {
            out.push_back({path_of(*object), "its references to " + more_than_one(object->bound, object->count) +
                                                 " are bound to the driver itself"});
        } else if (object->looks_up_itself) {
            // A reference to glibc's dlsym alone is no proof: most have no use for the driver.
            if (const char *symbol = kept_in(*object, targets.driver))
                out.push_back({path_of(*object), "it looked up " + std::string(symbol) + " of the driver past curb"});
        }
    }
    return true;
}

// "7f12a000-7f13a000 r-xp 00000000 08:01 1234    /usr/lib/libcuda.so.1" of a driver's code -> its first address.
bool is_driver_code(std::string_view line, Address &begin, std::string_view &path) {
    const std::size_t slash = line.find('/'), blank = line.find(' ');
    if (slash == std::string_view::npos || blank == std::string_view::npos || blank + 4 > line.size() ||
        line[blank + 3] != 'x')
        return false;
    path = line.substr(slash);
    // The linker's stubs answer errors to everything. On WSL the driver is a pair of files of this name (read, not
    // run).
    if (!path.substr(path.rfind('/') + 1).starts_with("libcuda.so") || path.find("/stubs/") != std::string_view::npos ||
        path.find("/wsl/") != std::string_view::npos)
        return false;
    return std::from_chars(line.data(), line.data() + line.size(), begin, 16).ec == std::errc();
}

// Drivers that the loader's own list does not show from here: of other name spaces, or of other files.
void look_for_other_drivers(const Targets &targets, std::vector<control::Passed> &out) {
    const ProcFile maps("/proc/thread-self/maps");
    std::array<char, 4096> block;
    std::string line;
    for (Address at = 0;;) {
        const std::size_t got = maps.read(block.data(), block.size(), at);
        if (got == 0) return;
        at += got;
        for (std::size_t i = 0; i < got; ++i) {
            if (block[i] != '\n') {
                line += block[i];
                continue;
            }
            Address begin = 0;
            std::string_view path;
            if (is_driver_code(line, begin, path) && !targets.driver.has(begin))
                out.push_back({std::string(path), "it is a second CUDA driver, whose calls do not come through curb"});
            line.clear();
        }
    }
}

}  // namespace

std::vector<control::Passed> passed() {
    std::vector<control::Passed> out;
    if (!driver_loaded()) return out;
    DriverSought sought{reinterpret_cast<Address>(driver().cuInit.address.load(std::memory_order_acquire)), {}};
    if (dl_iterate_phdr(find_driver_object, &sought) == 0) return out;
    const Targets targets{sought.found, real::glibcs("dlsym"), real::glibcs("dlvsym")};
    constexpr int kTries = 3;  // a program that unloads all the time is told of as far as it was seen
    for (int i = 0; i < kTries; ++i) {
        out.clear();
        if (look_at_objects(targets, out)) break;
    }
    look_for_other_drivers(targets, out);
    return out;
}

}  // namespace curb::shim
