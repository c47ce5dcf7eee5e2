#include "own_thread.hpp"

#include <pthread.h>

#include <csignal>
#include <string>
#include <thread>

#include "log.hpp"

namespace curb::shim::own_thread {

bool start(void (*body)(), const char *name) noexcept {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        std::thread thread(body);
        pthread_setname_np(thread.native_handle(), name);
        thread.detach();
    } catch (...) {
        started = false;
        log::write(policy::LogLevel::warning, std::string("no thread could be started for ") + name);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

}  // namespace curb::shim::own_thread
