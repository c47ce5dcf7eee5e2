// Step "frameworks": calls Python frameworks to free their caches.
//
// Only frameworks that are already imported, and never during a graph capture: the graph may use the cached memory
// (CuPy), or the framework frees nothing then (PyTorch).

#include <memory>
#include <optional>
#include <string>

#include "admission/caller_match.hpp"
#include "contexts/captures.hpp"
#include "contexts/contexts.hpp"
#include "device/devices.hpp"
#include "limits/in_force.hpp"
#include "release/release.hpp"
#include "release/steps/framework_rows.hpp"
#include "release/steps/python.hpp"

namespace curb::shim::release {
namespace {

constexpr int kFileInput = 257;  // Py_file_input, part of CPython's stable ABI

// The code around the rows. Input: `modules`, `devices`, `collect` and `state`, a dictionary that lives as long as the
// interpreter. Output: `report` and `asked`, the names of the frameworks that were called.
//
// CPython ends a thread that takes the GIL while the interpreter ends. Within a framework's C++ code (pybind11's
// gil_scoped_release) that kills the process. So an exit function, which runs before the interpreter ends, waits for
// the frameworks, 2 s at most. Not in a fork child, where no thread would release the lock.
constexpr const char *kBefore = R"python(
devices = [int(ordinal) for ordinal in devices.split()]
collect = collect == 'yes'

def hold_up_the_end():
    atexit, getpid = modules.get('atexit'), modules['posix'].getpid
    if 'running' in state or atexit is None:
        return
    running, mine = modules['_thread'].allocate_lock(), getpid()
    def python_ends():
        if getpid() == mine:
            state['ended'] = True
            if running.acquire(timeout=2):
                running.release()
    atexit.register(python_ends)
    state['running'] = running

def text_of(error):
    try:
        text = ' '.join(str(error).split())[:200]
    except BaseException:
        text = 'its text cannot be had'
    return f'{type(error).__name__}: {text}'

rows = []
)python";

constexpr const char *kAfter = R"python(
def ask():
    if collect and 'gc' in modules:
        modules['gc'].collect()
    reasons, asked, came_back = [], [], False
    for name, module, give_back in rows:
        module = modules.get(module)
        if module is None or getattr(getattr(module, '__spec__', None), '_initializing', False):
            continue
        try:
            answer = give_back(module)
            if isinstance(answer, str):
                reasons.append(f'{name}: {answer}')
            else:
                asked.append(name)
                came_back |= answer
        except BaseException as error:
            reasons.append(f'{name}: {text_of(error)}')
    if not reasons and not came_back:
        reasons = ['nothing cached' if asked else 'no framework loaded that can be asked']
    return '; '.join(reasons).encode(errors='replace').decode(), ' '.join(asked)

hold_up_the_end()
running = state.get('running')
if running is None:
    report, asked = ask()
else:
    with running:
        report, asked = ('Python is ending', '') if state.get('ended') else ask()
)python";

std::string program() {
    std::string text = kBefore;
    for (const FrameworkRow &row : kFrameworks)
        text.append(row.python)
            .append("rows.append(('")
            .append(row.name)
            .append("', '")
            .append(row.module)
            .append("', give_back))\n");
    return text + kAfter;
}

struct Answer {
    std::string report = "Python refused to run the release";
    std::string asked;
};

// Returns curb's dictionary in the interpreter, a borrowed reference. nullptr if there is none.
PyObject *state_of(const Python &python) {
    PyObject *all =
        python.interpreter && python.interpreter_dict ? python.interpreter_dict(python.interpreter()) : nullptr;
    if (!all) return nullptr;
    if (PyObject *known = python.get_item(all, "curb")) return known;
    PyObject *made = python.new_dict();
    if (!made) return nullptr;
    python.set_item(all, "curb", made);
    python.decref(made);
    return python.get_item(all, "curb");
}

// Runs the Python program. The caller holds the GIL.
Answer ask(const Python &python, const std::string &ordinals, bool collect) {
    Answer answer;
    PyObject *space = python.new_dict();
    if (!space) return answer;
    const auto put = [&](const char *name, PyObject *made) {
        if (!made) return;
        python.set_item(space, name, made);
        python.decref(made);
    };
    python.set_item(space, "__builtins__", python.get_builtins());
    python.set_item(space, "modules", python.get_modules());
    put("devices", python.from_string(ordinals.c_str()));
    put("collect", python.from_string(collect ? "yes" : ""));
    if (PyObject *state = state_of(python))
        python.set_item(space, "state", state);
    else
        put("state", python.new_dict());
    if (PyObject *result = python.run(program().c_str(), kFileInput, space, space, nullptr)) {
        python.decref(result);
        const auto text = [&](const char *name) {
            PyObject *said = python.get_item(space, name);
            const char *utf8 = said ? python.as_utf8(said) : nullptr;
            return std::string(utf8 ? utf8 : "");
        };
        answer = {text("report"), text("asked")};
    }
    python.clear_error();
    python.decref(space);
    return answer;
}

void note_answers(const std::string &asked) noexcept {
    for (const FrameworkRow &row : kFrameworks)
        if ((" " + asked + " ").find(std::string(" ") + row.name + " ") != std::string::npos)
            caller_match::note_answer(row.name);
}

// Retains a device's active primary context and makes it current during the guard's lifetime.
class PrimaryContextGuard : NoCopy {
  public:
    explicit PrimaryContextGuard(CUdevice device) noexcept : device_(device) {
        CUcontext context = nullptr;
        if (device >= 0 && driver().cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS)
            current_.emplace(context);
    }
    ~PrimaryContextGuard() {
        if (!current_) return;
        current_.reset();
        driver().cuDevicePrimaryCtxRelease_v2(device_);
    }

  private:
    CUdevice device_;
    std::optional<contexts::Current> current_;
};

// Returns the devices that have a primary context, and the first of them. On others a call would create one, which
// takes hundreds of megabytes.
std::string with_primary_context(int &first) {
    std::string ordinals;
    for (int ordinal = devices::count() - 1; ordinal >= 0; --ordinal)
        if (contexts::primary_is_active(devices::at(ordinal)).value_or(false)) {
            ordinals += std::to_string(ordinal) + " ";
            first = ordinal;
        }
    return ordinals;
}

}  // namespace

namespace step {

Outcome frameworks() {
    Python python;
    if (!python.find()) return untried("no Python");
    if (python.finalizing()) return untried("Python is ending");  // first: it also reports "not initialised" then
    if (!python.initialized()) return untried("no Python");
    if (captures::any()) return untried(kCapture);
    const auto answer = std::make_shared<Answer>();
    const bool collect = *in_force::snapshot()->policy.release.collect;
    const auto work = [python, collect, answer] {
        // The frameworks' frees must not break a capture that begins meanwhile.
        const RelaxedCapture relaxed;
        // Without a current context the runtime would create one on device 0.
        int first = -1;
        const std::string ordinals = with_primary_context(first);
        const PrimaryContextGuard current(first);
        *answer = ask(python, ordinals, collect);
    };
    const auto late = [] {
        release::ask({"Python's lock (GIL), which was waited for", {.steps = std::vector{policy::Step::frameworks}}});
    };
    switch (with_lock(python, work, late)) {
        case Locked::done: note_answers(answer->asked); return {answer->report, collect || !answer->asked.empty()};
        case Locked::ended: return untried("Python is ending");
        case Locked::no_lock: return untried("deferred: waits for Python's lock (GIL)");
        case Locked::no_end: return {"frameworks are still at it after 30 s"};
        case Locked::busy: return untried("deferred: an earlier request is still with Python");
        case Locked::no_thread: break;
    }
    return untried("no thread could be started to ask them");
}

}  // namespace step
}  // namespace curb::shim::release
