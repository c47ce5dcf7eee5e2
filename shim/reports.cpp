#include "reports.hpp"

#include <unistd.h>

#include <atomic>

#include "admission.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "policy/names.hpp"

namespace curb::shim::reports {
namespace {

// What is held and for what, in the words of `amount`.
template <class Amount>
std::string held_text(const Ledger &books, Amount amount) {
    return "allocations " + amount(books.of(Kind::plain) + books.of(Kind::arrays)) + ", pools " +
           amount(books.of(Kind::pools)) + ", graphs " + amount(books.of(Kind::graphs)) + ", mapped " +
           amount(books.of(Kind::vmm)) + ", managed " + amount(books.of(Kind::managed)) + ", stack " +
           amount(books.of(Kind::stack)) + ", context and code " + amount(books.of(Kind::contexts) + books.overhead());
}

// What people do about a refusal: `what` to raise or lower, where.
std::string remedy(std::string what) {
    const int signal = *process::snapshot().policy.release.signal;
    const std::string &file = process::source().file;
    if (!file.empty()) what += " in " + file;
    if (signal != 0) {
        std::string name = policy::signal_name(signal);
        if (name.starts_with("SIG")) name.erase(0, 3);  // as kill takes it, in every shell
        what += ", or let the program give back what it caches: kill -" + name + " " + std::to_string(getpid());
    }
    return what;
}

std::string human(Bytes amount) { return policy::format_human(amount); }

// Which limit a request of `bytes` meets, and what to do about it.
struct Obstacle {
    std::string text;
    std::string remedy;
};
Obstacle obstacle(const Device &device, const Snapshot::Gpu &gpu, Bytes bytes) {
    const Bytes held = device.ledger.held();
    const auto &cap = gpu.terms.cap;
    const Bytes allowance = gpu.allowance.bytes();
    const auto fits = [&](Bytes limit) { return bytes <= admission::room(device, limit); };
    if (cap && !fits(*cap)) return {human(held) + " of the cap of " + human(*cap) + " is held", "raise the cap"};
    if (allowance != policy::kUnbounded && !fits(allowance)) {
        const std::uint64_t due = policy::until_step(gpu.terms.growth, devices::now_ms(), gpu.allowance.last_step_ms());
        return {human(held) + " of the allowance of " + human(allowance) +
                    " is held, and the next growth step is due " +
                    (due == 0 ? std::string("now")
                              : "in " + policy::format(policy::Duration(static_cast<std::int64_t>(due)))),
                R"(raise "start", or say with "wait" how long to hold a request)"};
    }
    if (gpu.terms.growth.keep_free != 0)
        return {"the device would have less than " + human(gpu.terms.growth.keep_free) + " left for others (keep_free)",
                R"(lower "keep_free", or say with "wait" how long to hold a request)"};
    return {"the device is full; others use the rest of it", R"(say with "wait" how long to hold a request)"};
}

constinit std::atomic<bool> said_once{false};

// Says that something was refused, the first time as a warning: `what` says what, and what to do about it.
template <class What>
void report(What what) noexcept try {
    const auto level = said_once.exchange(true) ? policy::LogLevel::info : policy::LogLevel::warning;
    if (!log::enabled(level)) return;
    const KeepErrno keep_errno;
    log::write(level, "refused " + what());
} catch (...) {
    // Out of host memory: the refusal stands, its report is lost.
}

}  // namespace

void refusal(Device &device, Bytes bytes) noexcept {
    // Programs probe for free memory with sizes that no device has; there is nothing to act on in that.
    if (bytes > device.total) return;
    const Snapshot::Gpu &gpu = admission::in_force(device);
    if (!gpu.limited() && gpu.terms.growth.wait.count() == 0) return;
    report([&] {
        const Obstacle why = obstacle(device, gpu, bytes);
        return (bytes ? human(bytes) : std::string("more code")) + " on " + device.name() + ": " + why.text + " (" +
               held_text(device.ledger, human) +
               "). The program sees CUDA_ERROR_OUT_OF_MEMORY. To give it room: " + remedy(why.remedy);
    });
}

void context_refused(Device &device, Bytes cost) noexcept {
    const auto limit = admission::cap(device);
    if (!limit) return;
    report([&] {
        const std::string &file = process::source().file;
        return "a context on " + device.name() + ": it takes " + human(cost) + " by itself, and the cap is " +
               human(*limit) +
               ". The program sees CUDA_ERROR_OUT_OF_MEMORY and cannot use the GPU. To let it: raise the cap" +
               (file.empty() ? "" : " in " + file);
    });
}

void allowance(const Device &device, const char *how, Bytes bytes) noexcept try {
    if (!log::enabled(policy::LogLevel::info)) return;
    log::write(policy::LogLevel::info,
               "allowance: " + device.name() + " " + how + " " +
                   (bytes == policy::kUnbounded ? std::string("all that the cap grants") : human(bytes)));
} catch (...) {
    // Out of host memory: the allowance stands, its report is lost.
}

void waiting(const Device &device, const Snapshot::Gpu &gpu, Bytes bytes) noexcept try {
    if (!log::enabled(policy::LogLevel::info)) return;
    const KeepErrno keep_errno;
    log::write(policy::LogLevel::info, "holding a request for " + human(bytes) + " on " + device.name() + ", for " +
                                           policy::format(gpu.terms.growth.wait) +
                                           " at the most: " + obstacle(device, gpu, bytes).text);
} catch (...) {
    // Out of host memory: it is held all the same.
}

void waited(const Device &device, Bytes bytes, const room::Wait &wait) noexcept try {
    if (!log::enabled(policy::LogLevel::info)) return;
    const KeepErrno keep_errno;
    const policy::Duration held(static_cast<std::int64_t>(wait.milliseconds()));
    log::write(policy::LogLevel::info,
               "granted " + human(bytes) + " on " + device.name() + " after " + policy::format(held));
} catch (...) {
    // Out of host memory: it was granted all the same.
}

std::string books_text(Device &device) {
    const Ledger &books = device.ledger;
    const auto bytes = [](Bytes amount) { return std::to_string(amount); };
    const auto figure = device.meter.held_by_process();
    return "books: " + device.name() + " holds " + bytes(books.held()) + " B: " + held_text(books, bytes) +
           ", cached " + bytes(device.cached.load(std::memory_order_relaxed)) + "; the device says " +
           (figure ? bytes(*figure) : std::string("nothing of this process"));
}

}  // namespace curb::shim::reports
