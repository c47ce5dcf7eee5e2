// Asking capped processes from outside, each by the socket that it keeps in its user's runtime directory.
#pragma once

#include <chrono>
#include <vector>

#include "control/messages.hpp"

namespace curb::control {

// The process's answer. Failure: there is no such process, it is not under curb, it belongs to another user, it did not
// answer for as long as `patience`, or it says so itself. Throws std::bad_alloc only.
Reply ask(int pid, const Request &request, std::chrono::milliseconds patience);

// The processes that can be asked: those of this user, for root those of all; dead ones' sockets are passed over.
std::vector<int> processes();

}  // namespace curb::control
