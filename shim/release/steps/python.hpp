// The Python interpreter of this process, and its lock (GIL), which one of curb's threads takes.
//
// Never take the GIL within an intercepted call: a framework may hold its allocator's lock there and wait for the GIL
// next. The thread belongs to the main interpreter, so modules of sub-interpreters are not seen.
#pragma once

#include <functional>

namespace curb::shim::release {

struct PyObject;

// CPython functions, found among the global symbols (of the executable or libpython).
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
    ended,      // the interpreter ended meanwhile
    no_lock,    // the program held the GIL for 3 s: the work was abandoned
    no_end,     // the work still runs after 30 s
    busy,       // an earlier call was abandoned and still waits or works
    no_thread,  // no thread could be started
};

// Runs `work` under the GIL, in a new thread, because taking the GIL can end or block a thread: while the interpreter
// ends, Python before 3.14 calls pthread_exit and later versions block forever; and the program may keep the GIL for
// any time. If the thread gets the GIL after the work was abandoned, it calls `late` instead, without the GIL. Both may
// outlive the call, so they must own their data. Call it on the worker, whose signal mask the thread inherits.
Locked with_lock(const Python &python, std::function<void()> work, std::function<void()> late);

}  // namespace curb::shim::release
