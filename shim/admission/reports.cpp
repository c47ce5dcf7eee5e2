#include "reports.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "clock.hpp"
#include "keep_errno.hpp"
#include "limits.hpp"
#include "log.hpp"
#include "policy/names.hpp"
#include "policy/values/words.hpp"
#include "trace.hpp"

namespace curb::shim::reports {
namespace {

// Returns the bytes held by kind, each formatted by `amount`.
template <class Amount>
std::string held_text(const Ledger &books, Amount amount) {
    return "allocations " + amount(books.of(Kind::plain) + books.of(Kind::arrays)) + ", pools " +
           amount(books.of(Kind::pools)) + ", graphs " + amount(books.of(Kind::graphs)) + ", mapped " +
           amount(books.of(Kind::vmm)) + ", managed " + amount(books.of(Kind::managed)) + ", stack " +
           amount(books.of(Kind::stack)) + ", context and code " + amount(books.of(Kind::contexts) + books.overhead());
}

// Returns the remedy for a refusal: `what`, and the release signal if the policy names one.
std::string remedy(std::string what) {
    const int signal = *process::snapshot()->policy.release.signal;
    if (signal != 0) {
        std::string name = policy::signal_name(signal);
        if (name.starts_with("SIG")) name.erase(0, 3);  // as kill takes it, in every shell
        what += ", or have the program free its caches: kill -" + name + " " + std::to_string(getpid());
    }
    return what;
}

std::string in_file(const std::string &what) {
    const std::string &file = in_force::source().file;
    return file.empty() ? what : what + " in " + file;
}

std::string raise_cap(const Snapshot::Gpu &gpu) {
    if (gpu.terms.ceiling) return "have the machine's ceiling raised, in " + in_force::source().ceiling;
    if (!gpu.terms.handed_in.empty() && !gpu.live_cap)
        return "raise " + gpu.terms.handed_in + ", from which it has its cap";
    if (gpu.live_cap) return "raise the cap: curb cap " + std::to_string(getpid()) + " SIZE";
    return in_file("raise the cap");
}

std::string raise_job_cap(const Device &device, const Snapshot::Gpu &gpu) {
    if (gpu.terms.job_ceiling) return "have the machine's ceiling raised, in " + in_force::source().ceiling;
    const std::string how = device.ledger.share.live_cap()
                                ? "go back to the cap of its policy: curb cap --job '" + job::name() + "' --reset"
                                : in_file("raise the job's cap");
    return how + ", or free memory in its other processes: curb release PID";
}

std::string human(Bytes amount) { return policy::format_human(amount); }

// Returns the limit's bytes. 0 if the device is full or the policy unusable.
Bytes limit_of(const Snapshot::Gpu &gpu, policy::Limit why) noexcept {
    switch (why) {
        case policy::Limit::cap: return gpu.terms.cap.value_or(0);
        case policy::Limit::allowance: return gpu.allowance.bytes();
        case policy::Limit::keep_free: return gpu.terms.growth.keep_free;
        case policy::Limit::job: return gpu.terms.job_cap.value_or(0);
        case policy::Limit::device:
        case policy::Limit::policy: break;
    }
    return 0;
}

// The limit and its remedy, as text.
struct Words {
    std::string text;
    std::string remedy;
};

// Returns the processes of the job that hold most, with what they hold: "1 GiB by 4711 (python)".
std::string holders_text(const Device &device) {
    constexpr std::size_t kMost = 8;
    const auto all = device.ledger.share.holders();
    std::string out;
    for (std::size_t i = 0; i < std::min(all.size(), kMost); ++i)
        out += (i == 0 ? "" : ", ") + human(all[i].held) + " by " +
               (all[i].self ? std::string("this process")
                            : std::to_string(all[i].pid) + " (" + policy::one_line(all[i].name.data()) + ")");
    if (all.size() > kMost) out += ", the rest by " + std::to_string(all.size() - kMost) + " more";
    return out;
}

Words words_of_job(const Device &device, const Snapshot::Gpu &gpu) {
    const auto &share = device.ledger.share;
    if (!share.joined())
        return {"the ledger of its job cannot be used (see the line above in this log)", "make the ledger usable"};
    const Bytes kept = share.kept_by_all();
    const char *live = share.live_cap() && !gpu.terms.job_ceiling ? ", which curb cap --job has set," : "";
    return {human(share.held_by_all()) + " of the job's cap of " + human(*gpu.terms.job_cap) + live + " is held (" +
                holders_text(device) + ")" +
                (kept == 0 ? "" : ", " + human(kept) + " more is kept free for code that the driver loads"),
            raise_job_cap(device, gpu)};
}

Words words(const Device &device, const Snapshot::Gpu &gpu, const LimitHit &hit) {
    const std::string held = human(hit.held), limit = human(limit_of(gpu, hit.why));
    const std::string kept =
        hit.kept == 0 ? "" : ", " + human(hit.kept) + " more is kept free for code that the driver loads";
    switch (hit.why) {
        case policy::Limit::cap: return {held + " of the cap of " + limit + " is held" + kept, raise_cap(gpu)};
        case policy::Limit::job: return words_of_job(device, gpu);
        case policy::Limit::allowance: {
            const std::uint64_t due = policy::until_step(gpu.terms.growth, now_ms(), gpu.allowance.last_step_ms());
            return {held + " of the allowance of " + limit + " is held" + kept + ", and the next growth step is due " +
                        (due == 0 ? std::string("now")
                                  : "in " + policy::format_time_left(policy::Duration(static_cast<std::int64_t>(due)))),
                    in_file(R"(raise "start" or set "wait" (how long requests may wait))")};
        }
        case policy::Limit::keep_free:
            return {"the device would have less than " + limit + " left for others (keep_free)",
                    in_file(R"(lower "keep_free" or set "wait" (how long requests may wait))")};
        case policy::Limit::policy: return {"its policy cannot be used", "fix it"};
        case policy::Limit::device: break;
    }
    return {"the device is full; others use the rest of it", in_file(R"(set "wait" (how long requests may wait))")};
}

constexpr std::size_t kKept = 16;
constinit std::mutex mutex;
constinit std::array<control::Refusal, kKept> last_refused{};
constinit std::size_t refused_so_far = 0;

// Counts a refusal and keeps it for `curb ps`. `limit`: as in control::Refusal.
void note_refusal(Device &device, Bytes bytes, policy::Limit why, Bytes held, Bytes limit) noexcept {
    device.refused[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
    const control::UnixMs at = control::unix_now();
    const std::scoped_lock lock(mutex);
    last_refused[refused_so_far++ % kKept] = {at, device.ordinal, bytes, why, held, limit};
}

constinit std::atomic<bool> logged_refusal{false}, logged_long_wait{false};

// Logs a line, unless there is no host memory for it.
template <class Line>
void log_line(policy::LogLevel level, Line line) noexcept try {
    if (!log::enabled(level)) return;
    const KeepErrno keep_errno;
    log::write(level, line());
} catch (...) {
    return;
}

// Logs a line: the first of its kind as a warning, the others at level info.
template <class Line>
void report(std::atomic<bool> &once, Line line) noexcept {
    log_line(once.exchange(true) ? policy::LogLevel::info : policy::LogLevel::warning, line);
}

}  // namespace

void refusal(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    trace::refused(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
    if (bytes > device.total) return;
    const Bytes held = hit.why == policy::Limit::job ? device.ledger.share.held_by_all() : hit.held;
    note_refusal(device, bytes, hit.why, held, limit_of(gpu, hit.why));
    if (!gpu.limited() && gpu.terms.growth.wait.count() == 0) return;
    report(logged_refusal, [&] {
        const Words why = words(device, gpu, hit);
        return "refused " + (bytes ? human(bytes) : std::string("more code")) + " on " + device.name() + ": " +
               why.text + " (" + held_text(device.ledger, human) +
               "). The program sees CUDA_ERROR_OUT_OF_MEMORY. To allow it: " + remedy(why.remedy);
    });
}

std::vector<control::Refusal> last_refusals() {
    std::vector<control::Refusal> out;
    out.reserve(kKept);  // before the lock, which the program's requests take
    const std::scoped_lock lock(mutex);
    for (std::size_t i = refused_so_far - std::min(refused_so_far, kKept); i < refused_so_far; ++i)
        out.push_back(last_refused[i % kKept]);
    return out;
}

void refused_for_pressure(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    trace::refused(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
}

void device_full(Device &device, Kind kind, Bytes bytes) noexcept {
    trace::refused(device, kind, bytes, {policy::Limit::device, 0});
    if (bytes <= device.total) note_refusal(device, bytes, policy::Limit::device, device.ledger.held(), 0);
}

void context_refused(Device &device, Bytes cost) noexcept {
    const auto gpu = limits::in_force(device);
    const policy::GpuTerms &terms = gpu->terms;
    const bool by_job = terms.job_cap && device.ledger.held() <= terms.cap.value_or(policy::kUnbounded);
    const auto limit = by_job ? terms.job_cap : terms.cap;
    if (!limit) return;
    const policy::Limit why = by_job ? policy::Limit::job : policy::Limit::cap;
    note_refusal(device, cost, why, by_job ? device.ledger.share.held_by_all() : device.ledger.held(), *limit);
    trace::refused(device, Kind::contexts, cost, {why, *limit});
    report(logged_refusal, [&] {
        const Words of_job = by_job ? words_of_job(device, *gpu) : Words();
        return "refused a context on " + device.name() + ": it takes " + human(cost) +
               (by_job ? ", with which " + of_job.text : " by itself, and the cap is " + human(*limit)) +
               ". The program sees CUDA_ERROR_OUT_OF_MEMORY and cannot use the GPU. To let it: " +
               (by_job ? of_job.remedy : raise_cap(*gpu));
    });
}

void allowance(const Device &device, const char *how, Bytes bytes) noexcept {
    trace::allowance(device, bytes);
    log_line(policy::LogLevel::info, [&] {
        return "allowance: " + device.name() + " " + how + " " +
               (bytes == policy::kUnbounded ? std::string("the whole cap") : human(bytes));
    });
}

void waiting(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    device.waited.fetch_add(1, std::memory_order_relaxed);
    trace::waiting(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
    log_line(policy::LogLevel::info, [&] {
        return "a request for " + human(bytes) + " on " + device.name() + " waits (at most " +
               policy::format(gpu.terms.growth.wait) + "): " + words(device, gpu, hit).text;
    });
}

void waits_long(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit,
                const wait_queue::Wait &wait) noexcept {
    report(logged_long_wait, [&] {
        const policy::Duration held(static_cast<std::int64_t>(wait.milliseconds()) / 1000 * 1000);
        return "a request for " + human(bytes) + " on " + device.name() + " has waited for " + policy::format(held) +
               " (at most " + policy::format(gpu.terms.growth.wait) + "): " + words(device, gpu, hit).text +
               ". curb ps " + std::to_string(getpid()) + " shows the request";
    });
}

void waited(const Device &device, Kind kind, Bytes bytes, const wait_queue::Wait &wait) noexcept {
    trace::granted(device, kind, bytes, wait.milliseconds());
    log_line(policy::LogLevel::info, [&] {
        const policy::Duration held(static_cast<std::int64_t>(wait.milliseconds()));
        return "granted " + human(bytes) + " on " + device.name() + " after " + policy::format(held);
    });
}

std::string cap_text(const control::CapReport &report, bool of_job) {
    const auto cap = [](const std::optional<Bytes> &bytes) { return bytes ? human(*bytes) : std::string("none"); };
    std::string out = of_job ? "curb cap --job:" : "curb cap:";
    for (const control::CapChange &gpu : report.gpus) {
        out += (&gpu == &report.gpus.front() ? " cuda:" : "; cuda:") + std::to_string(gpu.ordinal) + " cap " +
               cap(gpu.before) + " -> " + cap(gpu.now) + (gpu.ceiling ? " (the machine's ceiling)" : "");
        if (gpu.now && gpu.held > *gpu.now) out += ", and " + human(gpu.held) + " is held: released until it is under";
    }
    return out;
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
