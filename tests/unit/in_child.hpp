// What would change this process for good, done in a child of it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "catch.hpp"

// The wait status of the child, which ends with what `work` returns: 0, if all is well.
inline int in_child(const std::function<int()> &work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}
