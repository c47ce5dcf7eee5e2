#include "admission/reports.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <mutex>
#include <utility>

#include "base/keep_errno.hpp"
#include "blocks/applies.hpp"
#include "control/proc.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/limits.hpp"
#include "policy/flags.hpp"
#include "policy/names.hpp"
#include "policy/values/words.hpp"
#include "trace/trace.hpp"

namespace curb::shim::reports {
namespace {

using policy::Flag;

std::string human(Bytes amount) { return policy::format_human(amount); }

// Returns the bytes held by kind, each formatted by `amount`. Without those that are 0, unless `zeros`.
template <class Amount>
std::string held_text(const Ledger &books, Amount amount, bool zeros = false) {
    const std::pair<const char *, Bytes> kinds[] = {{"allocations ", books.of(Kind::plain) + books.of(Kind::arrays)},
                                                    {"pools ", books.of(Kind::pools)},
                                                    {"graphs ", books.of(Kind::graphs)},
                                                    {"mapped ", books.of(Kind::vmm)},
                                                    {"managed ", books.of(Kind::managed)},
                                                    {"stack ", books.of(Kind::stack)},
                                                    {"context and code ", books.of(Kind::contexts) + books.overhead()}};
    std::string out;
    for (const auto &[kind, bytes] : kinds)
        if (zeros || bytes != 0) out += (out.empty() ? "" : ", ") + (kind + amount(bytes));
    return out;
}

// ---- remedies ----

// Returns the text of the flag, if one was given: "--wait (CURB_WAIT=1s)".
std::string given(Flag flag) {
    const policy::FlagRow &row = policy::flags()[static_cast<std::size_t>(flag)];
    for (const auto &[one, text] : in_force::source().flags)
        if (one == flag) return std::string(row.option) + " (" + row.variable + "=" + text + ")";
    return {};
}

// Returns the file to edit, as in ` in job.json`: the user's, or the ceiling of a machine whose users have none.
std::string in_file() {
    const config::Source &source = in_force::source();
    return " in " + (source.file.empty() ? source.ceiling : source.file);
}

std::string let_it_wait() {
    if (const std::string flag = given(Flag::wait); !flag.empty()) return "let requests wait longer: " + flag;
    return "let requests wait: " +
           (in_force::source().file.empty() ? "curb run --wait 30s (CURB_WAIT=30s)" : "\"wait\": \"30s\"" + in_file());
}

std::string raise_allowance() {
    const std::string flag = given(Flag::growth);
    return "raise " + (flag.empty() ? "\"start\"" + in_file() : "START of " + flag) + ", or " + let_it_wait();
}

std::string lower_keep_free() {
    const std::string flag = given(Flag::keep_free);
    return "lower " + (flag.empty() ? "\"keep_free\"" + in_file() : flag) + ", or " + let_it_wait();
}

// `enough`: a cap that serves the request; 0: none does, or its size is unknown.
std::string raise_cap(const Snapshot::Gpu &gpu, Bytes enough) {
    if (gpu.terms.ceiling) return "have the machine's ceiling raised, in " + in_force::source().ceiling;
    const std::string size = enough != 0 ? policy::format_exact(enough) : "SIZE";
    std::string now = "raise the cap: curb cap " + std::to_string(getpid()) + " " + size;
    if (gpu.live_cap) return now;
    if (!gpu.terms.handed_in.empty()) return now + ", or raise " + gpu.terms.handed_in + ", from which it has its cap";
    if (gpu.terms.narrowed) return now + ", or next time curb run --cap " + size + " (CURB_CAP)";
    return now + ", or \"cap\"" + in_file();
}

std::string raise_job_cap(const Device &device, const Snapshot::Gpu &gpu, Bytes enough) {
    if (gpu.terms.job_ceiling) return "have the machine's ceiling raised, in " + in_force::source().ceiling;
    const std::string command = "curb cap --job " + policy::quote(job::name()) + " ";
    if (device.ledger.share.live_cap()) return "go back to the cap of its policy: " + command + "--reset";
    return "raise the job's cap: " + command + policy::format_exact(enough);
}

// Returns the command by which this process gives back what its frameworks keep. Empty if it holds nothing but contexts
// and code.
std::string or_release(const Ledger &books) {
    return books.held() <= books.of(Kind::contexts) + books.overhead()
               ? std::string()
               : ", or have the program free its caches: curb release " + std::to_string(getpid());
}

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

// Returns "1 GiB by 4711 (python)".
std::string holder_text(Bytes held, std::uint64_t pid, std::string_view name) {
    return human(held) + " by " + std::to_string(pid) + (name.empty() ? "" : " (" + policy::one_line(name) + ")");
}

// Returns the processes of the job that hold most, with what they hold.
std::string holders_text(const std::vector<job::Share::Holder> &all) {
    constexpr std::size_t kMost = 8;
    std::string out;
    for (std::size_t i = 0; i < std::min(all.size(), kMost); ++i)
        out += (i == 0 ? "" : ", ") + (all[i].self ? human(all[i].held) + " by this process"
                                                   : holder_text(all[i].held, all[i].pid, all[i].name.data()));
    if (all.size() > kMost) out += ", the rest by " + std::to_string(all.size() - kMost) + " more";
    return out;
}

Words words_of_job(const Device &device, const Snapshot::Gpu &gpu, Bytes bytes) {
    const auto &share = device.ledger.share;
    if (!share.joined())
        return {"the ledger of its job cannot be used (see the line above in this log)", "make the ledger usable"};
    const Bytes kept = share.kept_by_all(), held = share.held_by_all();
    const char *live = share.live_cap() && !gpu.terms.job_ceiling ? ", which curb cap --job has set," : "";
    const auto all = share.holders();
    Words out{human(held) + " of the job's cap of " + human(*gpu.terms.job_cap) + live + " is held (" +
                  holders_text(all) + ")" +
                  (kept == 0 ? "" : ", " + human(kept) + " more is kept free for code that the driver loads"),
              raise_job_cap(device, gpu, policy::cap_that_serves(held, bytes, *gpu.terms.job_cap))};
    const auto other = std::find_if(all.begin(), all.end(), [](const auto &one) { return !one.self; });
    if (other != all.end())
        out.remedy += ", or free memory in its other processes: curb release " + std::to_string(other->pid);
    return out;
}

// The other process that holds the most of the device: " (12 GiB by 4711 (python))", and how it may give some back.
// Both are empty if NVML does not say.
Words words_of_largest(Device &device) {
    const auto largest = device.meter.largest_other();
    if (!largest) return {};
    std::string name = control::proc_text(largest->pid, "comm", 64);
    if (name.ends_with('\n')) name.pop_back();
    const bool may_ask = geteuid() == 0 || control::owner_of(largest->pid) == geteuid();
    return {" (" + holder_text(largest->bytes, static_cast<std::uint64_t>(largest->pid), name) + ")",
            may_ask ? "make room there: curb release " + std::to_string(largest->pid) + ", or " : ""};
}

Words words_of_device(Device &device, Bytes held, bool has_room) {
    const auto free = device.meter.free();
    if (has_room && free)
        return {
            "the driver refuses it although " + human(*free) +
                " are free: a pool of the program has a limit of its own, or the process has too little host memory "
                "or too few descriptors",
            "raise that limit"};
    const Bytes others = free ? device.total - std::min(device.total, policy::added(*free, held)) : 0;
    const Words largest = others < policy::MiB ? Words() : words_of_largest(device);
    return {"the driver is out of memory" + (free ? ": " + human(*free) + " free" : "") +
                (others < policy::MiB ? "" : ", others hold " + human(others)) + largest.text + "; not curb's cap",
            largest.remedy + let_it_wait()};
}

Words words(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) {
    if (hit.is_behind) return {"requests of other processes that wait for longer come first", let_it_wait()};
    const std::string limit = human(limit_of(gpu, hit.why));
    const auto held_of = [&](const std::string &name) {
        return hit.held == 0 ? "the " + name + " is " + limit
                             : human(hit.held) + " of the " + name + " of " + limit + " is held";
    };
    const std::string kept =
        hit.kept == 0 ? "" : ", " + human(hit.kept) + " more is kept free for code that the driver loads";
    switch (hit.why) {
        case policy::Limit::cap: {
            const Bytes enough = policy::cap_that_serves(hit.held, bytes, limit_of(gpu, hit.why));
            return {held_of("cap") + kept, raise_cap(gpu, bytes != 0 && enough <= device.total ? enough : 0)};
        }
        case policy::Limit::job: return words_of_job(device, gpu, bytes);
        case policy::Limit::allowance: {
            const std::uint64_t due = policy::until_step(gpu.terms.growth, now_ms(), gpu.allowance.last_step_ms());
            return {held_of("allowance") + kept + ", and the next growth step is due " +
                        (due == 0 ? std::string("now")
                                  : "in " + policy::format_time_left(policy::Duration(static_cast<std::int64_t>(due)))),
                    raise_allowance()};
        }
        case policy::Limit::keep_free: {
            const Words largest = words_of_largest(device);
            return {"the device would have less than " + limit + " left for others (keep_free)" + largest.text,
                    largest.remedy + lower_keep_free()};
        }
        case policy::Limit::policy: return {"its policy cannot be used", "fix it"};
        case policy::Limit::device: break;
    }
    return words_of_device(device, hit.held, hit.has_room);
}

// Lines of which the first is a warning, and the others are at level info.
enum class Once : std::uint8_t { refused, device_full, long_wait };

// The refusals so far, and the warnings that were logged.
class Tally {
  public:
    static constexpr std::size_t kKept = 16;

    void add(const control::Refusal &refusal) noexcept {
        const std::scoped_lock lock(mutex_);
        last_[refused_++ % kKept] = refusal;
        note_sum();
    }
    // True for the first line.
    bool is_first(Once line) noexcept {
        const std::scoped_lock lock(mutex_);
        const bool first = !std::exchange(warned_[static_cast<std::size_t>(line)], true);
        note_sum();
        return first;
    }
    [[nodiscard]] bool has_sum() const noexcept { return has_sum_; }
    std::pair<std::size_t, control::Refusal> count_and_last() noexcept {
        const std::scoped_lock lock(mutex_);
        return {refused_, last_[(refused_ - 1) % kKept]};
    }
    void append_to(std::vector<control::Refusal> &out) {
        const std::scoped_lock lock(mutex_);
        for (std::size_t i = refused_ - std::min(refused_, kKept); i < refused_; ++i) out.push_back(last_[i % kKept]);
    }

  private:
    void note_sum() noexcept {
        const std::size_t warnings = std::size_t{warned_[0]} + std::size_t{warned_[1]};  // about refusals
        has_sum_ = warnings != 0 && refused_ > warnings;
    }

    std::mutex mutex_;
    std::array<control::Refusal, kKept> last_{};
    std::size_t refused_ = 0;
    std::array<bool, 3> warned_{};  // by Once
    // Written under the lock. Atomic because a program may end in a signal handler, which must not take the lock.
    std::atomic<bool> has_sum_{false};
};
constinit Tally tally;

// Counts a refusal and keeps it for `curb ps`. `limit`: as in control::Refusal.
void note_refusal(Device &device, Bytes bytes, policy::Limit why, Bytes held, Bytes limit) noexcept {
    device.counts.note_refused(why);
    tally.add({control::unix_now(), device.ordinal, bytes, why, held, limit});
}

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
void report(Once once, Line line) noexcept {
    log_line(tally.is_first(once) ? policy::LogLevel::warning : policy::LogLevel::info, line);
}

}  // namespace

void refusal(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    trace::refused(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
    if (bytes > device.total) return;
    const Bytes held = hit.why == policy::Limit::job ? device.ledger.share.held_by_all() : hit.held;
    note_refusal(device, bytes, hit.why, held, limit_of(gpu, hit.why));
    const bool by_device = hit.why == policy::Limit::device;
    const bool limited = gpu.limited() || gpu.terms.growth.wait.count() != 0;
    if (!limited && !by_device) return;
    const auto line = [&] {
        const Words why = words(device, gpu, bytes, hit);
        const std::string held_by_kind = held_text(device.ledger, human);
        const std::string what = hit.kind == Kind::contexts ? "a context of " + human(bytes)
                                 : bytes != 0               ? human(bytes)
                                                            : "more code";
        return "refused " + what + " on " + device.name() + ": " + why.text +
               (held_by_kind.empty() ? "" : " (held: " + held_by_kind + ")") +
               ". The program sees CUDA_ERROR_OUT_OF_MEMORY. To allow it: " + why.remedy +
               (by_device ? "" : or_release(device.ledger));
    };
    // curb prints nothing in a program that it only observes.
    if (limited)
        report(by_device ? Once::device_full : Once::refused, line);
    else
        log_line(policy::LogLevel::info, line);
}

void sum_up() noexcept {
    if (!has_sum()) return;
    log_line(policy::LogLevel::warning, [] {
        const auto [count, last] = tally.count_and_last();
        const std::time_t at = last.at / 1000;
        tm local{};
        localtime_r(&at, &local);
        char time[16];
        std::strftime(time, sizeof time, "%H:%M:%S", &local);
        return "refused " + std::to_string(count) + " requests, the last at " + time + ": " +
               (last.bytes ? human(last.bytes) : std::string("more code")) +
               (devices::count() > 1 ? " on cuda:" + std::to_string(last.gpu) : "") + ", by " +
               policy::limit_text(last.why);
    });
}

bool has_sum() noexcept { return tally.has_sum(); }

std::vector<control::Refusal> last_refusals() {
    std::vector<control::Refusal> out;
    out.reserve(Tally::kKept);  // before the lock, which the program's requests take
    tally.append_to(out);
    return out;
}

void refused_for_pressure(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    trace::refused(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
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
    report(Once::refused, [&] {
        const Words of_job = by_job ? words_of_job(device, *gpu, 0) : Words();
        return "refused a context on " + device.name() + ": it takes " + human(cost) +
               (by_job ? ", with which " + of_job.text : " by itself, and the cap is " + human(*limit)) +
               ". The program sees CUDA_ERROR_OUT_OF_MEMORY and cannot use the GPU. To let it: " +
               (by_job ? of_job.remedy : raise_cap(*gpu, policy::cap_that_serves(0, cost, *limit)));
    });
}

void allowance(const Device &device, const char *how, Bytes bytes) noexcept {
    trace::allowance(device, bytes);
    log_line(policy::LogLevel::info, [&] {
        return "allowance: " + device.name() + " " + how + " " +
               (bytes == policy::kUnbounded ? std::string("the whole cap") : human(bytes));
    });
}

bool waits_for_turn(const policy::SuspendPolicy &policy, policy::Limit why) noexcept {
    return (why == policy::Limit::device || why == policy::Limit::keep_free) && blocks::takes_turns(policy);
}

namespace {

// How long a request waits: "at most 30s".
std::string most(const Snapshot::Gpu &gpu, policy::Limit why) {
    if (waits_for_turn(in_force::snapshot()->policy.suspend, why)) return "until its turn comes";
    return "at most " + policy::format(gpu.terms.growth.wait);
}

}  // namespace

void waiting(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit) noexcept {
    device.counts.note_waited();
    trace::waiting(device, hit.kind, bytes, {hit.why, limit_of(gpu, hit.why)});
    log_line(policy::LogLevel::info, [&] {
        return "a request for " + human(bytes) + " on " + device.name() + " waits (" + most(gpu, hit.why) +
               "): " + words(device, gpu, bytes, hit).text;
    });
}

void waits_long(Device &device, const Snapshot::Gpu &gpu, Bytes bytes, const LimitHit &hit,
                const wait_queue::Wait &wait) noexcept {
    report(Once::long_wait, [&] {
        const policy::Duration held(static_cast<std::int64_t>(wait.milliseconds()) / 1000 * 1000);
        return "a request for " + human(bytes) + " on " + device.name() + " has waited for " + policy::format(held) +
               " (" + most(gpu, hit.why) + "): " + words(device, gpu, bytes, hit).text + ". curb ps " +
               std::to_string(getpid()) + " shows the request";
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
    return "books: " + device.name() + " holds " + bytes(books.held()) + " B: " + held_text(books, bytes, true) +
           ", cached " + bytes(device.kept.bytes) + "; the device says " +
           (figure ? bytes(*figure) : std::string("nothing of this process"));
}

}  // namespace curb::shim::reports
