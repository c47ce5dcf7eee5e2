// Starts and ends traces as the policy says.

#include <unistd.h>

#include <memory>

#include "keep_errno.hpp"
#include "lifetime.hpp"
#include "log.hpp"
#include "record.hpp"
#include "state.hpp"
#include "trace.hpp"
#include "waiting.hpp"
#include "writer.hpp"

namespace curb::shim::trace {

State &state() noexcept { return leaked<State>(); }

namespace {

// Puts a mark into the ring, and waits up to 1 s for room: only the thread that applies a policy calls it.
bool put_mark(Record::Mark mark, std::uint64_t number, const std::string &text) {
    auto owned = std::make_unique<std::string>(text);
    Record record;
    record.mark = mark;
    record.bytes = static_cast<std::int64_t>(number);
    record.text = owned.get();
    const auto put = [&] {
        record.ns = detail::now_ns();
        return try_put(record, nullptr);
    };
    if (!poll_until(put, 1000)) return false;
    static_cast<void>(owned.release());
    writer::wake();
    return true;
}

// Replaces %p by the pid and makes the path absolute, from the current directory.
std::string path_of(std::string file) {
    if (const auto at = file.find("%p"); at != std::string::npos) file.replace(at, 2, std::to_string(getpid()));
    char folder[4096];
    if (file.empty() || file.front() == '/' || !getcwd(folder, sizeof folder)) return file;
    return std::string(folder) + "/" + file;
}

void record_all_held() noexcept {
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        const Device &device = devices::at(ordinal);
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (device.ledger.of(static_cast<Kind>(kind)) != 0) detail::say_held(device, static_cast<Kind>(kind));
    }
}

void fail(std::uint64_t number, const std::string &why) {
    detail::recording.store(false, std::memory_order_relaxed);
    const std::scoped_lock lock(state().mutex);
    if (state().begun != number) return;
    state().error = "trace.file \"" + state().file + "\": " + why + "; no trace is written";
    state().ended = state().unsaid = true;
}

// Flushes the trace at exit. A library destructor runs after exit handlers and the program's static objects, so their
// frees are in the file, too. _exit, quick_exit and a crash lose at most the last 20 ms.
__attribute__((destructor)) void at_end() {
    if (writer::flush()) log_error();
}

}  // namespace

void follow(const policy::TracePolicy &policy, const std::string &command) noexcept try {
    const KeepErrno keep_errno;
    const std::string asked = policy.file.value_or("");
    std::string file;
    std::uint64_t number = 0;
    {
        const std::scoped_lock lock(state().mutex);
        if (asked == state().asked && !state().ended) return;
        number = ++state().begun;
        // A relative path counts from the directory at the time the policy first named it.
        if (asked != state().asked) state().file = path_of(asked);
        state().asked = asked;
        file = state().file;
        state().error.clear();
        state().ended = state().unsaid = false;
    }
    if (file.empty()) {
        detail::recording.store(false, std::memory_order_relaxed);
        if (ring.made()) put_mark(Record::Mark::end, number, {});
        return;
    }
    if (!ring.make()) return fail(number, "there is no host memory for a trace");
    if (!writer::start()) return fail(number, "no thread could be started for the trace");
    // Events before the mark belong to the previous trace, or to none. Start recording before the mark: after it, the
    // writer may already have failed and stopped the recording.
    detail::recording.store(true, std::memory_order_relaxed);
    if (!put_mark(Record::Mark::begin, number, file + '\0' + command))
        return fail(number, "the trace before this one does not end");
    record_all_held();
} catch (...) {
    detail::recording.store(false, std::memory_order_relaxed);  // out of host memory
}

std::optional<control::TraceStatus> status() {
    const std::scoped_lock lock(state().mutex);
    if (state().file.empty()) return std::nullopt;
    return control::TraceStatus{state().file, state().events.load(std::memory_order_relaxed),
                                state().dropped.load(std::memory_order_relaxed), state().error};
}

void log_error() noexcept try {
    std::string error;
    {
        const std::scoped_lock lock(state().mutex);
        if (!state().unsaid) return;
        state().unsaid = false;
        error = state().error;
    }
    log::write(policy::LogLevel::warning, error);
} catch (...) {
    // Out of host memory: status() still returns the error.
}

}  // namespace curb::shim::trace
