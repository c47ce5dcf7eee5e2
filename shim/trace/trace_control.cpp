// Which trace there is: as the policy says, until the process ends.

#include <unistd.h>

#include <ctime>
#include <memory>

#include "keep_errno.hpp"
#include "leaked.hpp"
#include "log.hpp"
#include "record.hpp"
#include "state.hpp"
#include "trace.hpp"
#include "writer.hpp"

namespace curb::shim::trace {

State &state() noexcept { return leaked<State>(); }

namespace {

// A mark finds its place: whoever puts a policy in force can wait for the writer, the program's threads need not.
bool put_mark(Record::Mark mark, std::uint64_t number, const std::string &text) {
    auto owned = std::make_unique<std::string>(text);
    Record record;
    record.mark = mark;
    record.bytes = static_cast<std::int64_t>(number);
    record.text = owned.get();
    for (int tries = 0; tries < 1000; ++tries) {
        record.ns = detail::now_ns();
        if (try_put(record, nullptr)) {
            static_cast<void>(owned.release());
            writer::wake();
            return true;
        }
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);
    }
    return false;
}

// As the policy means it: %p is the pid, and a relative path is one from where the process is now.
std::string path_of(std::string file) {
    if (const auto at = file.find("%p"); at != std::string::npos) file.replace(at, 2, std::to_string(getpid()));
    char folder[4096];
    if (file.empty() || file.front() == '/' || !getcwd(folder, sizeof folder)) return file;
    return std::string(folder) + "/" + file;
}

void say_all_that_is_held() noexcept {
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

// At the normal end: what the program's own exit handlers still free is in the file too. A destructor of the library,
// because those run after handlers and after the program's static objects; _exit, quick_exit and a crash leave at most
// the last 20 ms out.
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
        // A relative path is meant from where the process was when it was asked for.
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
    // In the order of the ring: what comes before the mark belongs to the trace before, or to none. Recording begins
    // before it, for behind it the writer may have found already that it must not.
    detail::recording.store(true, std::memory_order_relaxed);
    if (!put_mark(Record::Mark::begin, number, file + '\0' + command))
        return fail(number, "the trace before this one does not end");
    say_all_that_is_held();
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
    // Out of host memory: status() still has it.
}

}  // namespace curb::shim::trace
