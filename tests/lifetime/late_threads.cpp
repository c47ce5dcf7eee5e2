// A second preload that delays each new thread by 60 ms, as a busy machine may.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <memory>

namespace {

struct Body {
    void *(*run)(void *);
    void *argument;
};

void *begin_late(void *given) {
    const std::unique_ptr<Body> body(static_cast<Body *>(given));
    usleep(60'000);
    return body->run(body->argument);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *how,
                                                                     void *(*run)(void *), void *argument) {
    using Create = int(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static auto *const real = reinterpret_cast<Create *>(dlsym(RTLD_NEXT, "pthread_create"));
    return real(thread, how, begin_late, new Body{run, argument});
}
