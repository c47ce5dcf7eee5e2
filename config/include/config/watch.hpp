// Notices that one of several files has a new text, however it was written: in place, by rename, through a symlink
// anywhere on its path, deleted and made again, on a file system without inotify, in a directory that comes later.
//
// Inotify only makes it prompt (the directories of the paths and of their targets are watched, since editors and config
// maps replace files by rename); the truth is the texts themselves, looked at whenever inotify speaks and every kPoll.
// Used by one thread at a time.
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
    // One for each path, in their order; none: the file was never there or never readable.
    using Texts = std::vector<std::optional<std::string>>;

    static constexpr std::chrono::milliseconds kPoll{400};
    // After a change is noticed the texts have to stand still for so long, so that a half-written file is not taken.
    static constexpr std::chrono::milliseconds kSettle{50};
    // A file that goes on changing keeps back the others' new texts for so long at the most: the machine's ceiling must
    // not wait for a user's file.
    static constexpr std::chrono::milliseconds kPatience{300};

    // Is told of a file that is there and cannot be read (too large, no permission, a directory), once until that
    // changes; then once more without a message.
    using Unreadable = std::function<void(const Diagnostic &)>;

    // Nothing is known yet: what is there counts as new. Relative paths follow the working directory. May throw
    // std::bad_alloc.
    explicit Watch(std::vector<std::string> paths, Unreadable unreadable = {});
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;

    // Waits until at least one file's text differs from the last one returned and all have settled, or until `stop_fd`
    // (-1: no such) is readable, or `stopped`, which is asked at least every kPoll, says so. Returns the latest settled
    // text of each file; none: the wait was stopped. A file that goes missing, or can no longer be read, is no change:
    // its last text stays.
    std::optional<Texts> next(int stop_fd, const std::function<bool()> &stopped = {});

    // What the files say now counts as returned, settled or not: the caller reads them next. A text that is newer than
    // this look is returned by next() all the same.
    void catch_up();

  private:
    void arm();
    [[nodiscard]] Texts read();
    [[nodiscard]] std::optional<Texts> without_restless(const Texts &before, Texts now) const;
    std::optional<Texts> settle(int stop_fd, const std::function<bool()> &stopped);
    void tell_of_unreadable();

    std::vector<std::string> paths_;
    Unreadable unreadable_;
    // Of each file why it could not be read: at the last look, at the one before, and as told. Twice, since a file that
    // is being replaced may be anything for a moment. Empty message: it could, or is not there.
    std::vector<Diagnostic> trouble_, trouble_before_, told_;
    Texts texts_;               // as last returned
    std::vector<int> watched_;  // the directories of the paths and of their targets
    int inotify_;               // -1: polling alone
};

}  // namespace curb::config
