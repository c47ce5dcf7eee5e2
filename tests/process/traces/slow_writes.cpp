// A preload that has each large write take WRITES_TAKE_MS milliseconds: a slow disk.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

extern "C" __attribute__((visibility("default"))) ssize_t write(int file, const void *bytes, std::size_t size) {
    constexpr std::size_t kLarge = 4096;
    const char *takes = std::getenv("WRITES_TAKE_MS");
    if (takes && size >= kLarge) std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(takes)));
    return ::syscall(SYS_write, file, bytes, size);
}
