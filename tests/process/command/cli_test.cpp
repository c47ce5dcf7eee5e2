// `curb run`: how it starts a program, and its errors.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "ceiling.hpp"
#include "cli.hpp"

namespace {

// An installation of curb in a folder of its own.
class Installed {
  public:
    Installed() {
        fs::create_directories(dir_ / "prefix/bin");
        fs::copy_file(tested::kCurb, binary());
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

// Call it in a child: mounts the folder noexec. False if it cannot.
bool forbid_execution_in(const fs::path &folder) {
    return own_mounts() && ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, folder.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_NOEXEC, nullptr) == 0;
}

// Checks that curb run starts the program with a warning that has `why`, and with --strict does not start it.
void is_warned_of(const std::string &program, const std::string &why,
                  const Environment &environment = {{"CURB_LIBRARY", harmless_library()}},
                  const std::function<void()> &prepare = {}) {
    const auto run = [&](const Words &options) {
        const Words words = joined(joined({tested::kCurb, "run", "--cap", "1GiB"}, options), {"--", program});
        return start({words, environment, {}, {}, prepare});
    };
    INFO(program);
    const Outcome warned = run({}), refused = run({"--strict"}), dry = run({"--dry-run"});
    CHECK(warned.status == 0);
    CHECK_THAT(warned.err, contains(why) && contains("without curb"));
    CHECK(refused.status == 125);
    CHECK_THAT(refused.err, contains(why) && contains("; --strict forbids that"));
    CHECK(dry.status == 0);
    CHECK_THAT(dry.err, contains(why));
}

}  // namespace

TEST_CASE("curb becomes the program: its pid, exit status, signal, arguments and standard input are the program's") {
    const Outcome outcome = curb({"run", "--cap", "1GiB", "--", "/bin/sh", "-c", "echo $$"});
    CHECK(outcome.out == std::to_string(outcome.pid) + "\n");
    CHECK(outcome.err.empty());
    CHECK(curb({"run", "--strict", "--", "true"}).err.empty());
    for (const int status : {0, 7, 125, 255})
        CHECK(curb({"run", "--", "sh", "-c", "exit " + std::to_string(status)}).status == status);
    CHECK(curb({"run", "--", "sh", "-c", "kill -USR1 $$"}).status == 128 + SIGUSR1);
    CHECK(curb({"run", "--", "printf", "%s|", "--cap", "-x", "a b", "", "*", "--", "$HOME", "\xFF"}).out ==
          "--cap|-x|a b||*|--|$HOME|\xFF|");
    CHECK(start({.words = {tested::kCurb, "run", "--", "cat"}, .input = "text\n"}).out == "text\n");
    // Without -- the command begins at the first word that is no option of curb's.
    CHECK(curb({"run", "--cap", "1GiB", "printf", "%s|", "--cap", "-x"}).out == "--cap|-x|");
    CHECK(curb({"run", "--cap=1GiB", "sh", "-c", "exit 3"}).status == 3);
}

TEST_CASE("the program inherits the same signals, descriptors and limits with curb as without") {
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
    const Outcome without = start({.words = program, .prepare = prepare});
    REQUIRE_THAT(without.out, contains("SigIgn") && contains("\n9\n"));
    CHECK(start({.words = joined({tested::kCurb, "run", "--"}, program), .prepare = prepare}).out == without.out);
}

TEST_CASE("the environment names the policy absolutely, and curb's library before those that are preloaded already") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", R"({"version": 1})"), library = harmless_library();
    const Outcome outcome = curb({"run", "--cap", "75%", "--policy", policy, "--", "env"},
                                 {{"OTHER", "kept"},
                                  {"LD_PRELOAD", library + " " + library},
                                  // A curb that is built with ASan insists on being first.
                                  {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
    for (const std::string &line : {std::string("CURB_CAP=75%"), "CURB_POLICY=" + policy, std::string("OTHER=kept"),
                                    "LD_PRELOAD=" + library + ":" + library + " " + library})
        CHECK_THAT(outcome.out, contains(line + "\n"));
    CHECK_THAT(outcome.out, !contains("LD_LIBRARY_PATH"));
    for (const Words &words : {Words{"--policy", "job.json"}, Words{}}) {
        Start run{joined(joined({tested::kCurb, "run"}, words), {"--", "sh", "-c", "cd /; echo $CURB_POLICY"})};
        run.environment["CURB_POLICY"] = "job.json";
        run.directory = dir.path().string();
        CHECK(start(run).out == policy + "\n");
    }
}

TEST_CASE("curb run reports a wrong option, variable or policy, and does not start the program") {
    const TempDir dir;
    const Witness witness;
    const std::string policy = dir.write("job.json", R"({"version": 2, "gpu": {"*": {"cap": "8Gib"}}})");
    const std::string wrong_cap = "1:37: /gpu/*/cap: '8Gib' is not a size; did you mean \"8GiB\"?";
    const std::string text = dir.write("text.so", "not ELF"), usage = "usage: curb run [OPTIONS]";
    const Words program = witness.command();
    struct Case {
        Words words;
        std::string why;
        Environment environment{};
    };
    for (const Case &one : std::vector<Case>{
             {joined({"run", "--policy", policy}, program), wrong_cap},
             {joined({"run"}, program), wrong_cap, {{"CURB_POLICY", policy}}},
             {joined({"run", "--policy", "/no/such.json"}, program), "/no/such.json: there is no such file"},
             {joined({"run", "--policy", ""}, program), "curb: "},
             {joined({"run", "--cap", "8Gib"}, program), "curb: --cap: '8Gib' is not a size; did you mean \"8GiB\"?\n"},
             {joined({"run"}, program), "curb: CURB_CAP: -1: sizes are not negative\n", {{"CURB_CAP", "-1"}}},
             {joined({"run"}, program), "curb: CURB_WAIT: '30'", {{"CURB_WAIT", "30"}}},
             {joined({"run", "--cap", "1GiB"}, program), "curb: CURB_CAP: ", {{"CURB_CAP", "nonsense"}}},
             {joined({"run", "--cap", ""}, program), "--cap"},
             {joined({"run", "--cap=120%"}, program), "--cap"},
             {joined({"run", "--dry-run", "--cap", "8Gib"}, program), "--cap"},
             {joined({"rum"}, program), "rum"},
             {joined({"run", "touch"}, program), "'touch' stands before --"},
             {{"run", "--cap", "1GiB"}, usage},
             {{"run", "--cap=1GiB", "--"}, usage},
             {joined({"run"}, program), "correct or unset CURB_LIBRARY", {{"CURB_LIBRARY", dir / "missing.so"}}},
             {joined({"run"}, program), "correct or unset CURB_LIBRARY", {{"CURB_LIBRARY", text}}},
             {joined({"run"}, program), "correct or unset CURB_LIBRARY", {{"CURB_LIBRARY", dir.path()}}}}) {
        CAPTURE(one.words, one.environment);
        const Outcome outcome = curb(one.words, one.environment);
        CHECK(outcome.status == 125);
        CHECK(outcome.out.empty());
        CHECK_THAT(outcome.err, contains(one.why));
    }
    CHECK(lines(curb(joined({"run", "--policy", policy}, program)).err).size() == 2);  // all its errors
    CHECK_FALSE(witness.started());
}

TEST_CASE("a relative path in a folder that is gone gets an error with a remedy") {
    const TempDir dir;
    const std::string gone = (dir / "gone").string();
    const auto enter = [&] {
        if (::mkdir(gone.c_str(), 0700) != 0 || ::chdir(gone.c_str()) != 0 || ::rmdir(gone.c_str()) != 0) ::_exit(1);
    };
    fails(start({{tested::kCurb, "run", "--trace", "t.json", "--", "true"}, {}, {}, {}, enter}),
          contains("curb: 't.json' cannot be found from here: No such file or directory; write its absolute path"),
          125);
}

TEST_CASE("--cap and --job-cap within another curb run lower the cap and never lift it") {
    for (const auto &[option, variable] :
         {std::pair<std::string, std::string>("--cap", "CURB_CAP"), {"--job-cap", "CURB_JOB_CAP"}}) {
        INFO(option);
        const auto under = [&, &option = option, &variable = variable](const std::string &outer,
                                                                       const std::string &inner) {
            return curb({"run", option, inner, "--", "sh", "-c", "echo $" + variable}, {{variable, outer}});
        };
        CHECK(under("2GiB", "1GiB").out == "1GiB\n");
        CHECK(under("2GiB", "1GiB").err.empty());
        const Outcome lifted = under("2GiB", "8GiB");
        CHECK(lifted.out == "2GiB\n");
        CHECK(lifted.err ==
              "curb: " + option + " 8GiB has no effect: " + variable + " is 2GiB already, and the lower holds\n");
        CHECK(under("25%", "6GiB").out == "25%,6GiB\n");  // which is lower depends on the device
        CHECK(under("25%,6GiB", "50%,4GiB").out == "25%,4GiB\n");
        CHECK(under("8GiB", "cuda:1=4GiB").out == "8GiB,cuda:1=4GiB\n");
    }
}

TEST_CASE("curb run --job-cap begins a job, and an inner one stays in it", "[own-runtime]") {
    const std::string script =
        "echo $CURB_JOB; " + tested::kCurb + " run --job-cap 1GiB -- sh -c 'echo $CURB_JOB $CURB_JOB_CAP'";
    const Words said = lines(curb({"run", "--job-cap", "2GiB", "--", "sh", "-c", script}).out);
    REQUIRE(said.size() == 2);
    CHECK_FALSE(said[0].empty());
    CHECK(said[1] == said[0] + " 1GiB");
    CHECK(curb({"run", "--cap", "2GiB", "--", "sh", "-c", "echo $CURB_JOB"}).out == "\n");
    // --dry-run shows a job cap of all devices under "job", and that of one device under the device.
    const Words dry = lines(curb({"run", "--dry-run", "--job-cap", "8GiB,cuda:1=4GiB", "--", "true"}).out);
    const auto at = [&](const char *line) { return std::find(dry.begin(), dry.end(), line); };
    CHECK(at("CURB_JOB_CAP=8GiB,cuda:1=4GiB") != dry.end());
    REQUIRE(at("# gpu \"cuda:1\"") < at("# job"));
    CHECK(std::any_of(at("# gpu \"cuda:1\""), at("# job"), [](const std::string &line) {
        return line.starts_with("#   job_cap ") && line.find(" 4GiB ") != std::string::npos;
    }));
    CHECK(std::any_of(at("# job"), dry.end(), [](const std::string &line) {
        return line.starts_with("#   cap ") && line.find(" 8GiB ") != std::string::npos;
    }));
}

TEST_CASE("curb run warns that a statically linked program runs without curb") {
    if (tested::has_sanitizer()) return skip("sanitizers' runtimes cannot be linked statically");
    const TempDir dir;
    const std::string script = dir.write("script", "#!" + tested::kStaticWaits + "\n");
    fs::permissions(script, fs::perms::owner_all);
    for (const std::string &program : {tested::kStaticWaits, script})
        is_warned_of(program, tested::kStaticWaits + "' is statically linked");
}

TEST_CASE("curb run warns that a program with another user's rights runs without curb") {
    const TempDir dir;
    const fs::path own = dir / "own";
    fs::copy_file("/bin/true", own);
    struct statvfs system {};
    REQUIRE(::statvfs(own.c_str(), &system) == 0);
    if (::chown(own.c_str(), 1, 1) != 0 || (system.f_flag & ST_NOSUID) != 0)
        return skip("no file here gives its program another user's rights");
    REQUIRE(::chmod(own.c_str(), 04755) == 0);
    is_warned_of(own.string(), "has rights of its own");
}

TEST_CASE("curb run warns that programs run without curb if its library is on a noexec mount") {
    const TempDir dir;
    const fs::path library = dir / "libcurb.so";
    fs::copy_file(harmless_library(), library);
    const auto prepare = [&] {
        if (!forbid_execution_in(dir.path())) ::_exit(97);
    };
    if (start({{"true"}, {}, {}, {}, prepare}).status == 97) return skip("folders cannot be mounted here");
    is_warned_of("true", "is mounted noexec", {{"CURB_LIBRARY", library.string()}}, prepare);
}

TEST_CASE("curb run ends with 127 if there is no such command, and with 126 if it cannot be executed") {
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

TEST_CASE("curb run refuses a library whose path LD_PRELOAD cannot carry") {
    const TempDir dir;
    const Witness witness;
    const auto name = GENERATE(as<std::string>{}, "with space", "with:colon", "$LIB");
    const std::string library = (dir / name).string();
    fs::copy_file(harmless_library(), library);
    fails(curb(joined({"run"}, witness.command()), {{"CURB_LIBRARY", library}}),
          contains("LD_PRELOAD cannot carry the path '" + library + "'") && contains("install curb"), 125);
    CHECK_FALSE(witness.started());
}

TEST_CASE("curb run finds its library in each of the places where it is installed") {
    const Installed installed;
    const auto place =
        GENERATE(as<std::string>{}, "lib/libcurb.so", "lib/curb/libcurb.so", "lib/x86_64-linux-gnu/curb/libcurb.so");
    const std::string library = installed.library(place);
    const Outcome outcome = start({{installed.binary(), "run", "--dry-run", "--", "true"}, {}});
    CHECK(lines(outcome.out) == Words{"LD_PRELOAD=" + library, "true", "# no policy: curb only watches"});
}

TEST_CASE("--sim puts the simulated driver first in the loader's search path, and says so") {
    const Installed installed;
    const auto place = GENERATE(as<std::string>{}, "sim", "lib/curb/sim");
    installed.library(place + "/libcuda.so.1");
    const std::string directory = installed.prefix() + "/" + place;
    Start run{{installed.binary(), "run", "--sim", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"}};
    const Outcome alone = start(run);
    CHECK(alone.out == directory + "\n");
    CHECK(lines(alone.err).size() == 1);
    CHECK_THAT(alone.err, contains("a simulated driver is used"));
    run.environment["LD_LIBRARY_PATH"] = "/usr/lib";
    CHECK(start(run).out == directory + ":/usr/lib\n");
}

TEST_CASE("without its library, and with --sim without a simulated driver, curb says so and starts nothing") {
    const Installed installed;
    const Witness witness;
    fails(start({joined({installed.binary(), "run"}, witness.command()), {}}),
          contains("there is no libcurb.so") && contains("set CURB_LIBRARY") &&
              contains(installed.prefix() + "/lib/libcurb.so") && contains(installed.prefix() + "/lib/curb/libcurb.so"),
          125);
    fails(start({joined({installed.binary(), "run", "--sim"}, witness.command())}),
          contains("there is no simulated driver"), 125);
    CHECK_FALSE(witness.started());
}

TEST_CASE("curb run says that /proc is not mounted, not that a library is missing, and starts nothing",
          "[own-runtime]") {
    const Witness witness;
    const auto hide_proc = [] {
        if (!own_mounts() || ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) ::_exit(96);
    };
    const std::string library = GENERATE(std::string(), harmless_library());
    const Outcome outcome =
        start({joined({tested::kCurb, "run"}, witness.command()), {{"CURB_LIBRARY", library}}, {}, {}, hide_proc});
    if (outcome.status == 96) return skip("no mount namespace can be made here");
    fails(outcome,
          contains("/proc is not mounted, and curb needs it; mount -t proc proc /proc") && !contains("looked for"),
          125);
    CHECK_FALSE(witness.started());
}

TEST_CASE("--dry-run shows the variables and the command, and runs nothing") {
    const TempDir dir;
    const std::string policy = dir.write("my job.json", R"({"version": 1})");
    const Outcome outcome =
        curb({"run", "--dry-run", "--cap", "8GiB", "--policy", policy, "--", "touch", "it's", policy + "x"});
    CHECK(outcome.status == 0);
    CHECK(lines(outcome.out) == Words{"CURB_CAP=8GiB", "CURB_POLICY='" + policy + "'",
                                      "LD_PRELOAD=" + harmless_library(), "TF_DEVICE_MIN_SYS_MEMORY_IN_MB=225",
                                      R"(touch 'it'\''s' ')" + policy + "x'", "# gpu \"*\"",
                                      "#   cap  8GiB  CURB_CAP"});
    CHECK_FALSE(fs::exists(policy + "x"));
}

TEST_CASE("options of curb run override the policy, and the program has them as variables") {
    const TempDir dir;
    const std::string policy = dir.write(
        "job.json", R"({"version": 1, "gpu": {"cuda:0": {"cap": "6GiB", "growth": {"start": "1GiB", "factor": 2}}}})");
    const Words options{"--policy", policy,          "--cap",  "8GiB",  "--cap",       "cuda:1=4GiB",
                        "--growth", "2GiB:1GiB:10s", "--wait", "30s",   "--keep-free", "10%",
                        "--steer",  "--trace",       "/t/%p",  "--log", "info:/l"};
    const Words dry = lines(curb(joined(joined({"run", "--dry-run"}, options), {"--", "true"})).out);
    const auto has = [&](const std::string &line) { return std::count(dry.begin(), dry.end(), line) == 1; };
    for (const char *line :
         {"CURB_CAP=8GiB,cuda:1=4GiB", "CURB_GROWTH=2GiB:1GiB:10s", "CURB_WAIT=30s", "CURB_KEEP_FREE=10%",
          "CURB_STEER=1", "CURB_TRACE=/t/%p", "CURB_LOG=info:/l", "TF_FORCE_GPU_ALLOW_GROWTH=true"}) {
        INFO(line);
        CHECK(has(line));
    }
    const auto device = std::find(dry.begin(), dry.end(), "# gpu \"cuda:0\"");
    for (const auto &[field, value] : {std::pair("cap", "6GiB"), std::pair("growth/start", "2GiB"),
                                       std::pair("growth/step", "1GiB"), std::pair("growth/wait", "30s")}) {
        const auto line = std::find_if(device, dry.end(), [&, name = field](const std::string &one) {
            return one.starts_with("#   " + std::string(name) + " ");
        });
        INFO(field);
        REQUIRE(line != dry.end());
        CHECK_THAT(*line, contains(std::string(" ") + value + " "));
    }
    CHECK(std::none_of(dry.begin(), dry.end(),
                       [](const std::string &line) { return line.find("factor") != std::string::npos; }));
    // curb makes the path absolute, so the log stays there when the program changes its directory.
    const Outcome logs =
        start({.words = {tested::kCurb, "run", "--log", "info:curb.log", "--", "sh", "-c", "cd /; echo $CURB_LOG"},
               .directory = dir.path().string()});
    CHECK(logs.out == "info:" + (fs::canonical(dir.path()) / "curb.log").string() + "\n");
}

TEST_CASE("CURB_LOG and --verbose set which messages of the command itself are printed, and errors always are") {
    const auto err = [](Words words, const char *level) { return curb(std::move(words), {{"CURB_LOG", level}}).err; };
    const std::string warning = "curb: call stacks have no effect without a trace: add --trace FILE\n";
    const Words stacks{"run", "--stacks", "1MiB", "--", "true"};
    CHECK(err(stacks, "") == warning);
    CHECK(err(stacks, "warning") == warning);
    CHECK(err(stacks, "error").empty());
    CHECK(err(joined({"run", "--quiet"}, {"--stacks", "1MiB", "--", "true"}), "").empty());
    CHECK_THAT(err(stacks, "debug"), contains(warning) && contains("curb: sets CURB_STACKS=1MiB\n"));
    for (const Words &words : {joined({"--verbose"}, stacks), joined({"run", "--verbose"}, {"--", "true"})})
        CHECK_THAT(err(words, "error"), contains("curb: runs true\n"));
    CHECK(err({"run", "--cap", "8", "--", "true"}, "off") == "curb: --cap: '8' has no unit; did you mean \"8GiB\"?\n");
}

TEST_CASE("curb run sets the variables of the policy that are not set yet") {
    const TempDir dir;
    const std::string policy = dir.write(
        "job.json", R"({"version": 1, "frameworks": {"steer": true, "env": {"NCCL_DEBUG": "WARN", "PATH": "/none"}}})");
    const Outcome outcome = curb({"run", "--policy", policy, "--", "env"}, {{"TF_GPU_ALLOCATOR", "BFC"}});
    CHECK_THAT(outcome.out, contains("\nNCCL_DEBUG=WARN\n") && contains("\nXLA_PYTHON_CLIENT_PREALLOCATE=false\n") &&
                                contains("\nTF_FORCE_GPU_ALLOW_GROWTH=true\n") && contains("PATH=/usr/bin:/bin\n") &&
                                contains("TF_GPU_ALLOCATOR=BFC\n"));
    const Outcome dry = curb({"run", "--policy", policy, "--dry-run", "--", "env"}, {{"TF_GPU_ALLOCATOR", "BFC"}});
    const Words set = lines(dry.out);
    CHECK(Words(set.begin(), std::find(set.begin(), set.end(), "# frameworks")) ==
          Words{"CURB_POLICY=" + policy, "LD_PRELOAD=" + harmless_library(), "NCCL_DEBUG=WARN",
                "TF_FORCE_GPU_ALLOW_GROWTH=true", "XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "env"});
    CHECK_THAT(curb({"run", "--", "env"}).out, !contains("XLA_PYTHON_CLIENT"));
}
