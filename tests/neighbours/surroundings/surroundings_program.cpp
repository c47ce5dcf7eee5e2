// The CUDA program that surroundings_test.py runs in hostile surroundings. It allocates below the cap, checks that its
// descriptors, files, children and handlers are as without curb, allocates more than the cap, and prints the results.
// Exit status 3: another file has taken descriptor 0, 1 or 2.
//
// Arguments: limit=NAME:NUMBER and locale, which it sets before it uses CUDA, in their order; daemon: it closes all
// descriptors once it has used CUDA; stays: it runs until its stdin ends.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "abi/cuda_abi.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
volatile sig_atomic_t handled = 0;

struct Standard {
    std::array<dev_t, 3> device{};
    std::array<ino_t, 3> inode{};
    friend bool operator==(const Standard &, const Standard &) = default;
};
Standard standard_descriptors() {
    Standard out;
    for (int fd = 0; fd < 3; ++fd) {
        struct stat status {};
        if (fstat(fd, &status) != 0) continue;
        out.device[static_cast<std::size_t>(fd)] = status.st_dev;
        out.inode[static_cast<std::size_t>(fd)] = status.st_ino;
    }
    return out;
}

void say(const char *what, long number) {
    std::printf("%s %ld\n", what, number);
    std::fflush(stdout);
}

// Returns the bytes of address space in use.
rlim_t mapped() {
    unsigned long pages = 0;
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::exit(4);
    std::fclose(file);
    return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

// Sets a limit from NAME:NUMBER. +NUMBER: so many MiB beyond the address space in use.
void limit(const std::string &text) {
    const std::string name = text.substr(0, text.find(':'));
    const std::map<std::string, __rlimit_resource> limits{
        {"nofile", RLIMIT_NOFILE}, {"as", RLIMIT_AS}, {"stack", RLIMIT_STACK}};
    const std::string number = text.substr(name.size() + 1);
    rlim_t bytes = std::strtoull(number.c_str(), nullptr, 10);
    if (number[0] == '+') bytes = mapped() + bytes * kMiB;
    const rlimit value{bytes, bytes};
    say(("limit " + name).c_str(), setrlimit(limits.at(name), &value));
}

void use_files() {
    std::array<int, 10> files{};
    int opened = 0;
    for (int &file : files) opened += (file = open("/", O_RDONLY | O_DIRECTORY)) >= 0 ? 1 : 0;
    for (const int file : files)
        if (file >= 0) close(file);
    say("files", opened);
}

// Closes descriptors that it has not opened, as daemons do, and opens files. Only the program itself may write to them.
std::array<int, 12> own_files{};
void become_daemon() {
    for (int fd = 3; fd < 64; ++fd) close(fd);
    for (std::size_t i = 0; i < own_files.size(); ++i) {
        const std::string name = "own-" + std::to_string(i);
        own_files[i] = open(name.c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
        if (own_files[i] < 0) std::exit(5);
    }
}
bool own_files_are_empty() {
    for (const int file : own_files) {
        struct stat status {};
        if (file > 0 && (fstat(file, &status) != 0 || status.st_size != 0)) return false;
    }
    return true;
}

void use_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { handled = handled + 1; };
    sigaction(SIGUSR1, &action, nullptr);
    raise(SIGUSR1);
    say("handled", handled);
}

void use_children() {
    const pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    if (child > 0) waitpid(child, &status, 0);
    say("child", child > 0 ? WEXITSTATUS(status) : -errno);
}

// Allocates so many blocks of 32 MiB, then frees them. Returns how many it got.
long serves(int blocks) {
    std::array<CUdeviceptr, 256> memory{};
    long served = 0;
    for (int i = 0; i < blocks; ++i) served += cuMemAlloc_v2(&memory[static_cast<std::size_t>(i)], 32 * kMiB) == 0;
    for (const CUdeviceptr block : memory)
        if (block != 0) cuMemFree_v2(block);
    return served;
}

}  // namespace

int main(int argc, char **argv) {
    bool stays = false, daemon = false;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.rfind("limit=", 0) == 0) limit(word.substr(6));
        if (word == "locale") say("locale", setlocale(LC_ALL, "") != nullptr);
        stays |= word == "stays";
        daemon |= word == "daemon";
    }
    const Standard before = standard_descriptors();
    CUcontext context = nullptr;
    const int started = cuInit(0);
    say("cuInit", started);
    if (started == CUDA_SUCCESS) {
        say("context", cuDevicePrimaryCtxRetain(&context, 0));
        cuCtxSetCurrent(context);
        say("served", serves(16));
        if (daemon) become_daemon();
        use_signals();
        say("served beside a release", serves(16));
    }
    // Gives curb's threads time to start and to get in the way. No result depends on it.
    usleep(50'000);
    use_files();
    use_children();
    if (standard_descriptors() != before) return 3;
    if (started == CUDA_SUCCESS) {
        const bool beyond = serves(192) == 192;
        std::printf("beyond the cap: %s\n", beyond ? "served" : "refused");
    }
    std::puts("ready");
    std::fflush(stdout);
    char c = 0;
    while (stays && read(0, &c, 1) > 0) {
    }
    return standard_descriptors() == before && own_files_are_empty() ? 0 : 3;
}
