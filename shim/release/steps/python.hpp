// The Python interpreter of this process, if there is one, and its lock (the GIL), taken by a thread of curb's own.
//
// Never within an intercepted call: a framework may hold its allocator's lock there and want the GIL next. A new thread
// belongs to the main interpreter: a module that a sub-interpreter has for itself is not met.
#pragma once

#include <functional>

namespace curb::shim::release {

struct PyObject;

// Found among the global symbols: the python executable's or its libpython's.
struct Python {
    int (*initialized)() = nullptr;
    int (*finalizing)() = nullptr;  // Py_IsFinalizing since 3.13, _Py_IsFinalizing before
    int (*ensure)() = nullptr;
    void (*release)(int) = nullptr;
    PyObject *(*get_modules)() = nullptr;
    PyObject *(*get_builtins)() = nullptr;
    PyObject *(*new_dict)() = nullptr;
    int (*set_item)(PyObject *, const char *, PyObject *) = nullptr;
    PyObject *(*get_item)(PyObject *, const char *) = nullptr;
    PyObject *(*run)(const char *, int, PyObject *, PyObject *, void *) = nullptr;
    PyObject *(*from_string)(const char *) = nullptr;
    const char *(*as_utf8)(PyObject *) = nullptr;
    void (*decref)(PyObject *) = nullptr;
    void (*clear_error)() = nullptr;
    PyObject *(*interpreter)() = nullptr;                 // since 3.9; may be missing
    PyObject *(*interpreter_dict)(PyObject *) = nullptr;  // since 3.8; may be missing

    [[nodiscard]] bool find();
};

enum class Locked {
    done,
    ended,      // the interpreter has ended meanwhile
    no_lock,    // the program held the GIL for 3 s: the work is given up
    no_end,     // the work goes on after 30 s
    busy,       // an earlier call was given up and still waits, or works
    no_thread,  // none could be started
};

// Does `work` under the GIL, in a thread of its own: before Python 3.14 a thread that asks for the GIL while the
// interpreter ends is ended by pthread_exit, later it stands still for ever, and the GIL may be held for as long as the
// program likes; none of that is to happen to the caller. `late` is called without the GIL when it came after the work
// was given up. Both outlive the call and must hold what they need. On the worker, whose mask of signals the thread
// inherits.
Locked with_lock(const Python &python, std::function<void()> work, std::function<void()> late);

}  // namespace curb::shim::release
