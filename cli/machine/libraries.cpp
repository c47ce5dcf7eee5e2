#include "machine/libraries.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "control/descriptor.hpp"
#include "control/version_note.hpp"
#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using Found = policy::Result<fs::path, std::string>;

constexpr const char *kName = "libcurb.so";
constexpr int kMostHeaders = 512;      // a program has a dozen
constexpr unsigned kMostNotes = 4096;  // bytes; it has a hundred

class File {
  public:
    // Opens regular files only: opening a device or a FIFO has side effects.
    explicit File(const std::string &path) {
        const control::Descriptor named(::open(path.c_str(), O_PATH | O_CLOEXEC));
        struct stat status {};
        if (!named || ::fstat(named.number(), &status) != 0 || !S_ISREG(status.st_mode)) return;
        const std::string same = "/proc/self/fd/" + std::to_string(named.number());
        file_ = control::Descriptor(::open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    }
    bool read(void *into, std::size_t size, std::uint64_t at) const { return read_some(into, size, at) == size; }
    // Returns how many bytes it read; less than `size` at the end of the file.
    std::size_t read_some(void *into, std::size_t size, std::uint64_t at) const {
        const ssize_t got = file_ ? ::pread(file_.number(), into, size, static_cast<off_t>(at)) : -1;
        return got < 0 ? 0 : static_cast<std::size_t>(got);
    }

  private:
    control::Descriptor file_;
};

// Returns the version in a segment of ELF notes. A note has the sizes of its owner and text, a type, the owner, the
// text. Empty if no note is curb's.
std::string version_in(std::string_view notes) {
    constexpr std::size_t kHeader = 12;
    const auto aligned = [](std::size_t size) { return (size + 3) / 4 * 4; };
    for (std::size_t at = 0; at + kHeader <= notes.size();) {
        std::uint32_t header[3];
        std::memcpy(header, notes.data() + at, kHeader);
        const std::size_t text = at + kHeader + aligned(header[0]), end = text + aligned(header[1]);
        if (end > notes.size()) break;
        const std::string_view owner = notes.substr(at + kHeader, header[0]);
        if (owner == std::string_view(control::kNoteOwner, sizeof control::kNoteOwner) &&
            header[2] == control::kVersionNote)
            return std::string(notes.substr(text, header[1])).c_str();
        at = end;
    }
    return {};
}

template <class Header, class Segment>
std::optional<Elf> read_as(const File &file, int bits) {
    Header header{};
    if (!file.read(&header, sizeof header, 0)) return std::nullopt;
    Elf out{bits, header.e_machine, {}, {}};
    for (int i = 0; i < header.e_phnum && i < kMostHeaders; ++i) {
        Segment segment{};
        if (!file.read(&segment, sizeof segment, header.e_phoff + std::uint64_t{header.e_phentsize} * unsigned(i)))
            break;
        if (segment.p_type == PT_NOTE && segment.p_align <= 4 && segment.p_filesz <= kMostNotes) {
            std::string notes(segment.p_filesz, '\0');
            if (file.read(notes.data(), notes.size(), segment.p_offset)) out.version += version_in(notes);
        }
        if (segment.p_type != PT_INTERP || segment.p_filesz == 0 || segment.p_filesz > PATH_MAX) continue;
        std::string name(segment.p_filesz, '\0');
        if (file.read(name.data(), name.size(), segment.p_offset)) out.interpreter = name.c_str();
    }
    return out;
}

// Returns the directory that holds bin/, lib/ and sim/.
fs::path prefix() { return own_file().parent_path().parent_path(); }

// Returns the first candidate that is an ELF file. The error lists all of them, or says that /proc is missing: without
// it, curb finds neither its own file nor opens any other.
Found first_of(const std::vector<fs::path> &candidates, const char *what, const char *remedy) {
    for (const fs::path &candidate : candidates)
        if (read_elf(candidate.string())) return candidate;
    if (::access("/proc/self/fd", F_OK) != 0)
        return std::string("/proc is not mounted, and curb needs it; mount -t proc proc /proc");
    const auto name = [](const fs::path &one) { return one.native(); };
    return std::string("there is no ") + what + " (looked for " + policy::joined(candidates, ", ", name) + "); " +
           remedy;
}

}  // namespace

fs::path own_file() {
    std::error_code error;
    return fs::read_symlink("/proc/self/exe", error);
}

std::optional<Elf> read_elf(const std::string &path) {
    constexpr int kOurOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
    const File file(path);
    unsigned char identity[EI_NIDENT] = {};
    if (!file.read(identity, sizeof identity, 0) || std::memcmp(identity, ELFMAG, SELFMAG) != 0 ||
        identity[EI_DATA] != kOurOrder)
        return std::nullopt;
    if (identity[EI_CLASS] == ELFCLASS64) return read_as<Elf64_Ehdr, Elf64_Phdr>(file, 64);
    if (identity[EI_CLASS] == ELFCLASS32) return read_as<Elf32_Ehdr, Elf32_Phdr>(file, 32);
    return std::nullopt;
}

std::string read_regular_file(const std::string &path, std::size_t most) {
    const File file(path);
    std::string out;
    char block[64 << 10];
    while (out.size() < most) {
        const std::size_t got = file.read_some(block, std::min(sizeof block, most - out.size()), out.size());
        if (got == 0) break;
        out.append(block, got);
    }
    return out;
}

bool is_mounted(const std::string &path, unsigned long flag) {
    struct statvfs system {};
    return ::statvfs(path.c_str(), &system) == 0 && (system.f_flag & flag) != 0;
}

bool same_architecture(const Elf &a, const Elf &b) { return a.machine == b.machine && a.bits == b.bits; }

std::string architecture_of(const Elf &elf) {
    if (elf.machine == EM_X86_64) return elf.bits == 64 ? "x86-64" : "x32";
    if (elf.machine == EM_AARCH64) return "aarch64";
    if (elf.machine == EM_386) return "32-bit x86";
    if (elf.machine == EM_ARM) return "32-bit ARM";
    return "machine " + std::to_string(elf.machine) + " (" + std::to_string(elf.bits) + " bits)";
}

Found find_library() {
    if (const char *named = std::getenv("CURB_LIBRARY"); named != nullptr && *named != '\0') {
        return first_of({fs::absolute(named)}, "shared library that CURB_LIBRARY names",
                        "correct or unset CURB_LIBRARY");
    }
    return find_library_under(prefix());
}

Found find_library_under(const fs::path &prefix) {
    const fs::path lib = prefix / "lib";
    std::vector<fs::path> candidates{lib / kName, lib / "curb" / kName};
    std::error_code error;
    for (fs::directory_iterator entry(lib, error), end; !error && entry != end; entry.increment(error)) {
        fs::path multiarch = entry->path() / "curb" / kName;  // lib/x86_64-linux-gnu/curb/libcurb.so
        if (read_elf(multiarch.string())) candidates.push_back(std::move(multiarch));
    }
    return first_of(candidates, kName, "set CURB_LIBRARY to its path");
}

Found find_sim() {
    constexpr const char *kDriver = "libcuda.so.1";
    const auto driver = first_of({prefix() / "sim" / kDriver, prefix() / "lib" / "curb" / "sim" / kDriver},
                                 "simulated driver", "build it (it comes with curb), or run without --sim");
    if (!driver) return driver.error();
    return driver->parent_path();
}

std::optional<std::string> not_carried(const fs::path &path, const char *list, std::string_view separators) {
    const std::size_t at = path.native().find_first_of(separators);
    if (at == std::string::npos) return std::nullopt;
    return std::string(list) + " cannot carry the path '" + policy::one_line(path.native()) + "', because of the " +
           policy::quote(path.native().substr(at, 1)) + " in it; install curb under a path without it";
}

}  // namespace curb::cli
