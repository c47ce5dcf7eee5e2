#include "elf.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstring>
#include <memory>

namespace curb::cli {
namespace {

constexpr int kMostHeaders = 512;  // a program has a dozen

class File {
  public:
    // Of a regular file alone: to open a device or a FIFO does something to it.
    explicit File(const std::string &path) {
        const int named = ::open(path.c_str(), O_PATH | O_CLOEXEC);
        struct stat status {};
        if (named >= 0 && ::fstat(named, &status) == 0 && S_ISREG(status.st_mode))
            fd_ = ::open(("/proc/self/fd/" + std::to_string(named)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (named >= 0) ::close(named);
    }
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    bool read(void *into, std::size_t size, std::uint64_t at) const {
        return fd_ >= 0 && ::pread(fd_, into, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
    }

  private:
    int fd_ = -1;
};

template <class Header, class Segment>
std::optional<Elf> read_as(const File &file, int bits) {
    Header header{};
    if (!file.read(&header, sizeof header, 0)) return std::nullopt;
    Elf out{bits, header.e_machine, header.e_type == ET_DYN, {}};
    for (int i = 0; i < header.e_phnum && i < kMostHeaders; ++i) {
        Segment segment{};
        if (!file.read(&segment, sizeof segment, header.e_phoff + std::uint64_t{header.e_phentsize} * unsigned(i)))
            break;
        if (segment.p_type != PT_INTERP || segment.p_filesz == 0 || segment.p_filesz > PATH_MAX) continue;
        std::string name(segment.p_filesz, '\0');
        if (file.read(name.data(), name.size(), segment.p_offset)) out.interpreter = name.c_str();
    }
    return out;
}

}  // namespace

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

std::string architecture_of(const Elf &elf) {
    if (elf.machine == EM_X86_64) return elf.bits == 64 ? "x86-64" : "x32";
    if (elf.machine == EM_AARCH64) return "aarch64";
    if (elf.machine == EM_386) return "32-bit x86";
    if (elf.machine == EM_ARM) return "32-bit ARM";
    return "machine " + std::to_string(elf.machine) + " (" + std::to_string(elf.bits) + " bits)";
}

}  // namespace curb::cli
