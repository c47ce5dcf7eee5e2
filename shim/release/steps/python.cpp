// pthread_exit may unwind the thread that takes the GIL, so none of its frames may be noexcept or catch all exceptions.

#include "release/steps/python.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/lifetime.hpp"
#include "host/real_libc.hpp"

namespace curb::shim::release {
namespace {

constexpr std::chrono::seconds kLockTimeout{3}, kWorkTimeout{30};

// The state shared by the caller and the thread.
class Handshake {
  public:
    // The thread calls it once it has the GIL. False if the caller no longer waits.
    bool begin() {
        const std::scoped_lock lock(mutex_);
        if (state_ == State::given_up) return false;
        state_ = State::working;
        changed_.notify_all();
        return true;
    }
    void end(bool done) {
        const std::scoped_lock lock(mutex_);
        state_ = done ? State::done : State::ended;
        changed_.notify_all();
    }

    // True if the thread no longer uses Python; the thread itself may still run.
    [[nodiscard]] bool is_finished() {
        const std::scoped_lock lock(mutex_);
        return state_ == State::done || state_ == State::ended;
    }

    // The caller waits here for the thread.
    Locked wait() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, kLockTimeout, [this] { return state_ != State::waiting; })) {
            state_ = State::given_up;
            return Locked::no_lock;
        }
        if (!changed_.wait_for(lock, kWorkTimeout, [this] { return state_ != State::working; })) return Locked::no_end;
        return state_ == State::done ? Locked::done : Locked::ended;
    }

  private:
    enum class State { waiting, working, done, ended, given_up };

    std::mutex mutex_;
    std::condition_variable changed_;
    State state_ = State::waiting;
};

// Calls Handshake::end() also when the thread is unwound.
class EndGuard : NoCopy {
  public:
    explicit EndGuard(std::shared_ptr<Handshake> handshake) : handshake_(std::move(handshake)) {}
    ~EndGuard() { handshake_->end(done_); }
    bool begin() { return handshake_->begin(); }
    void done() noexcept { done_ = true; }

  private:
    std::shared_ptr<Handshake> handshake_;
    bool done_ = false;
};

}  // namespace

bool Python::find() {
    const auto resolve = [](auto &slot, const char *name) {
        slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(RTLD_DEFAULT, name));
        if (!slot) dlerror();
        return slot != nullptr;
    };
    resolve(interpreter, "PyInterpreterState_Get");
    resolve(interpreter_dict, "PyInterpreterState_GetDict");
    const bool found[] = {
        resolve(initialized, "Py_IsInitialized"),
        resolve(finalizing, "Py_IsFinalizing") || resolve(finalizing, "_Py_IsFinalizing"),
        resolve(ensure, "PyGILState_Ensure"),
        resolve(release, "PyGILState_Release"),
        resolve(get_modules, "PyImport_GetModuleDict"),
        resolve(get_builtins, "PyEval_GetBuiltins"),
        resolve(new_dict, "PyDict_New"),
        resolve(set_item, "PyDict_SetItemString"),
        resolve(get_item, "PyDict_GetItemString"),
        resolve(run, "PyRun_StringFlags"),
        resolve(from_string, "PyUnicode_FromString"),
        resolve(as_utf8, "PyUnicode_AsUTF8"),
        resolve(decref, "Py_DecRef"),
        resolve(clear_error, "PyErr_Clear"),
    };
    return std::all_of(std::begin(found), std::end(found), [](bool one) { return one; });
}

Locked with_lock(const Python &python, std::function<void()> work, std::function<void()> late) try {
    // Shared with the thread of the last call while that lives. Used by the worker only.
    std::weak_ptr<Handshake> &before = leaked<std::weak_ptr<Handshake>>();
    if (const auto earlier = before.lock(); earlier && !earlier->is_finished()) return Locked::busy;
    const auto handshake = std::make_shared<Handshake>();
    before = handshake;
    std::thread([python, handshake = handshake, work = std::move(work), late = std::move(late)]() mutable {
        bool wanted = false;
        {
            EndGuard end_guard(std::exchange(handshake, nullptr));
            // This thread may start after the interpreter has ended; taking the GIL would then be a use after free. The
            // interpreter could still end between this check and ensure(), but that takes it milliseconds.
            if (!python.initialized() || python.finalizing()) return;
            const int state = python.ensure();
            wanted = end_guard.begin();
            if (wanted) work();
            python.release(state);
            end_guard.done();
        }
        if (!wanted) late();
    }).detach();
    return handshake->wait();
} catch (const std::system_error &) {
    return Locked::no_thread;
}

}  // namespace curb::shim::release
