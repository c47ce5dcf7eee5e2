// A preload that has each new thread begin 2 s late while the file THREADS_ARE_LATE exists: a loaded machine. While the
// file NO_THREADS exists none begins: the limit of processes is reached.
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

bool has_file(const char *variable) {
    const char *file = std::getenv(variable);
    return file && access(file, F_OK) == 0;
}

struct Start {
    void *(*body)(void *);
    void *argument;
};

void *begin_late(void *given) {
    const Start start = *static_cast<Start *>(given);
    delete static_cast<Start *>(given);
    const timespec late{2, 0};
    if (has_file("THREADS_ARE_LATE")) nanosleep(&late, nullptr);
    return start.body(start.argument);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                                     const pthread_attr_t *attributes,
                                                                     void *(*body)(void *), void *argument) {
    static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    if (has_file("NO_THREADS")) return EAGAIN;
    return real(thread, attributes, begin_late, new Start{body, argument});
}
