// Asks capped processes from outside, each by the socket in its user's runtime directory.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "control/messages.hpp"

namespace curb::control {

// As patience: waits as long as the process lives.
inline constexpr std::chrono::milliseconds kForEver = std::chrono::milliseconds::max();

// Returns the process's answer. Returns a Failure if there is no such process, if it is not under curb or belongs to
// another user, or if it ended or did not answer within `patience`. Throws std::bad_alloc only. Thread-safe while no
// thread changes the environment.
Reply ask(int pid, const Request &request, std::chrono::milliseconds patience);

// The answer of one of several processes.
struct Answer {
    int pid = 0;
    Reply reply;
};
struct Question {
    Request request;
    std::chrono::milliseconds patience;
};
// Asks these processes at the same time, in this thread: each the questions one after the other, until one fails. Calls
// `answered` with the last answer of each process when it has come. Failures are those of ask().
void ask_each(const std::vector<int> &pids, const std::vector<Question> &questions,
              const std::function<void(Answer)> &answered);
// Finds the processes of processes(), which takes some 10 us for each process of the machine and for each socket, and
// asks them at the same time. Returns when each has answered or ended, or after `patience`. Answers are ordered by pid.
// A process that did not answer has a Failure with the reason: it is stopped or busy, it ended, its answer cannot be
// read, or its socket in this user's folder is another user's.
std::vector<Answer> ask_all(const Request &request, std::chrono::milliseconds patience);

// Returns the processes that can be asked, ordered by pid: those of this user; for root, those of all users. Deletes
// the sockets of dead processes on the way.
std::vector<int> processes();

}  // namespace curb::control
