#include "admission.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "captures.hpp"
#include "log.hpp"
#include "policy/names.hpp"
#include "pools.hpp"
#include "process.hpp"

namespace curb::shim::admission {
namespace {

using policy::Verdict;

// Asks the device's own figure before the decision where the books may have drifted.
void freshen(Device &device, Bytes cap, Bytes bytes) noexcept {
    const std::uint64_t age = devices::now_ms() - device.measured_ms.load(std::memory_order_relaxed);
    const Bytes room = policy::room(cap, device.ledger.held());
    if (policy::measure_again(room - std::min(room, bytes), age)) devices::reconcile(device);
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

}  // namespace

std::optional<Bytes> cap(const Device &device) noexcept {
    return process::snapshot().caps[static_cast<std::size_t>(device.ordinal)];
}

policy::Terms terms(const Device &device) noexcept {
    return {.cap = cap(device), .refuse_everything = process::snapshot().unusable, .released = false};
}

bool has_room(Device &device, Bytes bytes) noexcept {
    const policy::Terms asked = terms(device);
    if (asked.cap && !asked.refuse_everything) freshen(device, *asked.cap, bytes);
    return policy::decide(asked, device.ledger.held(), bytes) == Verdict::grant;
}

bool reserve(Device &device, Kind kind, Bytes bytes) noexcept {
    policy::Terms asked = terms(device);
    if (asked.cap && !asked.refuse_everything) freshen(device, *asked.cap, bytes);
    Verdict verdict = device.ledger.reserve(kind, bytes, asked);
    if (verdict == Verdict::release_first) {
        release_on_the_spot(device);
        devices::reconcile(device);
        asked.released = true;
        verdict = device.ledger.reserve(kind, bytes, asked);
    }
    if (verdict == Verdict::grant) return true;
    report_refusal(device, bytes);
    return false;
}

bool release_on_the_spot(Device &device) noexcept {
    const int saved_errno = errno;
    const RelaxedCapture relaxed;
    // A pool gives back only what the host has seen complete; a request that would be refused is worth waiting for the
    // work already queued, as the driver itself does before it reports that it is out of memory.
    captures::synchronise_current_context();
    const bool freed = pools::trim(device) > 0;
    errno = saved_errno;
    return freed;
}

void report_refusal(Device &device, Bytes bytes) noexcept try {
    static constinit std::atomic<bool> said{false};
    const std::optional<Bytes> limit = cap(device);
    // Programs probe for free memory with sizes that no device has; there is nothing to act on in that.
    if (!limit || bytes > device.total) return;
    const auto level = said.exchange(true) ? policy::LogLevel::info : policy::LogLevel::warning;
    if (!log::enabled(level)) return;
    const int saved_errno = errno;
    const Ledger &books = device.ledger;
    const auto human = [](Bytes amount) { return policy::format_human(amount); };
    log::write(level, "refused " + human(bytes) + " on " + device.name() + ": " + human(books.held()) +
                          " of the cap of " + human(*limit) + " is held (allocations " + human(books.of(Kind::plain)) +
                          ", pools " + human(books.of(Kind::pools)) + ", mapped " + human(books.of(Kind::vmm)) +
                          ", managed " + human(books.of(Kind::managed)) + ", context and code " +
                          human(books.overhead()) +
                          "). The program sees CUDA_ERROR_OUT_OF_MEMORY. To give it room: " + remedy());
    errno = saved_errno;
} catch (...) {
    // Out of host memory: the refusal stands, its report is lost.
}

}  // namespace curb::shim::admission
