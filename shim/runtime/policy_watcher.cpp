#include "policy_watcher.hpp"

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "config/watch.hpp"
#include "lifetime.hpp"
#include "log.hpp"
#include "own_socket.hpp"
#include "own_thread.hpp"
#include "process.hpp"
#include "shortened.hpp"
#include "waiting.hpp"

namespace curb::shim::policy_watcher {
namespace {

using policy::LogLevel;
using Done = std::function<void(const control::Reply &)>;

// State shared with other threads. Never destroyed: they may use it until the process ends.
struct Shared {
    std::mutex mutex;
    bool runs = false;
    std::vector<Done> asked;                        // reload requests
    std::string wrong;                              // errors of the newest version
    std::map<std::string, std::string> unreadable;  // errors, by file
};
Shared &shared() noexcept { return leaked<Shared>(); }

// A pair of sockets wakes the thread, which sleeps on inotify. If the program closes them, the thread checks for
// requests every Watch::kPoll. curb never closes them: another thread may be about to use them.
constinit std::atomic<const OwnSocket *> waker{nullptr};
constinit std::atomic<const OwnSocket *> woken{nullptr};

void make_wakers() {
    OwnSocket ends[2];
    if (!OwnSocket::may_be_opened() || !OwnSocket::pair(ends[0], ends[1])) return;
    woken.store(new OwnSocket(std::move(ends[0])), std::memory_order_release);
    waker.store(new OwnSocket(std::move(ends[1])), std::memory_order_release);
}

void wake() noexcept {
    if (const OwnSocket *socket = waker.load(std::memory_order_acquire)) socket->wake();
}

// Returns the descriptor to wait on. -1 if the program has closed it.
int wake_descriptor() noexcept {
    const OwnSocket *socket = woken.load(std::memory_order_acquire);
    return socket && socket->ours() ? socket->number() : -1;
}

void drain() noexcept {
    const OwnSocket *socket = woken.load(std::memory_order_acquire);
    if (socket && socket->ours() && !socket->drain()) woken.store(nullptr, std::memory_order_release);
}

bool is_asked() {
    const std::scoped_lock lock(shared().mutex);
    return !shared().asked.empty();
}

std::vector<std::string> texts_of(const config::Diagnostics &diagnostics) {
    std::vector<std::string> out;
    for (const auto &one : diagnostics) out.push_back(one.text());
    return out;
}

void note_errors(const config::Diagnostics &diagnostics) {
    constexpr std::size_t kMost = 2000;  // it is part of each status, which clients poll
    std::string text;
    std::size_t told = 0;
    for (const auto &one : diagnostics) {
        if (told != 0 && text.size() > kMost) break;
        text += (told++ == 0 ? "" : "; ") + one.text();
    }
    if (told < diagnostics.size()) text += "; and " + std::to_string(diagnostics.size() - told) + " more";
    const std::scoped_lock lock(shared().mutex);
    shared().wrong = shortened(std::move(text), 2 * kMost);
}

void log_kept_policy() {
    log::write(LogLevel::error, process::snapshot()->unusable ? "still no usable policy: allocations stay refused"
                                                              : "the last good policy stays in force");
}

void refuse(const config::Diagnostics &why) {
    note_errors(why);
    for (const auto &diagnostic : why) log::write(LogLevel::error, diagnostic.text());
    log_kept_policy();
}

bool is_in_force(const config::Loaded &loaded) {
    const auto in_use = process::snapshot();
    const Version &now = in_use->version;
    return loaded.policy == now.policy && loaded.rule == now.rule && loaded.ceiling == now.ceiling && !now.unusable;
}

// Puts a policy in force unless it is in force already.
process::Changed accept(const config::Loaded &loaded) {
    {
        const std::scoped_lock lock(shared().mutex);
        shared().wrong.clear();
    }
    if (!is_in_force(loaded)) return process::enforce(loaded);
    process::Changed out;
    for (const in_force::Line &line : in_force::notes()) out.notes.push_back(line.text);
    return out;
}

control::Reply read_again(config::Watch &watch) {
    const config::Source &source = in_force::source();
    watch.catch_up();  // first, so that the watch sees an edit made after this load
    const auto loaded = config::load(source, process::subject);
    control::ReloadReport out;
    out.file = source.file;
    if (!loaded) {
        if (config::is_for_want_of_memory(loaded.error())) throw std::bad_alloc();
        refuse(loaded.error());
        out.errors = texts_of(loaded.error());
    } else if (source.file.empty() && !loaded->ceiling && !process::snapshot()->version.ceiling) {
        return control::Failure{nothing_to_read()};
    } else {
        {
            const std::scoped_lock lock(shared().mutex);
            shared().unreadable.clear();
        }
        process::Changed changed = accept(*loaded);
        out.changes = std::move(changed.changes);
        out.notes = std::move(changed.notes);
    }
    out.rule = process::snapshot()->version.rule;
    for (auto *lines : {&out.changes, &out.notes, &out.errors}) shorten(*lines);
    return out;
}

// Reloads once for all waiting requests.
void answer(config::Watch &watch) {
    std::vector<Done> asked;
    {
        const std::scoped_lock lock(shared().mutex);
        asked.swap(shared().asked);
    }
    if (asked.empty()) return;
    std::optional<control::Reply> reply;
    try {
        reply = read_again(watch);
    } catch (...) {
        reply.reset();
    }
    for (const Done &done : asked) done(reply ? *reply : control::Failure{"no host memory"});
    if (!reply) throw std::bad_alloc();  // makes run() start a new watch, which reads the files again
}

void note_unreadable(const config::Diagnostic &trouble) {
    {
        const std::scoped_lock lock(shared().mutex);
        // begin() has already reported an error that existed at the start.
        if (!trouble.message.empty() && shared().wrong.find(trouble.text()) != std::string::npos) return;
        if (trouble.message.empty())
            shared().unreadable.erase(trouble.file);
        else
            shared().unreadable[trouble.file] = trouble.text();
    }
    if (trouble.message.empty()) return;
    log::write(LogLevel::error, trouble.text());
    log_kept_policy();
}

// Puts each new version of the policy file or the ceiling in force. Reports an invalid one and keeps the last valid
// one.
void follow_files() {
    const config::Source &source = in_force::source();
    std::vector<std::string> files{source.ceiling};
    if (!source.file.empty()) files.push_back(source.file);
    const own_thread::Awake awake;
    std::optional<config::Watch> watch(std::in_place, files, note_unreadable);
    // The version read at the start is rarely stale. If it is current, skip the watch's first read: that waits until
    // the files stop changing, and would delay the exit of short programs.
    watch->catch_up();
    const auto now = config::load(source, process::subject);
    bool first = !now || !is_in_force(*now);
    if (first) watch.emplace(files, note_unreadable);  // a new watch reads the files at once
    for (;;) {
        std::optional<own_thread::Asleep> asleep;
        if (!first) asleep.emplace();
        const auto texts = watch->next(wake_descriptor(), is_asked);
        asleep.reset();
        if (!texts) {
            drain();
            answer(*watch);
            continue;
        }
        std::optional<std::string_view> text;
        if (!source.file.empty() && texts->back()) text = *texts->back();
        // Load as at the start, so that CURB_CAP and the ceiling apply to this version too.
        const auto loaded = config::load(source, process::subject, text);
        if (loaded)
            accept(*loaded);
        else if (config::is_for_want_of_memory(loaded.error()))
            throw std::bad_alloc();
        else if (!first || !process::snapshot()->unusable)  // begin() has reported the first error
            refuse(loaded.error());
        first = false;
    }
}

void run() {
    for (;;) {
        try {
            follow_files();
        } catch (...) {
            sleep_ms(500);  // out of host memory: a new watch will read the files again
        }
    }
}

// True if the machine has a ceiling, or its folder exists, so that it may get one. It applies without a policy too.
bool may_have_ceiling() {
    const std::string &file = in_force::source().ceiling;
    return access(file.substr(0, file.rfind('/')).c_str(), F_OK) == 0;
}

}  // namespace

void start() noexcept try {
    if (in_force::source().file.empty() && !may_have_ceiling()) return;
    make_wakers();
    shared().runs = true;
    if (!own_thread::start(run, "curb-policy")) shared().runs = false;
} catch (...) {
    log::write(LogLevel::error, "out of host memory: edits of the policy will have no effect");
}

bool reload(std::function<void(const control::Reply &)> done) {
    {
        const std::scoped_lock lock(shared().mutex);
        if (!shared().runs) return false;
        shared().asked.push_back(std::move(done));
    }
    wake();
    return true;
}

std::string nothing_to_read() {
    const std::string pid = std::to_string(getpid());
    return "process " + pid +
           " has no policy file, nor has this machine a ceiling: there is nothing to read again; curb cap " + pid +
           " SIZE caps it as it runs, and curb run --policy FILE starts a program with a file";
}

void note_unusable(const config::Diagnostics &why) noexcept try { note_errors(why); } catch (...) {
    // Out of host memory: the error is only in the log.
}

std::string fault() {
    const std::scoped_lock lock(shared().mutex);
    if (!shared().wrong.empty() || shared().unreadable.empty()) return shared().wrong;
    return shared().unreadable.begin()->second;
}

}  // namespace curb::shim::policy_watcher
