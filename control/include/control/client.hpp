// Asking capped processes from outside, each by the socket that it keeps in its user's runtime directory.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "control/messages.hpp"

namespace curb::control {

// As patience: as long as the process lives.
inline constexpr std::chrono::milliseconds kForEver = std::chrono::milliseconds::max();

// The process's answer. Failure: there is no such process, it is not under curb, it belongs to another user, it ended
// or did not answer for as long as `patience`, or it says so itself. Throws std::bad_alloc only. Thread-safe, as long
// as nobody changes the environment.
Reply ask(int pid, const Request &request, std::chrono::milliseconds patience);

// What one of several said.
struct Answer {
    int pid = 0;
    Reply reply;
};
// Asks all processes that processes() would name, at the same time: done when each has answered or ended, or after
// `patience`, whatever they do; to find them takes some 10 us a socket more. In the order of their pids. A Failure says
// of each that has not answered why: stopped, busy, ended meanwhile, an answer that cannot be read; and of one that
// stands in the user's folder but is another user's.
std::vector<Answer> ask_all(const Request &request, std::chrono::milliseconds patience);

// The processes that can be asked, in the order of their pids: those of this user, for root those of all. Sockets of
// dead processes are deleted on the way.
std::vector<int> processes();

}  // namespace curb::control
