// Notices that one of several files has a new text, however it was written: in place, by rename, through a symbolic
// link anywhere on its path, deleted and made again, on a file system without inotify, in a directory that is made
// later.
//
// It reads the texts after each inotify event and every kPoll, and compares them: inotify only makes it prompt. It
// watches the directories of the paths and of their targets, since editors and config maps replace files by rename. Not
// thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/load.hpp"

namespace curb::config {

class Watch {
  public:
    // One text for each path. nullopt: the file was never readable.
    using Texts = std::vector<std::optional<std::string>>;

    static constexpr std::chrono::milliseconds kPoll{400};
    // A text counts once it has not changed for this time: a file may be half written.
    static constexpr std::chrono::milliseconds kSettle{50};
    // A file that keeps changing delays the others' new texts by at most this time: the machine's ceiling must not wait
    // for a user's file.
    static constexpr std::chrono::milliseconds kPatience{300};

    // Called once for a file that is there and cannot be read (too large, no permission, a directory), and once more,
    // without a message, when it can be read again.
    using Unreadable = std::function<void(const Diagnostic &)>;

    // All texts count as new. Relative paths follow the working directory. May throw std::bad_alloc.
    explicit Watch(std::vector<std::string> paths, Unreadable unreadable = {});
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;

    // Returns the settled texts if one differs from the last returned. A file that is deleted or cannot be read keeps
    // its last text. nullopt if none differs; then it has waited for an event, kPoll at the most. Call it in a loop.
    std::optional<Texts> next();

    // Marks the present texts, settled or not, as returned, because the caller reads the files next. next() then
    // returns newer texts only.
    void catch_up();

  private:
    void arm();
    [[nodiscard]] Texts read();
    [[nodiscard]] std::optional<Texts> without_restless(const Texts &before, Texts now) const;
    std::optional<Texts> settle();
    void report_unreadable();

    std::vector<std::string> paths_;
    Unreadable unreadable_;
    // Why each file could not be read: at the last read, at the one before, and as reported. Both must agree, because a
    // file that is being replaced can be anything for a moment. Empty message: it was read, or is missing.
    std::vector<Diagnostic> trouble_, trouble_before_, reported_;
    Texts texts_;               // last returned
    std::vector<int> watched_;  // the directories of the paths and of their targets
    int inotify_;               // -1: polls only
    bool woken_ = false;        // an event ended the last wait
};

}  // namespace curb::config
