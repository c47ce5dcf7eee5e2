#include "conformance_run.hpp"

#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace fs = std::filesystem;

namespace conformance {
namespace {

int memory_file(const std::string &content) {
    const int file = memfd_create("conformance", 0);
    if (file < 0 || write(file, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
        lseek(file, 0, SEEK_SET) != 0) {
        std::perror("conformance: memfd_create");
        std::exit(2);
    }
    return file;
}

std::string content_of(int file) {
    std::string text(static_cast<std::size_t>(lseek(file, 0, SEEK_END)), 0);
    if (pread(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) text.clear();
    close(file);
    return text;
}

Answer parsed(const std::string &line) {
    Answer answer;
    std::istringstream fields(line);
    std::string error;
    std::getline(fields, answer.code, '\t');
    std::getline(fields, answer.place, '\t');
    std::getline(fields, answer.symbol, '\t');
    std::getline(fields, error);
    answer.error = error == "1";
    return answer;
}

}  // namespace

fs::path here() { return fs::canonical("/proc/self/exe").parent_path(); }

Outcome run(const Setting &setting, const Channel &channel, const std::vector<std::string> &requests, bool under_curb) {
    const std::string program = here() / (channel.linked                    ? "conformance_linked"
                                          : channel.stubs == Stubs::program ? "conformance_stubbed"
                                                                            : "conformance_child");
    std::string preloads;
    const auto preload = [&](const std::string &library) { preloads += (preloads.empty() ? "" : ":") + library; };
    if (channel.before) preload(here() / channel.before);
    if (under_curb) preload(setting.curb);
    if (channel.behind) preload(here() / channel.behind);
    // A sanitizer's runtime has to come first.
    if (*CURB_SANITIZER_RUNTIME) preloads.insert(0, CURB_SANITIZER_RUNTIME ":");

    std::string text;
    for (const std::string &request : requests) text += request + '\n';
    const int in = memory_file(text), out = memory_file(""), err = memory_file("");
    const pid_t child = fork();
    if (child == 0) {
        dup2(in, 0), dup2(out, 1), dup2(err, 2);
        close_range(3, ~0U, 0);
        for (const char *name : {"CURB_POLICY", "XDG_CONFIG_HOME", "LD_PRELOAD"}) unsetenv(name);
        setenv("HOME", "/nonexistent", 1);
        setenv("CURB_CAP", kCap, 1);
        setenv("CONFORMANCE_WHEN", channel.when, 1);
        setenv("CONFORMANCE_HOW", channel.how, 1);
        setenv("CONFORMANCE_PATHS", setting.library_paths.c_str(), 1);
        setenv("CONFORMANCE_STUBS", channel.stubs_by, 1);
        setenv("CONFORMANCE_STUB_LIBRARY", (here() / "libconformance_stubs.so").c_str(), 1);
        if (channel.stubs == Stubs::library) setenv("CONFORMANCE_USER", (here() / "libconformance_user.so").c_str(), 1);
        if (!preloads.empty()) setenv("LD_PRELOAD", preloads.c_str(), 1);
        alarm(120);
        execl(program.c_str(), program.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome;
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::istringstream lines(content_of(out));
    for (std::string line; std::getline(lines, line);) outcome.answers.push_back(parsed(line));
    outcome.said = content_of(err);
    close(in);
    return outcome;
}

const Answer &answer(const Outcome &outcome, std::size_t request) {
    static const Answer kNone;
    return request < outcome.answers.size() ? outcome.answers[request] : kNone;
}

std::vector<std::string> exports_of(const fs::path &file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const auto *header = reinterpret_cast<const ElfW(Ehdr) *>(bytes.data());
    std::vector<std::string> names;
    if (bytes.size() < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return names;
    const auto *sections = reinterpret_cast<const ElfW(Shdr) *>(bytes.data() + header->e_shoff);
    for (const auto *section = sections; section != sections + header->e_shnum; ++section) {
        if (section->sh_type != SHT_DYNSYM) continue;
        const char *strings = bytes.data() + sections[section->sh_link].sh_offset;
        const auto *symbols = reinterpret_cast<const ElfW(Sym) *>(bytes.data() + section->sh_offset);
        for (const auto *symbol = symbols; symbol != symbols + section->sh_size / sizeof *symbol; ++symbol)
            if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
                names.emplace_back(strings + symbol->st_name);
    }
    return names;
}

}  // namespace conformance
