#include "trace/trace.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "host/log.hpp"
#include "trace/record.hpp"
#include "trace/stack.hpp"
#include "trace/writer.hpp"

namespace curb::shim::trace {

using control::trace::What;

namespace {

constinit struct {
    std::atomic<bool> any{false};
    // By device: the least bytes of an allocation whose stack is traced; kUnbounded: no stacks.
    std::array<std::atomic<Bytes>, devices::kMost> from{};
} stacks;

// Clamps: programs probe for memory with sizes larger than any device.
std::int64_t signed_bytes(Bytes bytes) noexcept {
    return static_cast<std::int64_t>(std::min<Bytes>(bytes, std::numeric_limits<std::int64_t>::max()));
}

// If the ring is full, drops the event and counts it.
void put(const Record &record, const Device *device) noexcept {
    if (!try_put(record, device)) ring.drop();
}

void put(Record record, const Device *device, const std::string &text) {
    auto owned = std::make_unique<std::string>(text);
    record.text = owned.get();
    if (try_put(record, device))
        static_cast<void>(owned.release());
    else
        ring.drop();
}

Record request(What what, Kind kind, Bytes bytes, LimitHit hit) noexcept {
    Record record = event_now(what, kind);
    record.bytes = signed_bytes(bytes);
    record.why = hit.why;
    record.limit = hit.limit;
    return record;
}

// Other threads may use the former figures for a moment.
void set_stacks(const std::optional<policy::Size> &least) noexcept {
    for (const Device &device : devices::all())
        stacks.from[static_cast<std::size_t>(device.ordinal)] = least ? least->on(device.total) : policy::kUnbounded;
    stacks.any = least.has_value();
}

[[gnu::always_inline]] inline Record put_allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes,
                                                   Bytes charge, bool reused) noexcept {
    Record record = event_now(What::alloc, kind);
    record.pointer = pointer;
    record.bytes = signed_bytes(bytes);
    record.charge = static_cast<std::int64_t>(charge);
    record.reused = reused;
    put(record, &device);
    return record;
}

// Out of line, so that a trace without stacks costs one test of a byte. Out of host memory: the trace lacks the stack.
[[gnu::noinline, gnu::cold]] void allocated_with_stack(const Device &device, Kind kind, std::uint64_t pointer,
                                                       Bytes bytes, Bytes charge, bool reused) noexcept try {
    const KeepErrno keep_errno;
    const Record made = put_allocated(device, kind, pointer, bytes, charge, reused);
    const Bytes least = stacks.from[static_cast<std::size_t>(device.ordinal)];
    if (bytes < least || !stack::may_take(made.ns)) return;
    Record record = event_now(What::stack, {});
    record.ns = made.ns;
    record.pointer = made.pointer;
    record.bytes = made.bytes;
    put(record, &device, stack::take());
} catch (...) {
}

}  // namespace

void detail::allocated(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes charge,
                       bool reused) noexcept {
    if (stacks.any) [[unlikely]]
        return allocated_with_stack(device, kind, pointer, bytes, charge, reused);
    put_allocated(device, kind, pointer, bytes, charge, reused);
}

void detail::freed(const Device &device, Kind kind, std::uint64_t pointer, Bytes bytes, Bytes credit, std::uint64_t at,
                   bool reused) noexcept {
    Record record = event_now(What::free, kind);
    if (at != 0) record.ns = at;  // 0 if the trace began after moment()
    record.pointer = pointer;
    record.bytes = signed_bytes(bytes);
    record.charge = -static_cast<std::int64_t>(credit);
    record.reused = reused;
    put(record, &device);
}

void detail::freed_to_pool(std::uint64_t pointer) noexcept {
    Record record = event_now(What::free, Kind::pools);
    record.mark = Record::Mark::pool_free;
    record.pointer = pointer;
    put(record, nullptr);
}

void detail::books(const Device &device, Kind kind, std::int64_t change) noexcept {
    put(books_event(kind, change), &device);
}

void detail::allowance(const Device &device, Bytes bytes) noexcept {
    put(request(What::allowance, {}, 0, {{}, bytes}), &device);
}

void heap(const Device &device, Bytes bytes) noexcept {
    if (on()) put(request(What::heap, {}, bytes, {}), &device);
}

void refused(const Device &device, Kind kind, Bytes bytes, LimitHit hit) noexcept {
    if (on()) put(request(What::refuse, kind, bytes, hit), &device);
}

void waiting(const Device &device, Kind kind, Bytes bytes, LimitHit hit) noexcept {
    if (on()) put(request(What::wait, kind, bytes, hit), &device);
}

void granted(const Device &device, Kind kind, Bytes bytes, std::uint64_t waited_ms) noexcept {
    if (!on()) return;
    Record record = request(What::granted, kind, bytes, {});
    record.duration_ns = waited_ms * 1'000'000;
    put(record, &device);
}

void step(const control::StepReport &step, const std::string &trigger) noexcept try {
    if (!on()) return;
    Record record = event_now(What::step, {});
    record.step = step.step;
    record.bytes = step.freed;
    record.duration_ns = static_cast<std::uint64_t>(step.milliseconds * 1e6);
    put(record, nullptr, trigger);
} catch (...) {
    // Out of host memory: the trace lacks this step.
}

void policy(const Device &device, std::optional<Bytes> cap, Bytes allowance, const std::string &text) noexcept try {
    if (!on()) return;
    Record record = request(What::policy, {}, 0, {{}, cap.value_or(policy::kUnbounded)});
    record.of_kind = allowance;
    put(record, &device, text);
} catch (...) {
    // As above.
}

void out(Bytes bytes, const char *how, std::uint64_t took_ms) noexcept try {
    if (!on()) return;
    Record record = event_now(What::out, {});
    record.bytes = signed_bytes(bytes);
    record.duration_ns = took_ms * 1'000'000;
    put(record, nullptr, how);
} catch (...) {
    // As above.
}

void back(Bytes bytes, std::uint64_t took_ms) noexcept {
    if (!on()) return;
    Record record = event_now(What::back, {});
    record.bytes = signed_bytes(bytes);
    record.duration_ns = took_ms * 1'000'000;
    put(record, nullptr);
}

namespace {

// Puts a mark into the ring, and waits up to 1 s for room: only the thread that applies a policy calls it.
bool put_mark(Record::Mark mark, std::uint64_t number, const std::string &text) {
    auto owned = std::make_unique<std::string>(text);
    Record record;
    record.mark = mark;
    record.bytes = static_cast<std::int64_t>(number);
    record.text = owned.get();
    const auto put = [&] {
        record.ns = now_ns();
        return try_put(record, nullptr);
    };
    if (!poll_until(put, 1000)) return false;
    static_cast<void>(owned.release());
    writer_event.post();
    return true;
}

// Replaces %p by the pid and makes the path absolute, from the current directory.
std::string path_of(std::string file) {
    file = log::with_pid(std::move(file));
    char folder[4096];
    if (file.empty() || file.front() == '/' || !getcwd(folder, sizeof folder)) return file;
    return std::string(folder) + "/" + file;
}

void record_all_held() noexcept {
    for (const Device &device : devices::all()) {
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (device.ledger.of(static_cast<Kind>(kind)) != 0) put_held(device, static_cast<Kind>(kind));
        if (const Bytes bytes = device.contexts.heap) heap(device, bytes);
    }
}

void fail(std::uint64_t number, const std::string &why) {
    detail::recording = false;
    const std::scoped_lock lock(state().mutex);
    if (state().begun != number) return;
    state().error = "trace.file \"" + state().file + "\": " + why + "; no trace is written";
    state().ended = state().unsaid = true;
}

void note_unwritten(std::uint64_t records) noexcept try {
    const std::scoped_lock lock(state().mutex);
    if (!state().error.empty()) return;  // which says why
    state().error =
        "trace.file \"" + state().file + "\": " + std::to_string(records) +
        " events or more are missing at its end, because they could not be written before the program ended";
    state().unsaid = true;
} catch (...) {
    // Out of host memory: the trace ends early, and nothing says so.
}

// Flushes the trace at exit. A library destructor runs after exit handlers and the program's static objects, so their
// frees are in the file, too. _exit, quick_exit and a crash lose at most the last 20 ms.
__attribute__((destructor)) void at_end() {
    if (on()) put(event_now(What::end, {}), nullptr);
    const std::optional<std::uint64_t> unwritten = writer::flush();
    if (!unwritten) return;
    if (*unwritten != 0) note_unwritten(*unwritten);
    log_error();
}

}  // namespace

void apply(const policy::TracePolicy &policy, const std::string &command) noexcept try {
    const KeepErrno keep_errno;
    set_stacks(policy.stacks);
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
        detail::recording = false;
        if (ring.made()) put_mark(Record::Mark::end, number, {});
        return;
    }
    if (!ring.make()) return fail(number, "there is no host memory for a trace");
    if (!writer::start()) return fail(number, "no thread could be started for the trace");
    // Events before the mark belong to the previous trace, or to none. Start recording before the mark: after it, the
    // writer may already have failed and stopped the recording.
    detail::recording = true;
    if (!put_mark(Record::Mark::begin, number, file + '\0' + command))
        return fail(number, "the trace before this one does not end");
    record_all_held();
} catch (...) {
    detail::recording = false;  // out of host memory
}

std::optional<control::TraceStatus> status() {
    const std::scoped_lock lock(state().mutex);
    if (state().file.empty()) return std::nullopt;
    return control::TraceStatus{state().file, state().events, state().dropped, state().error};
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

void in_fork_child() noexcept { detail::recording = false; }

}  // namespace curb::shim::trace
