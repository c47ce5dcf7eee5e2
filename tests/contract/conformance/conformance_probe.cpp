#include "conformance_probe.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "abi/cuda_abi.h"
#include "conformance_rows.hpp"

namespace conformance {

void *(*reference)(const char *symbol) = nullptr;

namespace {

// Nothing here has a destructor: the last requests are answered after the destructors of static objects.
constinit std::string_view the_how;  // of this process

const char *soname_of(const char *symbol) {
    if (std::strncmp(symbol, "nvml", 4) == 0) return "libnvidia-ml.so.1";
    if (std::strncmp(symbol, "cu", 2) == 0) return "libcuda.so.1";
    return "libc.so.6";
}

// Opens the library by its full path, one of CONFORMANCE_PATHS.
void *by_path(const char *soname) {
    std::istringstream paths(std::getenv("CONFORMANCE_PATHS"));
    for (std::string path; std::getline(paths, path, ':');)
        if (path.substr(path.rfind('/') + 1) == soname) return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return dlopen(soname, RTLD_NOW | RTLD_LOCAL);  // glibc, which is loaded already
}

// Returns the library that should have a name, opened as the_how demands. Null if it demands no driver.
void *library_of(const char *symbol) {
    if (the_how.find("none") != the_how.npos) return nullptr;
    static auto &opened = *new std::map<std::string, void *>;
    const char *soname = soname_of(symbol);
    const auto [entry, is_new] = opened.try_emplace(soname, nullptr);
    if (is_new) {
        const bool global = the_how == "default" || the_how == "self" || the_how == "versioned-default" ||
                            the_how == "next" || the_how == "versioned-next";
        entry->second = the_how == "path" ? by_path(soname) : dlopen(soname, RTLD_NOW | (global ? RTLD_GLOBAL : 0));
    }
    return entry->second;
}

// A version that no symbol of the driver has: they are unversioned.
constexpr const char *kVersion = "GLIBC_2.2.5";

using Ask = void *(const char *, const char *);
void *ask_preload(const char *function, const char *symbol) {
    auto *ask = reinterpret_cast<Ask *>(dlsym(RTLD_DEFAULT, function));
    dlerror();
    return ask ? ask(symbol, kVersion) : nullptr;
}

void *of_stubs(const char *symbol) {
    void *stubs = dlopen(std::getenv("CONFORMANCE_STUB_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    return stubs ? dlsym(stubs, symbol) : nullptr;
}

// Looks up an export by name. Leaves glibc's error in dlerror.
void *symbol_by(std::string_view how, const char *symbol) {
    if (how == "stubs-linked") return reference(symbol);
    if (how == "stubs-default") return dlsym(RTLD_DEFAULT, symbol);
    if (how == "stubs-handle") return of_stubs(symbol);
    void *library = library_of(symbol);
    dlerror();
    if (how == "linked") return reference ? reference(symbol) : nullptr;
    if (how.substr(0, 7) == "default") return dlsym(RTLD_DEFAULT, symbol);
    if (how == "versioned-default") return dlvsym(RTLD_DEFAULT, symbol, kVersion);
    if (how.substr(0, 4) == "next") return ask_preload("conformance_next", symbol);
    if (how == "versioned-next") return ask_preload("conformance_versioned_next", symbol);
    if (how == "self") {
        void *program = dlopen(nullptr, RTLD_NOW);
        return dlsym(program, symbol);
    }
    if (!library) return nullptr;
    return how == "versioned" ? dlvsym(library, symbol, kVersion) : dlsym(library, symbol);
}

bool by_proc_address(std::string_view how) { return how[0] == 'v' && how.substr(0, 7) != "version"; }

struct ProcAnswer {
    bool asked = false;  // the driver has this form of cuGetProcAddress
    CUresult result = CUDA_SUCCESS;
    int status = 0;
    void *address = nullptr;
};

constexpr auto kUntouched = static_cast<CUdriverProcAddressQueryResult>(3);  // none of its values
constexpr std::uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

ProcAnswer proc(std::string_view how, const char *name, int version, std::uint64_t flags) {
    ProcAnswer answer;
    if (how == "v1") {
        auto *get = reinterpret_cast<decltype(&cuGetProcAddress)>(symbol_by("handle", "cuGetProcAddress"));
        if (!get) return answer;
        answer.asked = true;
        answer.result = get(name, &answer.address, version, flags);
        return answer;
    }
    auto *get = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(
        symbol_by(how == "v2-stubs" ? "stubs-linked" : "handle", "cuGetProcAddress_v2"));
    if (get && how == "v2-nested") {
        void *inner = nullptr;
        get("cuGetProcAddress", &inner, 12000, 0, nullptr);
        get = reinterpret_cast<decltype(get)>(inner);
    }
    if (!get) return answer;
    if (how == "v2-legacy" && !(flags & kPerThread)) flags |= CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    auto status = kUntouched;
    answer.asked = true;
    answer.result = get(name, &answer.address, version, flags, how == "v2-no-status" ? nullptr : &status);
    answer.status = static_cast<int>(status);
    return answer;
}

// Asks for a row's own name and version. Asks nothing if the symbol has no row.
ProcAnswer proc_of(std::string_view how, const char *symbol) {
    const Row *row = row_of(symbol);
    return row && *row->base ? proc(how, row->base, row->since, row->per_thread ? kPerThread : 0) : ProcAnswer{};
}

void *find(const char *symbol) {
    const Row *row = row_of(symbol);
    const bool matters = row && (row->kind == Kind::wrap || row->kind == Kind::nvml);
    // Functions without a hook are only needed for the setup. Stubs come first where there are any.
    if (!matters) {
        void *stub = the_how.find("stubs") == the_how.npos ? nullptr : of_stubs(symbol);
        return stub ? stub : symbol_by("handle", symbol);
    }
    return by_proc_address(the_how) ? proc_of(the_how, symbol).address : symbol_by(the_how, symbol);
}

// If there is a thunk (shim/driver/thunks.cpp) at the address, returns its target with the gate open; else null.
void *behind_thunk(const void *address) {
    const auto *code = static_cast<const unsigned char *>(address);
    const auto word = [&](int at) {
        std::int32_t out = 0;
        std::memcpy(&out, code + at, sizeof out);
        return out;
    };
#if defined(__x86_64__)
    constexpr unsigned char kEndbr[] = {0xF3, 0x0F, 0x1E, 0xFA}, kCompare[] = {0x83, 0x3D}, kJump[] = {0xFF, 0x25};
    const int jump = code[11] == 0x0F ? 17 : 13;  // behind a jne of six bytes, or of two
    if (std::memcmp(code, kEndbr, 4) != 0 || std::memcmp(code + 4, kCompare, 2) != 0 ||
        std::memcmp(code + jump, kJump, 2) != 0)
        return nullptr;
    return *reinterpret_cast<void *const *>(code + jump + 6 + word(jump + 2));
#elif defined(__aarch64__)
    // bti, adrp and ldr of the gate, adrp and add of the slot, cbnz w16
    if ((static_cast<std::uint32_t>(word(20)) & 0xFF00001F) != 0x35000010) return nullptr;
    const auto page = static_cast<std::uint32_t>(word(12)), low = static_cast<std::uint32_t>(word(16));
    const auto pages = static_cast<std::int32_t>((page >> 5 << 2 | (page >> 29 & 3)) << 11) >> 11;
    const auto here = (reinterpret_cast<std::uintptr_t>(code) + 12) & ~std::uintptr_t{0xFFF};
    return *reinterpret_cast<void *const *>(here + static_cast<std::uintptr_t>(std::int64_t{pages} * 4096) +
                                            (low >> 10 & 0xFFF));
#endif
}

// "libcuda.so.1+0x1e1f0", or "thunk of libcuda.so.1+0x1e1f0" for a thunk without a name. `symbol`: the export's name.
std::string place_of(void *address, const char *&symbol) {
    if (!address) return "null";
    Dl_info info{};
    if (!dladdr(address, &info) || !info.dli_fname) return "nowhere";
    const char *slash = std::strrchr(info.dli_fname, '/');
    const std::string library = slash ? slash + 1 : info.dli_fname;
    if (info.dli_saddr == address && info.dli_sname) {
        symbol = info.dli_sname;
    } else if (library.rfind("libcurb", 0) == 0) {
        if (void *function = behind_thunk(address)) return "thunk of " + place_of(function, symbol);
    }
    char offset[32];
    std::snprintf(offset, sizeof offset, "+0x%zx",
                  static_cast<std::size_t>(static_cast<char *>(address) - static_cast<char *>(info.dli_fbase)));
    return library + offset;
}

void write_answer(const std::string &code, void *address, bool error) {
    const char *symbol = "";
    const std::string place = place_of(address, symbol);
    std::printf("%s\t%s\t%s\t%d\n", code.c_str(), place.c_str(), symbol, error);
}

void answer_request(const std::string &request) {
    const std::size_t space = request.find(' ');
    const std::string verb = request.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : request.substr(space + 1);
    if (verb == "symbol" && !by_proc_address(the_how)) {
        void *address = symbol_by(the_how, rest.c_str());
        write_answer("-", address, dlerror() != nullptr);
    } else if (verb == "symbol" || verb == "proc") {
        ProcAnswer answer;
        if (verb == "symbol") {
            answer = proc_of(the_how, rest.c_str());
        } else {
            const std::size_t version = rest.find(' ');
            char *flags = nullptr;
            const long number = std::strtol(rest.c_str() + version, &flags, 10);
            answer = proc(the_how, rest.substr(0, version).c_str(), static_cast<int>(number),
                          std::strtoull(flags, nullptr, 10));
        }
        if (!answer.asked) return write_answer("not asked", nullptr, false);
        write_answer(std::to_string(answer.result) + "/" + std::to_string(answer.status), answer.address, false);
    } else if (verb == "library") {
        link_map *map = nullptr;
        void *library = dlopen(rest.c_str(), RTLD_NOW);
        const bool known = library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
        write_answer(known ? map->l_name : "none", nullptr, !known);
    } else {
        const std::string code = verb == "init"       ? initialise(find)
                                 : verb == "allocate" ? allocate(find, rest)
                                                      : figures(find, rest);
        write_answer(code, nullptr, false);
    }
}

}  // namespace

void answer_requests(const char *how) {
    the_how = how;
    char *line = nullptr;
    std::size_t size = 0;
    for (ssize_t length = 0; (length = getline(&line, &size, stdin)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = 0;
        answer_request(line);
        std::fflush(stdout);  // answers before a crash arrive
    }
    std::free(line);
}

namespace {

// The way to look up for requests that are answered at the end of the process; null if there are none.
constinit const char *how_at_exit = nullptr;
constinit const char *how_in_destructor = nullptr;
const struct Static {
    ~Static() {
        if (how_in_destructor) answer_requests(how_in_destructor);
    }
} static_object;

int exit_status_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int answer_when(std::string_view when, const char *how, char **argv) {
    the_how = how;
    if (when == "main") {
        answer_requests(how);
    } else if (when == "exec" || when == "fork") {
        const pid_t child = fork();
        if (child != 0) return exit_status_of(child);
        if (when == "exec") {
            setenv("CONFORMANCE_WHEN", "main", 1);
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        answer_requests(how);
        _exit(0);
    } else if (when == "at-exit") {
        initialise(find);
        how_at_exit = how;
        std::atexit([] { answer_requests(how_at_exit); });
    } else if (when == "static-destructor") {
        initialise(find);
        how_in_destructor = how;
    }
    return 0;  // constructor, destructor: libconformance_early.so answers
}

}  // namespace conformance
