#include "runtime/policy_watcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "base/shortened.hpp"
#include "base/waiting.hpp"
#include "config/watch.hpp"
#include "host/log.hpp"
#include "runtime/runtime.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::policy_watcher {
namespace {

using policy::LogLevel;

struct Known {
    std::string wrong;                              // of the newest version
    std::map<std::string, std::string> unreadable;  // by file, now
    std::string ceiling;                            // the last good text
};
// Never destroyed: other threads may read it until the process ends.
Guarded<Known> &known() noexcept { return leaked<Guarded<Known>>(); }

// Returns true if these are others than before.
bool note_errors(const config::Diagnostics &diagnostics) {
    constexpr std::size_t kMost = 2000;  // it is part of each status, which clients poll
    std::string text;
    std::size_t written = 0;
    for (const auto &one : diagnostics) {
        if (written != 0 && text.size() > kMost) break;
        text += (written++ == 0 ? "" : "; ") + one.text();
    }
    if (written < diagnostics.size()) text += "; and " + std::to_string(diagnostics.size() - written) + " more";
    text = shortened(std::move(text), 2 * kMost);
    return known().locked([&](Known &now) {
        now.wrong.swap(text);
        return now.wrong != text;
    });
}

void log_kept_policy() {
    log::write(LogLevel::error, in_force::snapshot()->unusable ? "still no usable policy: allocations stay refused"
                                                               : "the last good policy stays in force");
}

// `again`: it has been refused already.
void refuse(const config::Diagnostics &why, bool again) {
    if (!note_errors(why) && again) return;
    for (const auto &diagnostic : why) log::write(LogLevel::error, diagnostic.text());
    log_kept_policy();
}

bool is_in_force(const config::Loaded &loaded) {
    const auto in_use = in_force::snapshot();
    const Version &now = in_use->version;
    return loaded.policy == now.policy && loaded.rule == now.rule && loaded.ceiling == now.ceiling && !now.unusable;
}

// Puts a policy in force unless it is in force already.
void accept(const config::Loaded &loaded) {
    known().locked([&](Known &now) {
        now.wrong.clear();
        now.ceiling = loaded.ceiling_text;
    });
    if (!is_in_force(loaded)) runtime::enforce(loaded);
}

void note_unreadable(const config::Diagnostic &trouble) {
    const bool is_new = known().locked([&](Known &now) {
        now.unreadable.erase(trouble.file);
        // begin() has already reported an error that existed at the start.
        if (trouble.message.empty() || now.wrong.find(trouble.text()) != std::string::npos) return false;
        now.unreadable[trouble.file] = trouble.text();
        return true;
    });
    if (!is_new) return;
    log::write(LogLevel::error, trouble.text());
    log_kept_policy();
}

// Loads as at the start, so that CURB_CAP and the ceiling apply to this version too. A ceiling that has been in force
// stays when its file is gone.
policy::Result<config::Loaded, config::Diagnostics> load(const config::Source &source,
                                                         std::optional<std::string_view> text = std::nullopt) {
    const std::string ceiling = known().locked([](const Known &now) { return now.ceiling; });
    return config::load(source, runtime::subject, text, ceiling);
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
    const auto now = load(source);
    bool first = !now || !is_in_force(*now);
    if (first) watch.emplace(files, note_unreadable);  // a new watch reads the files at once
    std::optional<config::Watch::Texts> texts;
    // The ceiling could not be read, for its mode or owner, or is gone. It may come back without a new text.
    bool retries = false;
    for (;;) {
        std::optional<own_thread::Asleep> asleep;
        if (!first) asleep.emplace();
        auto fresh = watch->next();
        asleep.reset();
        const bool again = !fresh;
        if (again && !retries) continue;
        if (fresh) texts = std::move(fresh);
        std::optional<std::string_view> text;
        if (!source.file.empty() && texts->back()) text = *texts->back();
        const auto loaded = load(source, text);
        const auto is_of_ceiling = [&](const auto &one) { return one.unread && one.file == source.ceiling; };
        retries =
            loaded ? loaded->is_ceiling_gone : std::any_of(loaded.error().begin(), loaded.error().end(), is_of_ceiling);
        if (loaded)
            accept(*loaded);
        else if (config::is_for_want_of_memory(loaded.error()))
            throw std::bad_alloc();
        else if (!first || !in_force::snapshot()->unusable)  // begin() has reported the first error
            refuse(loaded.error(), again);
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
    own_thread::start(run, "curb-policy");
} catch (...) {
    log::write(LogLevel::error, "out of host memory: edits of the policy will have no effect");
}

void note_first(const policy::Result<config::Loaded, config::Diagnostics> &loaded) noexcept try {
    if (!loaded) note_errors(loaded.error());
    known().locked([&](Known &now) { now.ceiling = loaded ? loaded->ceiling_text : std::string(); });
} catch (...) {
    // Out of host memory: the error is only in the log, and a ceiling goes with its file.
}

std::string fault() {
    return known().locked(
        [](const Known &now) { return now.unreadable.empty() ? now.wrong : now.unreadable.begin()->second; });
}

}  // namespace curb::shim::policy_watcher
