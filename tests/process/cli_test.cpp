// build/bin/curb as a process. What it preloads here is the C library, which every program has anyway: this is about
// how a program is started, not about what libcurb.so does in it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <vector>

#include "catch.hpp"
#include "temp_dir.hpp"

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

namespace {

// A shared library that does no harm in any program.
std::string harmless_library() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t path = line.find('/');
        if (path != std::string::npos && line.find("/libc.so.6") != std::string::npos) return line.substr(path);
    }
    throw std::runtime_error("no libc.so.6 in /proc/self/maps");
}

struct Outcome {
    pid_t pid = 0;
    int status = 0;  // exit status, or 128 + signal
    std::string out;
    std::string err;
};

struct Start {
    Words words;
    std::map<std::string, std::string> environment{{"CURB_LIBRARY", harmless_library()}};
    std::string input;
    std::string directory;
    std::function<void()> prepare;  // in the child, before exec
};

Words environment_of(const std::map<std::string, std::string> &wanted) {
    Words out{"PATH=/usr/bin:/bin", "HOME=/nonexistent"};
    for (const auto &[name, value] : wanted) out.emplace_back(name).append("=").append(value);
    return out;
}

std::vector<char *> pointers(Words &words) {
    std::vector<char *> out;
    for (std::string &word : words) out.push_back(word.data());
    out.push_back(nullptr);
    return out;
}

Outcome start(Start start) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    for (auto *ends : {&in, &out, &err}) REQUIRE(::pipe2(ends->data(), O_CLOEXEC) == 0);
    Words environment = environment_of(start.environment);
    const std::vector<char *> argv = pointers(start.words);
    const std::vector<char *> envp = pointers(environment);
    Outcome outcome;
    outcome.pid = ::fork();
    if (outcome.pid == 0) {
        ::dup2(in[0], 0);
        ::dup2(out[1], 1);
        ::dup2(err[1], 2);
        if (!start.directory.empty() && ::chdir(start.directory.c_str()) != 0) ::_exit(99);
        if (start.prepare) start.prepare();
        ::execve(argv.front(), argv.data(), envp.data());
        ::_exit(98);
    }
    for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
    REQUIRE(::write(in[1], start.input.data(), start.input.size()) == static_cast<ssize_t>(start.input.size()));
    ::close(in[1]);
    std::array<pollfd, 2> open{{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
    while (open[0].fd >= 0 || open[1].fd >= 0) {
        REQUIRE(::poll(open.data(), open.size(), 30'000) > 0);
        for (pollfd &pipe : open) {
            if (pipe.fd < 0 || pipe.revents == 0) continue;
            std::array<char, 4096> block{};
            const ssize_t got = ::read(pipe.fd, block.data(), block.size());
            (pipe.fd == out[0] ? outcome.out : outcome.err)
                .append(block.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
            if (got > 0) continue;
            ::close(pipe.fd);
            pipe.fd = -1;
        }
    }
    int status = 0;
    REQUIRE(::waitpid(outcome.pid, &status, 0) == outcome.pid);
    outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return outcome;
}

Outcome curb(Words words, std::map<std::string, std::string> environment = {}) {
    words.insert(words.begin(), CURB_BINARY);
    environment.emplace("CURB_LIBRARY", harmless_library());
    return start({words, environment, {}, {}, {}});
}

Words lines(const std::string &text) {
    Words out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

std::string last_line(const std::string &text) { return lines(text).empty() ? "" : lines(text).back(); }

// A program that would leave a trace if it were started.
class Trace {
  public:
    [[nodiscard]] Words command() const { return {"--", "touch", path()}; }
    [[nodiscard]] bool started() const { return fs::exists(path()); }

  private:
    [[nodiscard]] std::string path() const { return (dir_ / "started").string(); }
    TempDir dir_;
};

Words joined(Words words, const Words &more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

// curb and what belongs to it, installed elsewhere.
class Installed {
  public:
    Installed() {
        fs::create_directories(dir_ / "prefix/bin");
        fs::copy_file(CURB_BINARY, binary());
    }
    [[nodiscard]] std::string prefix() const { return (dir_ / "prefix").string(); }
    [[nodiscard]] std::string binary() const { return prefix() + "/bin/curb"; }
    std::string library(const std::string &name) const {
        const fs::path path = prefix() + "/" + name;
        fs::create_directories(path.parent_path());
        fs::copy_file(harmless_library(), path);
        return path.string();
    }

  private:
    TempDir dir_;
};

}  // namespace

TEST_CASE("The program has the pid of curb") {
    const Outcome outcome = curb({"run", "--cap", "1GiB", "--", "/bin/sh", "-c", "echo $$"});
    CHECK(outcome.out == std::to_string(outcome.pid) + "\n");
    CHECK(outcome.err.empty());
}

TEST_CASE("The program's exit status is curb's") {
    const int status = GENERATE(0, 1, 7, 125, 255);
    CHECK(curb({"run", "--", "sh", "-c", "exit " + std::to_string(status)}).status == status);
}

TEST_CASE("A program that dies of a signal does so under curb") {
    CHECK(curb({"run", "--", "sh", "-c", "kill -TERM $$"}).status == 128 + SIGTERM);
    CHECK(curb({"run", "--", "sh", "-c", "kill -USR1 $$"}).status == 128 + SIGUSR1);
}

TEST_CASE("Arguments and standard input reach the program as they are") {
    CHECK(curb({"run", "--", "printf", "%s|", "--cap", "-x", "a b", "", "*", "--", "$HOME", "\xFF"}).out ==
          "--cap|-x|a b||*|--|$HOME|\xFF|");
    CHECK(start({{CURB_BINARY, "run", "--", "cat"}, {{"CURB_LIBRARY", harmless_library()}}, "text\n", {}, {}}).out ==
          "text\n");
}

TEST_CASE("The program inherits the same signals, descriptors and limits with curb as without") {
    const Words program{"/bin/sh", "-c",
                        "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; ulimit -a; umask; pwd"};
    const auto prepare = [] {
        sigset_t blocked;
        ::sigemptyset(&blocked);
        ::sigaddset(&blocked, SIGUSR2);
        ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
        ::signal(SIGHUP, SIG_IGN);
        ::signal(SIGPIPE, SIG_IGN);
        ::dup2(1, 9);
    };
    Start direct{program, {}, {}, {}, prepare};
    Start under{joined({CURB_BINARY, "run", "--"}, program), {{"CURB_LIBRARY", harmless_library()}}, {}, {}, prepare};
    const Outcome without = start(direct);
    REQUIRE_THAT(without.out, contains("SigIgn") && contains("\n9\n"));
    CHECK(start(under).out == without.out);
}

TEST_CASE("The environment tells the program its policy and the loader our library") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", R"({"version": 1})");
    const Outcome outcome = curb({"run", "--cap", "75%", "--policy", policy, "--", "env"}, {{"OTHER", "kept"}});
    CHECK_THAT(outcome.out,
               contains("CURB_CAP=75%\n") && contains("CURB_POLICY=" + policy + "\n") && contains("OTHER=kept\n"));
    CHECK_THAT(outcome.out, contains("LD_PRELOAD=" + harmless_library() + "\n"));
    CHECK_THAT(outcome.out, !contains("LD_LIBRARY_PATH"));
}

TEST_CASE("Our library comes before those that are preloaded already") {
    const std::string library = harmless_library();
    const Outcome outcome = curb({"run", "--", "env"}, {{"LD_PRELOAD", library + " " + library},
                                                        // A curb that is built with ASan insists on being first.
                                                        {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
    CHECK_THAT(outcome.out, contains("LD_PRELOAD=" + library + ":" + library + " " + library + "\n"));
}

TEST_CASE("A relative policy is named to the program absolutely") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", R"({"version": 1})");
    for (const Words &words : {Words{"--policy", "job.json"}, Words{}}) {
        Start run{
            joined(joined({CURB_BINARY, "run"}, words), {"--", "sh", "-c", "cd /; echo $CURB_POLICY"}), {}, {}, {}, {}};
        run.environment = {{"CURB_LIBRARY", harmless_library()}, {"CURB_POLICY", "job.json"}};
        run.directory = dir.path().string();
        CHECK(start(run).out == policy + "\n");
    }
}

TEST_CASE("A policy that cannot be used is told with all its errors, and the program is not started") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", R"({"version": 2, "gpu": {"*": {"cap": "8Gib"}}})");
    const Trace trace;
    const Outcome option = curb(joined({"run", "--policy", policy}, trace.command()));
    const Outcome variable = curb(joined({"run"}, trace.command()), {{"CURB_POLICY", policy}});
    for (const Outcome &outcome : {option, variable}) {
        CHECK(outcome.status == 125);
        CHECK(lines(outcome.err).size() == 2);
        CHECK_THAT(outcome.err, contains("curb: " + policy + ":1:13: /version: version 2 is not known"));
        CHECK_THAT(outcome.err, contains(policy + ":1:37: /gpu/*/cap: '8Gib' is not a size; did you mean \"8GiB\"?"));
    }
    CHECK_FALSE(trace.started());
}

TEST_CASE("A policy that is not there keeps the program from starting") {
    const Trace trace;
    const Outcome outcome = curb(joined({"run", "--policy", "/no/such.json"}, trace.command()));
    CHECK(outcome.status == 125);
    CHECK_THAT(outcome.err, contains("/no/such.json: there is no such file"));
    CHECK_FALSE(trace.started());
}

TEST_CASE("A cap that is no size keeps the program from starting, and is told where it was written") {
    const Trace trace;
    const Outcome option = curb(joined({"run", "--cap", "8Gib"}, trace.command()));
    CHECK(option.status == 125);
    CHECK(option.err == "curb: --cap: '8Gib' is not a size; did you mean \"8GiB\"?\n");
    const Outcome variable = curb(joined({"run"}, trace.command()), {{"CURB_CAP", "-1"}});
    CHECK(variable.status == 125);
    CHECK(variable.err == "curb: CURB_CAP: -1: sizes are not negative\n");
    for (const char *cap : {"", "-1", "120%"}) {
        INFO(cap);
        CHECK(curb(joined({"run", "--cap", cap}, trace.command())).status == 125);
        CHECK(curb(joined({"run", std::string("--cap=") + cap}, trace.command())).status == 125);
    }
    CHECK(curb(joined({"run", "--policy", ""}, trace.command())).status == 125);
    CHECK_FALSE(trace.started());
}

TEST_CASE("--cap takes the place of a wrong CURB_CAP") {
    CHECK(curb({"run", "--cap", "1GiB", "--", "sh", "-c", "echo $CURB_CAP"}, {{"CURB_CAP", "nonsense"}}).out ==
          "1GiB\n");
}

TEST_CASE("A command that is not there is 127, one that cannot be executed 126") {
    const TempDir dir;
    const std::string plain = dir.write("plain", "text");
    const std::string script = dir.write("script", "#!/no/such/interpreter\n");
    fs::permissions(script, fs::perms::owner_all);
    CHECK(curb({"run", "--", "curb-test-no-such-command"}).status == 127);
    CHECK(curb({"run", "--", (dir / "missing").string()}).status == 127);
    CHECK(curb({"run", "--", ""}).status == 127);
    CHECK(curb({"run", "--", plain}).status == 126);
    CHECK(curb({"run", "--", dir.path().string()}).status == 126);
    CHECK(curb({"run", "--", script}).status == 126);
    CHECK_THAT(curb({"run", "--", script}).err, contains("the interpreter that it names is not there"));
}

TEST_CASE("Without a command there is a usage, and 125") {
    for (const Words &words :
         {Words{"run"}, Words{"run", "--"}, Words{"run", "--cap", "1GiB"}, Words{"run", "--cap=1GiB", "--"}}) {
        const Outcome outcome = curb(words);
        CHECK(outcome.status == 125);
        CHECK_THAT(outcome.err, contains("usage: curb run [--cap SIZE]"));
    }
}

TEST_CASE("Without -- the command begins at the first word that is no option of ours") {
    CHECK(curb({"run", "--cap", "1GiB", "printf", "%s|", "--cap", "-x"}).out == "--cap|-x|");
    CHECK(curb({"run", "--cap=1GiB", "sh", "-c", "exit 3"}).status == 3);
}

TEST_CASE("Where the command begins must be clear") {
    const Trace trace;
    const Outcome outcome = curb(joined({"run", "touch"}, trace.command()));
    CHECK(outcome.status == 125);
    CHECK_THAT(outcome.err, contains("'touch' stands before --") && contains("curb run [OPTIONS] -- COMMAND"));
    CHECK_FALSE(trace.started());
}

TEST_CASE("Options that do not exist or lack their value are 125") {
    const Trace trace;
    CHECK_THAT(curb(joined({"run", "--capp", "1GiB"}, trace.command())).err, contains("--capp"));
    for (const Words &words : {Words{"run", "--capp", "1GiB"}, Words{"run", "--cap"}, Words{"run", "--sim=perhaps"},
                               Words{"rum"}, Words{}}) {
        CHECK(curb(joined(words, trace.command())).status == 125);
    }
    CHECK_FALSE(trace.started());
}

TEST_CASE("A library that the loader's list cannot carry is refused, with the character and the remedy") {
    const TempDir dir;
    const Trace trace;
    const auto name = GENERATE(as<std::string>{}, "with space", "with:colon", "$LIB");
    const std::string library = (dir / name).string();
    fs::copy_file(harmless_library(), library);
    const Outcome outcome = curb(joined({"run"}, trace.command()), {{"CURB_LIBRARY", library}});
    CHECK(outcome.status == 125);
    CHECK_THAT(outcome.err, contains("LD_PRELOAD cannot carry the path '" + library + "'") && contains("install curb"));
    CHECK_FALSE(trace.started());
}

TEST_CASE("A library that is not there or not one keeps the program from starting uncapped") {
    const TempDir dir;
    const Trace trace;
    for (const std::string &library :
         {(dir / "missing.so").string(), dir.write("text.so", "not ELF"), dir.path().string()}) {
        const Outcome outcome = curb(joined({"run"}, trace.command()), {{"CURB_LIBRARY", library}});
        CHECK(outcome.status == 125);
        CHECK_THAT(outcome.err, contains(library) && contains("correct or unset CURB_LIBRARY"));
    }
    CHECK_FALSE(trace.started());
}

TEST_CASE("The library is found beside curb, in each of the places where it is installed") {
    const Installed installed;
    const auto place =
        GENERATE(as<std::string>{}, "lib/libcurb.so", "lib/curb/libcurb.so", "lib/x86_64-linux-gnu/curb/libcurb.so");
    const std::string library = installed.library(place);
    const Outcome outcome = start({{installed.binary(), "run", "--dry-run", "--", "true"}, {}, {}, {}, {}});
    CHECK(lines(outcome.out) == Words{"LD_PRELOAD=" + library, "true"});
}

TEST_CASE("Where the library was looked for is told") {
    const Installed installed;
    const Outcome outcome = start({{installed.binary(), "run", "--", "true"}, {}, {}, {}, {}});
    CHECK(outcome.status == 125);
    CHECK_THAT(outcome.err, contains("there is no libcurb.so") && contains(installed.prefix() + "/lib/libcurb.so") &&
                                contains(installed.prefix() + "/lib/curb/libcurb.so") && contains("set CURB_LIBRARY"));
}

TEST_CASE("--sim puts the simulated driver before what the loader searches, and says so") {
    const Installed installed;
    const auto place = GENERATE(as<std::string>{}, "sim", "lib/curb/sim");
    installed.library(place + "/libcuda.so.1");
    const std::string directory = installed.prefix() + "/" + place;
    Start run{{installed.binary(), "run", "--sim", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"}, {}, {}, {}, {}};
    run.environment = {{"CURB_LIBRARY", harmless_library()}};
    const Outcome alone = start(run);
    CHECK(alone.out == directory + "\n");
    CHECK(lines(alone.err).size() == 1);
    CHECK_THAT(alone.err, contains("a simulated driver is used"));
    run.environment["LD_LIBRARY_PATH"] = "/usr/lib";
    CHECK(start(run).out == directory + ":/usr/lib\n");
}

TEST_CASE("--sim without the simulated driver does not touch a real one") {
    const Installed installed;
    const Trace trace;
    Start run{joined({installed.binary(), "run", "--sim"}, trace.command()), {}, {}, {}, {}};
    run.environment = {{"CURB_LIBRARY", harmless_library()}};
    const Outcome outcome = start(run);
    CHECK(outcome.status == 125);
    CHECK_THAT(outcome.err, contains("there is no simulated driver"));
    CHECK_FALSE(trace.started());
}

TEST_CASE("--dry-run shows what would be set and run, and runs nothing") {
    const TempDir dir;
    const std::string policy = dir.write("my job.json", R"({"version": 1})");
    const Outcome outcome =
        curb({"run", "--dry-run", "--cap", "8GiB", "--policy", policy, "--", "touch", "it's", policy + "x"});
    CHECK(outcome.status == 0);
    CHECK(lines(outcome.out) == Words{"CURB_CAP=8GiB", "CURB_POLICY='" + policy + "'",
                                      "LD_PRELOAD=" + harmless_library(), R"(touch 'it'\''s' ')" + policy + "x'"});
    CHECK_FALSE(fs::exists(policy + "x"));
    CHECK(curb({"run", "--dry-run", "--cap", "8Gib", "--", "true"}).status == 125);
}

TEST_CASE("A policy check says valid, or every error with its place") {
    const TempDir dir;
    const std::string good = dir.write("good.json", R"({"version": 1})");
    const std::string bad = dir.write("bad.json", "{\"version\": 2,\n\"relese\": {}}");
    const Outcome valid = curb({"policy", "check", good});
    CHECK(valid.status == 0);
    CHECK(valid.out == good + ": valid\n");
    CHECK(valid.err.empty());
    const Outcome invalid = curb({"policy", "check", bad});
    CHECK(invalid.status == 1);
    CHECK(invalid.out.empty());
    CHECK(lines(invalid.err).size() == 2);
    CHECK(last_line(invalid.err) == bad + ":2:1: /relese: unknown key \"relese\"; did you mean \"release\"?");
    CHECK(curb({"policy", "check", "/no/such.json"}).status == 1);
    CHECK(curb({"policy", "check"}).status == 125);
}

TEST_CASE("A policy check takes each way to name a GPU, but none in two spellings") {
    const TempDir dir;
    const auto checked = [&](const std::string &gpu) {
        return curb({"policy", "check", dir.write("job.json", "{\"version\": 1, \"gpu\": {" + gpu + "}}")});
    };
    const Outcome valid = checked(R"("*": {"cap": "8GiB"}, "cuda:0": {"report": "device"}, "nvml:0": {},
                                     "00000000:3B:00.0": {}, "GPU-8F3A": {}, "MIG-8f3a": {"report": "cap"})");
    CHECK(valid.err.empty());
    CHECK(valid.status == 0);
    const Outcome invalid = checked(R"("00000000:3B:00.0": {}, "3b:00.0": {})");
    CHECK(invalid.status == 1);
    CHECK_THAT(last_line(invalid.err), contains("job.json:1:48: /gpu/3b:00.0: \"3b:00.0\" is the device that "
                                                "\"00000000:3B:00.0\" names at 1:24; put what both say in one"));
}

TEST_CASE("A policy check answers programs in JSON") {
    const TempDir dir;
    const std::string bad = dir.write("bad.json", "{\"version\": 2}");
    const Outcome invalid = curb({"policy", "check", "--json", bad});
    CHECK(invalid.status == 1);
    CHECK(
        invalid.out ==
        R"({"valid":false,"diagnostics":[{"file":")" + bad +
            R"(","line":1,"column":13,"pointer":"/version","message":"version 2 is not known; this curb reads version 1"}]})"
            "\n");
    CHECK(invalid.err.empty());
    CHECK(curb({"policy", "check", "--json", dir.write("good.json", "{\"version\": 1}")}).out ==
          "{\"valid\":true,\"diagnostics\":[]}\n");
}

TEST_CASE("A policy check reads standard input where the file is -") {
    CHECK(start({{CURB_BINARY, "policy", "check", "-"}, {}, "{\"version\": 1}", {}, {}}).status == 0);
    const Outcome invalid = start({{CURB_BINARY, "policy", "check", "-"}, {}, "{}", {}, {}});
    CHECK(invalid.status == 1);
    CHECK_THAT(invalid.err, contains("<stdin>:1:1: the version is missing"));
}

TEST_CASE("curb tells its version and how it is used") {
    CHECK_THAT(curb({"--version"}).out, Catch::Matchers::StartsWith("curb "));
    CHECK(curb({"--version"}).status == 0);
    for (const Words &words : {Words{"--help"}, Words{"run", "--help"}, Words{"policy", "check", "--help"}}) {
        CHECK(curb(words).status == 0);
        CHECK_THAT(curb(words).out, contains("Usage:"));
    }
    CHECK_THAT(curb({"--help"}).out, contains("curb run --cap 8GiB -- python train.py"));
}
