// We compare the bound address of every relocation with the driver's addresses; names do not matter. A lazy slot that
// has not been used yet points into its own library and is not reported.
//
// One pass over the loaded libraries inspects one, so that other threads wait for the loader's lock for one library at
// most. References are read directly. Other memory of a library is read through /proc/self/mem, which returns an error
// if the program has unmapped or protected it.
#include "driver/bypass.hpp"

#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/libraries.hpp"
#include "control/descriptor.hpp"
#include "driver/driver.hpp"
#include "driver/libcuda.hpp"
#include "host/real_libc.hpp"
#include "policy/values/words.hpp"

// The loader may bind slots while we read them, and there may be red zones between variables.
#define CURB_NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))

namespace curb::shim {
namespace {

using Address = std::uintptr_t;

#if defined(__x86_64__)
constexpr std::array<std::uint64_t, 3> kAddressTypes{R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
#elif defined(__aarch64__)
constexpr std::array<std::uint64_t, 3> kAddressTypes{R_AARCH64_ABS64, R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT};
#endif

constexpr Address kMaxVariables = Address{64} << 20;  // bytes of a library's variables that we search
constexpr std::size_t kMaxObjects = 100'000;          // stops the loop: the list may change while we read it
constexpr Address kMaxMaps = Address{32} << 20;       // bytes of /proc/self/maps; a program may have 65,000 mappings
constexpr std::size_t kMaxLine = 8192;                // the rest of a longer line is cut off
constexpr std::size_t kMaxOthers = 16;                // drivers that a status lists

// The addresses that a reference may be bound to.
struct Targets {
    Range driver;           // of libcuda
    void *dlsym = nullptr;  // glibc's own
    void *dlvsym = nullptr;
};

// One loaded library, as read under the loader's lock.
struct Object {
    std::array<char, PATH_MAX> path{};
    const char *bound = nullptr;   // the first driver function that it is bound to
    std::size_t count = 0;         // of different driver functions
    bool looks_up_itself = false;  // bound to glibc's dlsym
    std::array<Range, 8> variables{};
};

// Returns the readable segment that contains the whole range; empty if none does.
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

// The relocations of one library that may refer to functions.
struct Relocations {
    const ElfW(Rela) *begin = nullptr;
    std::size_t count = 0;
};
struct Tables {
    Relocations data, calls;
};

Tables tables_of(const dl_phdr_info &info) noexcept {
    const ElfW(Dyn) *entry = dynamic_of(info);
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
        // glibc relocates these pointers in place, except where the dynamic section is read-only (the vDSO).
        if (begin < info.dlpi_addr) begin += info.dlpi_addr;
        if (size == 0 || !is_mapped(info, begin, size)) return {};
        return {reinterpret_cast<const ElfW(Rela) *>(begin), size / sizeof(ElfW(Rela))};
    };
    Tables out{table(data, data_size), calls_type == DT_RELA ? table(calls, calls_size) : Relocations{}};
    // Relative relocations come first and refer to no symbol. Skip them: the largest libraries have a million.
    const std::size_t skipped = std::min<std::size_t>(relative, out.data.count);
    out.data.begin += skipped;
    out.data.count -= skipped;
    return out;
}

CURB_NO_SANITIZE void compare(const Relocations &relocations, const dl_phdr_info &info, const Targets &targets,
                              Object &object) noexcept {
    std::array<const char *, 64> seen{};  // beyond 64, duplicates are counted too
    Range segment;                        // of the last relocation; usually the next one is in it, too
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

void inspect(const dl_phdr_info &info, const Targets &targets, Object &object) noexcept {
    object = {};
    if (range_of(info).begin == targets.driver.begin) return;  // libcuda may refer to its own functions
    std::strncpy(object.path.data(), info.dlpi_name, object.path.size() - 1);
    const Tables tables = tables_of(info);
    compare(tables.calls, info, targets, object);
    compare(tables.data, info, targets, object);
    std::size_t count = 0;
    for (int i = 0; i < info.dlpi_phnum && count < object.variables.size(); ++i) {
        const auto &segment = info.dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
        const Address begin = info.dlpi_addr + segment.p_vaddr;
        object.variables[count++] = {begin, begin + segment.p_memsz};
    }
}

// Reads a file of /proc. Uses pread only: if the program reused the descriptor number, pread fails on a socket or pipe
// and leaves a file's position unchanged.
class ProcFile {
  public:
    explicit ProcFile(const char *path) noexcept : file_(open(path, O_RDONLY | O_CLOEXEC)) {}
    // Returns the number of bytes read; 0 at the end or on error.
    std::size_t read(void *into, std::size_t size, Address at) const noexcept {
        const ssize_t got = file_.ours() ? pread(file_.number(), into, size, static_cast<off_t>(at)) : -1;
        return got > 0 ? static_cast<std::size_t>(got) : 0;
    }

  private:
    control::Descriptor file_;
};

// Returns a driver function whose address is stored in one of the library's variables; null if none is.
const char *stored_in(const Object &object, const Range &driver) {
    const ProcFile memory("/proc/thread-self/mem");
    std::vector<Address> block(8192);
    for (const Range &range : object.variables) {
        const Address begin = (range.begin + sizeof(Address) - 1) / sizeof(Address) * sizeof(Address);
        const Address end = std::min(range.end, begin + kMaxVariables);
        for (Address at = begin; at < end;) {
            const std::size_t wanted = std::min<std::size_t>(block.size() * sizeof(Address), end - at);
            const std::size_t got = memory.read(block.data(), wanted, at);
            for (std::size_t i = 0; i < got / sizeof(Address); ++i)
                if (driver.has(block[i]))
                    if (const char *symbol = symbol_of(reinterpret_cast<void *>(block[i]))) return symbol;
            // If a page cannot be read, continue with the next one.
            at += got / sizeof(Address) != 0 ? got / sizeof(Address) * sizeof(Address) : 4096;
        }
    }
    return nullptr;
}

std::string path_of(const Object &object) {
    if (object.path[0] != '\0') return object.path.data();
    std::array<char, PATH_MAX> program{};  // the loader's name of the program itself is empty
    const ssize_t size = readlink("/proc/thread-self/exe", program.data(), program.size());
    return size > 0 ? std::string(program.data(), static_cast<std::size_t>(size)) : "the program itself";
}

std::string more_than_one(const char *symbol, std::size_t count) {
    return symbol + (count > 1 ? " and " + std::to_string(count - 1) + " more" : std::string());
}

// Inspects the libraries of the program's own link namespace. False if a library was unloaded meanwhile, which changes
// the list's indices.
bool inspect_objects(const Targets &targets, std::vector<control::Bypass> &out) {
    const auto object = std::make_unique<Object>();
    unsigned long long unloaded = 0;
    for (std::size_t index = 0; index < kMaxObjects; ++index) {
        std::size_t at = 0;
        unsigned long long unloaded_so_far = 0;
        const bool found = any_library([&](const dl_phdr_info &info) {
            if (at++ != index) return false;
            unloaded_so_far = info.dlpi_subs;
            inspect(info, targets, *object);
            return true;
        });
        if (!found) return true;
        if (index > 0 && unloaded_so_far != unloaded) return false;
        unloaded = unloaded_so_far;
        if (object->bound) {
            out.push_back({path_of(*object), "its references to " + more_than_one(object->bound, object->count) +
                                                 " are bound to the driver itself"});
        } else if (object->looks_up_itself) {
            // A reference to glibc's dlsym alone proves nothing: most such libraries do not use the driver.
            if (const char *symbol = stored_in(*object, targets.driver))
                out.push_back({path_of(*object), "it bypassed curb to look up " + std::string(symbol)});
        }
    }
    return true;
}

// Parses a line of /proc/self/maps, such as "7f12a000-7f13a000 r-xp 00000000 08:01 1234    /usr/lib/libcuda.so.1".
// True if it is a driver's code; `begin` is its first address.
bool is_driver_code(std::string_view line, Address &begin, std::string_view &path) {
    const std::size_t slash = line.find('/'), blank = line.find(' ');
    if (slash == std::string_view::npos || blank == std::string_view::npos || blank + 4 > line.size() ||
        line[blank + 3] != 'x')
        return false;
    path = line.substr(slash);
    // Every function of the linker's stub library returns an error. On WSL the driver is a pair of files of this name,
    // by its documentation; we have not run it.
    if (!policy::file_name(path).starts_with("libcuda.so") || path.find("/stubs/") != std::string_view::npos ||
        path.find("/wsl/") != std::string_view::npos)
        return false;
    return std::from_chars(line.data(), line.data() + line.size(), begin, 16).ec == std::errc();
}

// Finds drivers in other link namespaces or from other files, which dl_iterate_phdr does not show here; each once.
void find_other_drivers(const Targets &targets, std::vector<control::Bypass> &out) {
    const ProcFile maps("/proc/thread-self/maps");
    std::array<char, 4096> block;
    std::string line;
    std::set<std::string, std::less<>> found;
    for (Address at = 0; at < kMaxMaps && found.size() < kMaxOthers;) {
        const std::size_t got = maps.read(block.data(), block.size(), at);
        if (got == 0) return;
        at += got;
        for (std::size_t i = 0; i < got; ++i) {
            if (block[i] != '\n') {
                if (line.size() < kMaxLine) line += block[i];
                continue;
            }
            Address begin = 0;
            std::string_view path;
            if (is_driver_code(line, begin, path) && !targets.driver.has(begin) && found.emplace(path).second)
                out.push_back({std::string(path), "it is a second CUDA driver, whose calls do not come through curb"});
            line.clear();
        }
    }
}

}  // namespace

std::vector<control::Bypass> bypasses() {
    std::vector<control::Bypass> out;
    if (!driver_loaded()) return out;
    const Targets targets{libcuda::range(), real::glibcs("dlsym"), real::glibcs("dlvsym")};
    if (targets.driver.end == 0) return out;
    constexpr int kTries = 3;  // if the program keeps unloading libraries, report those seen so far
    for (int i = 0; i < kTries; ++i) {
        out.clear();
        if (inspect_objects(targets, out)) break;
    }
    find_other_drivers(targets, out);
    return out;
}

}  // namespace curb::shim
