// One process that is asked, from the first attempt to connect to its last answer, and the loop that asks many: in one
// thread, so that no process can block the others. Private to control/.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control/client.hpp"
#include "control/descriptor.hpp"
#include "exchange.hpp"

namespace curb::control {

// One attempt to connect. Without a connection and a fault another attempt may succeed: see `error`.
struct Attempt {
    Descriptor connection{};
    int error = 0;  // EAGAIN: others keep the socket busy; EMFILE, ENFILE: this process has too many open files
    std::optional<std::string> fault{};  // why no attempt will succeed
    // The fault is one of a living process. It may be about to end: then its socket has gone first.
    bool unless_ended = false;
};

// True for the errors of a process that has too many open files. Answers that arrive free some.
bool too_many_open(int error);

// A question as it is sent.
struct Line {
    std::string text;  // with its newline
    std::chrono::milliseconds patience;
};
std::vector<Line> lines_of(const std::vector<Question> &questions);

class Asked {
  public:
    // `connect` makes one attempt; `first` is the result of the first one. The questions must live as long as this.
    Asked(int pid, Attempt first, std::function<Attempt()> connect, const std::vector<Line> &questions);

    [[nodiscard]] bool done() const { return reply_.has_value(); }
    // Returns nullopt if there is nothing to poll for now. Then call check() again after kAgain.
    [[nodiscard]] std::optional<pollfd> poll_for() const;
    // Milliseconds until give_up_if_late() gives up. -1: never.
    [[nodiscard]] int left() const { return deadline_.left(); }
    void go_on();
    // Checks for changes that no descriptor shows.
    void check();
    void give_up_if_late();
    // Only once it is done.
    Answer take() { return {pid_, *std::move(reply_)}; }

  private:
    void take_up(Attempt attempt);
    void fail(std::string message) { finish(Failure{std::move(message)}); }
    void finish(Reply reply);

    int pid_;
    std::function<Attempt()> connect_;
    const std::vector<Line> *questions_;
    std::size_t at_ = 0;  // the question
    Deadline deadline_;
    int error_ = 0;  // of the last attempt
    std::optional<Exchange> exchange_;
    std::optional<Deadline> closed_;    // there is no connection any more; the process has until then to end
    std::optional<std::string> fault_;  // why, if it lives on
    std::optional<Reply> reply_;
};

// Calls `answered` with the answer of each process when it has come.
void ask_each(std::vector<Asked> processes, const std::function<void(Answer)> &answered);

}  // namespace curb::control
