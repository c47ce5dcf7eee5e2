#include "policy_watcher.hpp"

#include <unistd.h>

#include <atomic>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "config/watch.hpp"
#include "leaked.hpp"
#include "log.hpp"
#include "own_socket.hpp"
#include "own_thread.hpp"
#include "process.hpp"
#include "shortened.hpp"

namespace curb::shim::policy_watcher {
namespace {

using policy::LogLevel;
using Done = std::function<void(const control::Reply &)>;

// What other threads ask and are told. Leaked: they may until the process is gone.
struct Shared {
    std::mutex mutex;
    bool runs = false;
    std::vector<Done> asked;                        // for the files to be read again
    std::string wrong;                              // with the newest texts
    std::map<std::string, std::string> unreadable;  // by file
};
Shared &shared() noexcept { return leaked<Shared>(); }

// The thread sleeps on inotify, which nobody can post, so it is woken by a pair of sockets. Without them, if the
// program closes them, it looks every Watch::kPoll whether it was asked something. Never closed by us: another thread
// may be about to use them.
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

// What there is to wait on; -1: nothing any more.
int waiting_on() noexcept {
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

void note_wrong(const config::Diagnostics &diagnostics) {
    constexpr std::size_t kMost = 2000;  // a status holds it, and is asked for often
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

void say_what_stays() {
    log::write(LogLevel::error, process::snapshot()->unusable ? "still no usable policy: allocations stay refused"
                                                              : "the last good policy stays in force");
}

void refuse(const config::Diagnostics &why) {
    note_wrong(why);
    for (const auto &diagnostic : why) log::write(LogLevel::error, diagnostic.text());
    say_what_stays();
}

bool is_in_force(const config::Loaded &loaded) {
    const auto in_use = process::snapshot();
    const Version &now = in_use->version;
    return loaded.policy == now.policy && loaded.rule == now.rule && loaded.ceiling == now.ceiling && !now.unusable;
}

// Puts what was read in force, if it is something else. A policy that has not changed changes nothing.
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
    watch.catch_up();  // first: what is written between the two reads is new to the watch
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

// Everybody who has asked by now gets the same answer.
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
    if (!reply) throw std::bad_alloc();  // for the watch what it has seen counts as read
}

void note_unreadable(const config::Diagnostic &trouble) {
    {
        const std::scoped_lock lock(shared().mutex);
        // What was wrong at the start has been reported.
        if (!trouble.message.empty() && shared().wrong.find(trouble.text()) != std::string::npos) return;
        if (trouble.message.empty())
            shared().unreadable.erase(trouble.file);
        else
            shared().unreadable[trouble.file] = trouble.text();
    }
    if (trouble.message.empty()) return;
    log::write(LogLevel::error, trouble.text());
    say_what_stays();
}

// Reads each new text of the policy file or the ceiling and puts it in force; a bad one is reported and the last good
// one stays.
void follow_files() {
    const config::Source &source = in_force::source();
    std::vector<std::string> files{source.ceiling};
    if (!source.file.empty()) files.push_back(source.file);
    const own_thread::Awake awake;
    std::optional<config::Watch> watch(std::in_place, files, note_unreadable);
    // What was read at the start may be old already, though hardly ever: else the first look, which waits until the
    // texts stand still and would keep short programs from ending as long, need not be.
    watch->catch_up();
    const auto now = config::load(source, process::subject);
    bool first = !now || !is_in_force(*now);
    if (first) watch.emplace(files, note_unreadable);  // whose first look always returns
    for (;;) {
        std::optional<own_thread::Asleep> asleep;
        if (!first) asleep.emplace();
        const auto texts = watch->next(waiting_on(), is_asked);
        asleep.reset();
        if (!texts) {
            drain();
            answer(*watch);
            continue;
        }
        std::optional<std::string_view> text;
        if (!source.file.empty() && texts->back()) text = *texts->back();
        // Read as at the start, so that CURB_CAP and the ceiling narrow this version too.
        const auto loaded = config::load(source, process::subject, text);
        if (loaded)
            accept(*loaded);
        else if (config::is_for_want_of_memory(loaded.error()))
            throw std::bad_alloc();
        else if (!first || !process::snapshot()->unusable)  // what was wrong at the start has been reported
            refuse(loaded.error());
        first = false;
    }
}

void run() {
    for (;;) {
        try {
            follow_files();
        } catch (...) {
            // Out of host memory: what could not be read or put in force is new to the next watch.
            constexpr timespec kPause{0, 500'000'000};
            nanosleep(&kPause, nullptr);
        }
    }
}

// Without a policy of its own a process is held by the ceiling alone, if the machine has one or may get one.
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
    log::write(LogLevel::error, "out of host memory: edits of the policy are not followed");
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

void cannot_be_used(const config::Diagnostics &why) noexcept try { note_wrong(why); } catch (...) {
    // Out of host memory: the log says it.
}

std::string fault() {
    const std::scoped_lock lock(shared().mutex);
    if (!shared().wrong.empty() || shared().unreadable.empty()) return shared().wrong;
    return shared().unreadable.begin()->second;
}

}  // namespace curb::shim::policy_watcher
