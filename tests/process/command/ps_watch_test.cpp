// The output of commands, `curb ps` above all: on terminals of some width, to pipes whose reader has gone, repeated
// until Ctrl-C.
#include <cstring>

#include "simulated.hpp"
#include "terminal.hpp"

namespace {

// curb on a terminal of so many columns and lines.
class OnTerminal : public Terminal {
  public:
    OnTerminal(const Machine &machine, const Words &words, unsigned short columns, unsigned short height = 24,
               const Environment &more = {}) {
        resize(columns, height);
        curb_.emplace(joined({tested::kCurb}, words), with(with(machine.environment(), {{"TERM", "xterm"}}), more),
                      [end = name()] {
                          ::setsid();  // so that the terminal becomes its controlling terminal
                          const int fd = ::open(end.c_str(), O_RDWR);
                          for (const int standard : {0, 1, 2}) ::dup2(fd, standard);
                      });
    }
    int ends() { return curb_->end(); }

  private:
    std::optional<Running> curb_;
};

Outcome in_shell(const Machine &machine, const std::string &script) {
    return start({{"/bin/sh", "-c", script}, with(machine.environment(), {{"CURB", tested::kCurb}})});
}

constexpr const char *kEnter = "\x1b[?1049h", *kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";

}  // namespace

TEST_CASE("on a terminal curb ps fits the width, and has colours unless NO_COLOR or TERM forbids them") {
    const Machine machine;
    Program program(machine, {});
    const auto shown = [&](unsigned short columns, const Environment &more) {
        OnTerminal curb(machine, {"ps"}, columns, 24, more);
        const std::string text = curb.all();
        CHECK(curb.ends() == 0);
        return text;
    };
    CHECK_THAT(shown(120, {}), contains("RELEASED") && contains("\x1b[1mGPU 0") && contains("\x1b[2m"));
    CHECK_THAT(shown(40, {}), !contains("RELEASED") && contains("COMMAND"));
    CHECK_THAT(shown(120, {{"NO_COLOR", "1"}}), !contains("\x1b["));
    CHECK_THAT(shown(120, {{"TERM", "dumb"}}), !contains("\x1b["));
    CHECK_THAT(shown(120, {{"NO_COLOR", "1"}, {"FORCE_COLOR", "1"}}), contains("\x1b[1mGPU 0"));
    CHECK_THAT(machine.curb({"ps"}, {{"FORCE_COLOR", "1"}}).out, contains("\x1b[1mGPU 0"));
    CHECK_THAT(machine.curb({"ps", "--color", "always"}, {{"NO_COLOR", "1"}}).out, contains("\x1b[1mGPU 0"));
    CHECK_THAT(machine.curb({"--color=never", "ps"}, {{"FORCE_COLOR", "1"}}).out, !contains("\x1b["));
    const Outcome piped = machine.curb({"ps"});
    CHECK_THAT(piped.out, contains("RELEASED") && !contains("\x1b["));
    CHECK_THAT(machine.curb({"ps"}, {{"COLUMNS", "40"}}).out, !contains("RELEASED"));
}

TEST_CASE("--watch draws in place, and Ctrl-C leaves the terminal as it was") {
    const Machine machine;
    Program program(machine, {});
    OnTerminal curb(machine, {"ps", "--watch", "0.1"}, 100);
    curb.until("GPU 0");
    curb.until("GPU 0");
    curb.resize(40);
    curb.until("\x1b[H");
    curb.until("\x1b[J");
    curb.type("\x03");
    const std::string said = curb.all();
    CHECK(curb.ends() == 0);
    CHECK(said.starts_with(kEnter));
    CHECK(count(said, kEnter) == 1);
    CHECK(count(said, kLeave) == 1);
    CHECK(said.find(kLeave) + std::strlen(kLeave) == said.size());
    CHECK_THAT(said, contains("curb ps at 20"));
}

TEST_CASE("another signal also makes --watch restore the terminal, and kills it", "[kernel]") {
    const Machine machine;
    OnTerminal curb(machine, {"ps", "--watch", "60"}, 100);
    curb.until("\x1b[J");
    curb.type("\x1c");  // SIGQUIT
    CHECK_THAT(curb.all(), contains(kLeave));
    CHECK(curb.ends() == 128 + SIGQUIT);
}

TEST_CASE("--watch shows as many lines as fit, and says how many more there are") {
    const Machine machine(Environment{{"CURB_SIM_GPUS", "16"}});
    OnTerminal curb(machine, {"ps", "--watch", "60"}, 100, 8);
    const std::string said = curb.until("more lines");
    CHECK_THAT(said, contains("GPU 0") && !contains("GPU 15") && contains("\x1b[Jand "));
    CHECK(count(said, "\x1b[2K") == 7);
}

TEST_CASE("--watch needs no interval, and does not take a pid for one") {
    const Machine machine;
    OnTerminal curb(machine, {"ps", "--watch"}, 100);
    curb.until("GPU 0");
    curb.type("\x03");
    CHECK(curb.ends() == 0);
    CHECK_THAT(machine.curb({"ps", "--watch", "4711"}).err, contains("to watch a process: curb ps 4711 --watch"));
}

TEST_CASE("a terminal that is not UTF-8 gets nothing but ASCII") {
    const Machine machine;
    const Program program(machine, {});
    const auto shown = [&](const char *all, const char *lang) {
        const Environment more{{"LC_ALL", all}, {"LANG", lang}, {"NO_COLOR", "1"}};
        return OnTerminal(machine, {"ps"}, 40, 24, more).all();
    };
    CHECK_THAT(shown("C", "C.UTF-8"), contains(" 518 MiB ") && contains("+\r\n") && !contains("…"));
    CHECK_THAT(shown("C.UTF-8", "C"), contains(" 518 MiB ") && contains("…\r\n"));
}

TEST_CASE("--watch without a terminal prints again with the time, or one JSON document a line, until Ctrl-C") {
    const Machine machine;
    Running curb({tested::kCurb, "ps", "--watch", "0.1"}, machine.environment());
    CHECK(curb.says_until("curb ps at 20").empty());
    // Root's output may have processes of other tests, and then a line of column heads above the GPU.
    for (int i = 0; i < 3; ++i) CHECK_THAT("\n" + curb.says_until("curb ps at 20"), contains("\nGPU 0"));
    curb.kill(SIGINT);
    CHECK(curb.end() == 0);
    Running json({tested::kCurb, "ps", "--json", "--watch", "0.1"}, machine.environment());
    for (int i = 0; i < 3; ++i) {
        const std::string line = json.says();
        CHECK(line.starts_with("{\"time\":"));
        CHECK(line.ends_with("\"errors\":[]}"));
    }
}

TEST_CASE("--watch without a terminal prints at its times, however often a window is resized") {
    const Machine machine;
    const auto begin = std::chrono::steady_clock::now();
    Running curb({tested::kCurb, "ps", "--watch", "2"}, machine.environment());
    curb.says_until("curb ps at 20");
    for (int i = 0; i < 5; ++i) {  // one at a time: it is waiting again after each
        curb.kill(SIGWINCH);
        std::this_thread::sleep_for(50ms);
    }
    curb.says_until("curb ps at 20");
    CHECK(std::chrono::steady_clock::now() - begin >= 2s);
    curb.kill(SIGINT);
    CHECK(curb.end() == 0);
}

TEST_CASE("--watch of a process ends with it") {
    const Machine machine;
    Program program(machine);
    REQUIRE(within(20s, [&] { return machine.curb({"ps", program.id()}).status == 0; }));
    int err[2];
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    Running curb({tested::kCurb, "ps", program.id(), "--watch", "0.1"}, machine.environment(), {}, err[1]);
    ::close(err[1]);
    curb.says_until("process " + program.id());
    CHECK(program.finish() == 0);
    CHECK(curb.end() == 1);
    char text[256] = {};
    CHECK(::read(err[0], text, sizeof text - 1) > 0);
    ::close(err[0]);
    CHECK(text == "curb: there is no process " + program.id() + "\n");
}

TEST_CASE("a command ends without an error when its reader stops reading") {
    const Machine machine(Environment{{"CURB_SIM_GPUS", "16"}});
    const std::string trace = machine.write("empty.trace.json", "[\n"), pipe = (machine.folder() / "pipe").string();
    const std::string gone = "rm -f " + pipe + "; mkfifo " + pipe + "; exec 3<>" + pipe + " 4>" + pipe + " 3<&-; ";
    for (const char *how : {"", "trap '' PIPE; "})
        for (const std::string &command : {std::string("ps"), std::string("ps --json"), std::string("ps --watch 0.1"),
                                           std::string("metrics"), "report " + trace}) {
            CAPTURE(how, command);
            const Outcome outcome = in_shell(machine, how + gone + "timeout 20 $CURB " + command + " >&4; echo $? >&2");
            CHECK_THAT(outcome.err, !contains("124") && !contains("be written"));
        }
}

TEST_CASE("every command fails if its answer cannot be written") {
    const Machine machine;
    Program program(machine);
    const std::string policy = machine.write("job.json", R"({ "version": 1, "gpu": { "*": { "cap": "8GiB" } } })");
    const std::string trace = machine.write("empty.trace.json", "[\n");
    for (const std::string &command :
         {std::string("ps"), "policy check " + policy, "policy show " + policy, "policy show --json " + policy,
          "policy explain " + policy + " -- true", std::string("policy schema"), std::string("--help"),
          std::string("policy --help"), std::string("--version"), std::string("run --dry-run -- true"),
          "cap " + program.id() + " 8GiB", "release " + program.id(), "doctor " + program.id(), "report " + trace,
          "replay --cap 8GiB " + trace}) {
        CAPTURE(command);
        fails(in_shell(machine, "$CURB " + command + " > /dev/full"),
              contains("could not be written to standard output: No space left on device"), 125);
        fails(in_shell(machine, "$CURB " + command + " >&-"),
              contains("could not be written to standard output: Bad file descriptor"), 125);
    }
    const Outcome metrics = in_shell(machine, "$CURB metrics > /dev/full");
    CHECK(metrics.status == 1);
    CHECK(metrics.err == "curb: standard output cannot be written: No space left on device\n");
}

TEST_CASE("curb run leaves closed standard streams closed for the program", "[own-runtime]") {
    const Machine machine;
    const std::string look =
        "$CURB run -- /bin/sh -c 'for f in 0 1 2; do [ -e /proc/self/fd/$f ] && exit 1; done; exit 0'";
    CHECK(in_shell(machine, "exec <&- >&- 2>&-; " + look).status == 0);
}
