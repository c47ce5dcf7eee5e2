#include "admission.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "captures.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "policy/names.hpp"
#include "pools.hpp"
#include "process.hpp"

namespace curb::shim::admission {
namespace {

using policy::Verdict;

Bytes kept_for_driver(const Device &device, Bytes cap) noexcept {
    return policy::driver_reserve(cap, device.ledger.overhead(), device.heap.load(std::memory_order_relaxed));
}

// Asks the device's own figure before the decision where the books may have drifted. True: it was asked.
bool freshen(Device &device, Bytes cap, Bytes bytes) noexcept {
    const std::uint64_t age = devices::now_ms() - device.measured_ms.load(std::memory_order_relaxed);
    const Bytes room = policy::room(cap, kept_for_driver(device, cap), device.ledger.held());
    const bool changed = device.changed.load(std::memory_order_relaxed);
    if (!policy::measure_again(room - std::min(room, bytes), age, changed)) return false;
    devices::reconcile(device);
    return true;
}

// What is held and for what, in the words of `amount`.
template <class Amount>
std::string held_text(const Ledger &books, Amount amount) {
    return "allocations " + amount(books.of(Kind::plain) + books.of(Kind::arrays)) + ", pools " +
           amount(books.of(Kind::pools)) + ", graphs " + amount(books.of(Kind::graphs)) + ", mapped " +
           amount(books.of(Kind::vmm)) + ", managed " + amount(books.of(Kind::managed)) + ", stack " +
           amount(books.of(Kind::stack)) + ", context and code " + amount(books.of(Kind::contexts) + books.overhead());
}

// What people do about a refusal.
std::string remedy() {
    const int signal = process::snapshot().policy.release.signal;
    std::string text = "raise the cap";
    const std::string &file = process::source().file;
    if (!file.empty()) text += " in " + file;
    if (signal != 0) {
        std::string name = policy::signal_name(signal);
        if (name.starts_with("SIG")) name.erase(0, 3);  // as kill takes it, in every shell
        text += ", or let the program give back what it caches: kill -" + name + " " + std::to_string(getpid());
    }
    return text;
}

constinit std::atomic<bool> said_once{false};

// Says that something was refused, the first time as a warning: `what` is what, and what to do about it.
template <class What>
void report(const Device &device, What what) noexcept try {
    const std::optional<Bytes> limit = cap(device);
    if (!limit) return;
    const auto level = said_once.exchange(true) ? policy::LogLevel::info : policy::LogLevel::warning;
    if (!log::enabled(level)) return;
    const KeepErrno keep_errno;
    log::write(level, "refused " + what(*limit));
} catch (...) {
    // Out of host memory: the refusal stands, its report is lost.
}

}  // namespace

std::optional<Bytes> cap(const Device &device) noexcept { return process::snapshot().of(device.ordinal).cap; }

policy::Terms terms(const Device &device) noexcept {
    const std::optional<Bytes> limit = cap(device);
    return {.cap = limit,
            .kept_for_driver = limit ? kept_for_driver(device, *limit) : 0,
            .refuse_everything = process::snapshot().unusable,
            .released = false};
}

bool has_room(Device &device, Bytes bytes) noexcept {
    policy::Terms asked = terms(device);
    if (asked.cap && !asked.refuse_everything && freshen(device, *asked.cap, bytes)) asked = terms(device);
    return policy::decide(asked, device.ledger.held(), bytes) == Verdict::grant;
}

bool reserve(Device &device, Kind kind, Bytes bytes) noexcept {
    policy::Terms asked = terms(device);
    if (asked.cap && !asked.refuse_everything && freshen(device, *asked.cap, bytes)) asked = terms(device);
    Verdict verdict = device.ledger.reserve(kind, bytes, asked);
    if (verdict == Verdict::release_first) {
        release_on_the_spot(device);
        devices::reconcile(device);
        asked = terms(device);
        asked.released = true;
        verdict = device.ledger.reserve(kind, bytes, asked);
    }
    if (verdict == Verdict::grant) return true;
    report_refusal(device, bytes);
    return false;
}

bool refuses_code(Device &device, Bytes by) noexcept {
    const auto limit = cap(device);
    if (!limit) return false;
    const auto above = [&] { return device.ledger.held() > *limit && device.ledger.held() - *limit > by; };
    freshen(device, *limit, 0);
    if (above() && release_on_the_spot(device)) devices::reconcile(device);
    if (!above()) return false;
    report_refusal(device, 0);
    return true;
}

bool release_on_the_spot(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    // A pool gives back only what the host has seen complete; a request that would be refused is worth waiting for the
    // work already queued, as the driver itself does before it reports that it is out of memory.
    captures::synchronise_current_context();
    return pools::trim(device) > 0;
}

std::string books_text(Device &device) {
    const Ledger &books = device.ledger;
    const auto bytes = [](Bytes amount) { return std::to_string(amount); };
    const auto figure = device.meter.held_by_process();
    return "books: " + device.name() + " holds " + bytes(books.held()) + " B: " + held_text(books, bytes) +
           "; the device says " + (figure ? bytes(*figure) : std::string("nothing of this process"));
}

bool is_over(const Device &device) noexcept {
    const auto limit = cap(device);
    return limit && device.ledger.held() > *limit - kept_for_driver(device, *limit);
}

Bytes room(const Device &device, Bytes limit) noexcept {
    return policy::room(limit, kept_for_driver(device, limit), device.ledger.held());
}

void report_refusal(Device &device, Bytes bytes) noexcept {
    // Programs probe for free memory with sizes that no device has; there is nothing to act on in that.
    if (bytes > device.total) return;
    report(device, [&](Bytes limit) {
        const Ledger &books = device.ledger;
        const auto human = [](Bytes amount) { return policy::format_human(amount); };
        return (bytes ? human(bytes) : std::string("more code")) + " on " + device.name() + ": " + human(books.held()) +
               " of the cap of " + human(limit) + " is held (" + held_text(books, human) +
               "). The program sees CUDA_ERROR_OUT_OF_MEMORY. To give it room: " + remedy();
    });
}

void report_context_refused(Device &device, Bytes cost) noexcept {
    report(device, [&](Bytes limit) {
        const std::string &file = process::source().file;
        return "a context on " + device.name() + ": it takes " + policy::format_human(cost) +
               " by itself, and the cap is " + policy::format_human(limit) +
               ". The program sees CUDA_ERROR_OUT_OF_MEMORY and cannot use the GPU. To let it: raise the cap" +
               (file.empty() ? "" : " in " + file);
    });
}

}  // namespace curb::shim::admission
