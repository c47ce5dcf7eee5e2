// A preload for which the kernel has no memory from the Nth time on that a program asks for pages
// (MADV_POPULATE_WRITE): N is CHUNKS_OF_MEMORY.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

extern "C" __attribute__((visibility("default"))) int madvise(void *at, std::size_t bytes, int advice) {
    static const auto real = reinterpret_cast<decltype(&madvise)>(dlsym(RTLD_NEXT, "madvise"));
    static std::atomic<int> left{std::atoi(std::getenv("CHUNKS_OF_MEMORY"))};
    if (advice != MADV_POPULATE_WRITE || left-- > 0) return real(at, bytes, advice);
    errno = ENOMEM;
    return -1;
}
