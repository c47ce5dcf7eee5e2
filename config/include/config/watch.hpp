// Notices that a policy file has a new text, however it was written: in place, by rename, through a symlink anywhere on
// its path, deleted and made again, on a file system without inotify.
//
// Inotify only makes it prompt (the directories of the path and of its target are watched, since editors and config
// maps replace files by rename); the truth is the text itself, looked at whenever inotify speaks and every kPoll.
// Used by one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>

namespace curb::config {

class Watch {
  public:
    static constexpr std::chrono::milliseconds kPoll{400};
    // After a change is noticed the text has to stand still for so long, so that a half-written file is not taken.
    static constexpr std::chrono::milliseconds kSettle{50};

    // `known_text` is what the caller already holds, so that a change between its reading and this call is not missed.
    Watch(std::string path, std::string known_text);
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;

    // Waits until the file's text differs from the last one returned (or known) and has settled, or until `stop_fd`
    // is readable. Returns the new text; none: stop_fd was readable. A missing or unreadable file is not a change.
    std::optional<std::string> next(int stop_fd);

  private:
    void arm();
    std::optional<std::string> look(int stop_fd);

    std::string path_;
    std::string text_;
    int inotify_ = -1;                    // -1: polling alone
    std::array<int, 2> watched_{-1, -1};  // the directories of the path and of its target
};

}  // namespace curb::config
