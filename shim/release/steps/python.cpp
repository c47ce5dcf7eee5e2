// pthread_exit unwinds the thread that asks for the GIL, so nothing between there and its start may be noexcept or
// catch everything.

#include "python.hpp"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "leaked.hpp"
#include "real_libc.hpp"

namespace curb::shim::release {
namespace {

constexpr std::chrono::seconds kForLock{3}, kForWork{30};

// What the caller and the thread know of each other.
class Meeting {
  public:
    // Of the thread, which has the lock now. False: nobody waits for the work any more.
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

    // Whether the thread has no more to do with Python, though it may still be about to end.
    [[nodiscard]] bool is_over() {
        const std::scoped_lock lock(mutex_);
        return state_ == State::done || state_ == State::ended;
    }

    // Of the caller.
    Locked wait() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, kForLock, [this] { return state_ != State::waiting; })) {
            state_ = State::given_up;
            return Locked::no_lock;
        }
        if (!changed_.wait_for(lock, kForWork, [this] { return state_ != State::working; })) return Locked::no_end;
        return state_ == State::done ? Locked::done : Locked::ended;
    }

  private:
    enum class State { waiting, working, done, ended, given_up };

    std::mutex mutex_;
    std::condition_variable changed_;
    State state_ = State::waiting;
};

// Tells the caller also when the thread is unwound.
class Presence {
  public:
    explicit Presence(std::shared_ptr<Meeting> meeting) : meeting_(std::move(meeting)) {}
    ~Presence() { meeting_->end(done_); }
    Presence(const Presence &) = delete;
    Presence &operator=(const Presence &) = delete;
    bool begin() { return meeting_->begin(); }
    void done() noexcept { done_ = true; }

  private:
    std::shared_ptr<Meeting> meeting_;
    bool done_ = false;
};

}  // namespace

bool Python::find() {
    const auto look = [](auto &slot, const char *name) {
        slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(RTLD_DEFAULT, name));
        if (!slot) dlerror();
        return slot != nullptr;
    };
    look(interpreter, "PyInterpreterState_Get");
    look(interpreter_dict, "PyInterpreterState_GetDict");
    return look(initialized, "Py_IsInitialized") &&
           (look(finalizing, "Py_IsFinalizing") || look(finalizing, "_Py_IsFinalizing")) &&
           look(ensure, "PyGILState_Ensure") && look(release, "PyGILState_Release") &&
           look(get_modules, "PyImport_GetModuleDict") && look(get_builtins, "PyEval_GetBuiltins") &&
           look(new_dict, "PyDict_New") && look(set_item, "PyDict_SetItemString") &&
           look(get_item, "PyDict_GetItemString") && look(run, "PyRun_StringFlags") &&
           look(from_string, "PyUnicode_FromString") && look(as_utf8, "PyUnicode_AsUTF8") &&
           look(decref, "Py_DecRef") && look(clear_error, "PyErr_Clear");
}

Locked with_lock(const Python &python, std::function<void()> work, std::function<void()> late) try {
    // With the thread of an earlier call, as long as that lives. Of the worker alone.
    std::weak_ptr<Meeting> &before = leaked<std::weak_ptr<Meeting>>();
    if (const auto earlier = before.lock(); earlier && !earlier->is_over()) return Locked::busy;
    const auto meeting = std::make_shared<Meeting>();
    before = meeting;
    std::thread([python, meeting = meeting, work = std::move(work), late = std::move(late)]() mutable {
        bool wanted = false;
        {
            Presence presence(std::exchange(meeting, nullptr));
            // This thread may have begun late, after the interpreter has ended, and then to ask for the lock is to use
            // what has been freed. Nothing keeps it from ending between here and there, but it takes milliseconds.
            if (!python.initialized() || python.finalizing()) return;
            const int state = python.ensure();
            wanted = presence.begin();
            if (wanted) work();
            python.release(state);
            presence.done();
        }
        if (!wanted) late();
    }).detach();
    return meeting->wait();
} catch (const std::system_error &) {
    return Locked::no_thread;
}

}  // namespace curb::shim::release
