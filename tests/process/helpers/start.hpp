// Starts a program with an environment, input and directory, and returns its exit status and output.
#pragma once

#include <array>
#include <sstream>
#include <stdexcept>

#include "running.hpp"
#include "temp_dir.hpp"

// Returns the path of a shared library that harms no program: libc.
inline std::string harmless_library() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t path = line.find('/');
        if (path != std::string::npos && line.find("/libc.so.6") != std::string::npos) return line.substr(path);
    }
    throw std::runtime_error("no libc.so.6 in /proc/self/maps");
}

struct Start {
    Words words;
    Environment environment{{"CURB_LIBRARY", harmless_library()}};
    std::string input{};
    std::string directory{};
    std::function<void()> prepare{};      // in the child, before exec
    std::chrono::seconds patience = 30s;  // how long end() waits for more output or the end
};

// A started program. Its output must fit into a pipe until end() reads it.
class Begun {
  public:
    explicit Begun(Start start) : patience_(start.patience) {
        std::array<int, 2> in{};
        std::array<int, 2> out{};
        std::array<int, 2> err{};
        for (auto *ends : {&in, &out, &err}) REQUIRE(::pipe2(ends->data(), O_CLOEXEC) == 0);
        outcome_.pid = started(std::move(start.words), start.environment, in[0], out[1], err[1], [&start] {
            if (!start.directory.empty() && ::chdir(start.directory.c_str()) != 0) ::_exit(99);
            if (start.prepare) start.prepare();
        });
        for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
        REQUIRE(::write(in[1], start.input.data(), start.input.size()) == static_cast<ssize_t>(start.input.size()));
        ::close(in[1]);
        open_ = {{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
    }

    // Waits for its end. Returns its exit status and output.
    Outcome end() {
        while (open_[0].fd >= 0 || open_[1].fd >= 0) {
            REQUIRE(::poll(open_.data(), open_.size(), static_cast<int>(patience_ / 1ms)) > 0);
            for (pollfd &pipe : open_) {
                if (pipe.fd < 0 || pipe.revents == 0) continue;
                std::array<char, 4096> block{};
                const ssize_t got = ::read(pipe.fd, block.data(), block.size());
                (&pipe == &open_[0] ? outcome_.out : outcome_.err)
                    .append(block.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
                if (got > 0) continue;
                ::close(pipe.fd);
                pipe.fd = -1;
            }
        }
        int status = 0;
        REQUIRE(::waitpid(outcome_.pid, &status, 0) == outcome_.pid);
        outcome_.status = exit_status(status);
        return outcome_;
    }

  private:
    Outcome outcome_;
    std::array<pollfd, 2> open_{};
    std::chrono::seconds patience_;
};

inline Outcome start(Start start) { return Begun(std::move(start)).end(); }

inline Words lines(const std::string &text) {
    Words out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

// Checks that a program failed, and what it wrote to stderr.
template <class Matcher>
void fails(const Outcome &outcome, const Matcher &said, int status = 1) {
    INFO(outcome.out << outcome.err);
    CHECK(outcome.status == status);
    CHECK_THAT(outcome.err, said);
}

inline std::string last_line(const std::string &text) { return lines(text).empty() ? "" : lines(text).back(); }

inline Words joined(Words words, const Words &more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}
