// Runs build/bin/curb, for tests of the command line. It preloads the C library, which changes nothing: these tests are
// about how a program starts, not about libcurb.so.
#pragma once

#include "start.hpp"

inline Outcome curb(const Words &words, Environment environment = {}) {
    environment.emplace("CURB_LIBRARY", harmless_library());
    return start({joined({tested::kCurb}, words), environment});
}

// A command that leaves a file if it is started.
class Witness {
  public:
    [[nodiscard]] Words command() const { return {"--", "touch", path()}; }
    [[nodiscard]] bool started() const { return fs::exists(path()); }

  private:
    [[nodiscard]] std::string path() const { return (dir_ / "started").string(); }
    TempDir dir_;
};
