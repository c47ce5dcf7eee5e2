// `curb doctor` of real processes: capped ones, and those that bypass curb in each way there is. Above all it must
// report no problem where there is none.

#include <dlfcn.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "capped.hpp"
#include "ceiling.hpp"
#include "control/proc.hpp"
#include "control/status.hpp"
#include "simulated.hpp"

using namespace curb;

namespace {

constexpr uid_t kNobody = 54'321;

std::string plugin(const char *name) { return std::string(tested::kPlugins + "/libplugin_") + name + ".so"; }

Capped capped(const Machine &machine, Words command, const Environment &more = {}, bool socket = true) {
    return Capped(machine.runtime(), {std::move(command), with(machine.environment(), more), {}, socket});
}
// The usual program, which runs the test's commands.
Capped usual(const Machine &machine, const Environment &more = {{"CURB_CAP", "8GiB"}}) {
    return capped(machine, Capped::How().command, more);
}
Outcome doctor(const Machine &machine, const Words &words, const Environment &more = {}) {
    return machine.curb(joined({"doctor"}, words), with({{"CURB_LIBRARY", tested::kLibrary}}, more));
}
Outcome doctor(const Machine &machine, int pid) { return doctor(machine, {std::to_string(pid)}); }

void finds_nothing(const Outcome &outcome) {
    INFO(outcome.out << outcome.err);
    CHECK(outcome.status == 0);
    CHECK(last_line(outcome.out).starts_with("no problems"));
    CHECK(outcome.err.empty());
}
// Returns the findings that are problems, each on a line.
std::string problems(const Outcome &outcome) {
    std::string out;
    for (const std::string &line : lines(outcome.out))
        if (line.starts_with("problem")) out += line + "\n";
    return out;
}
void finds(const Outcome &outcome, const std::string &what) {
    INFO(outcome.out << outcome.err);
    CHECK(outcome.status == 1);
    CHECK_THAT(problems(outcome), contains(what));
    // Root may see a process of a test beside this one that has a problem too.
    for (const std::string &line : lines(problems(outcome)))
        CHECK((line.find(what) != std::string::npos || line.starts_with("problem  processes")));
}

std::vector<control::Bypass> passed_by(const Capped &process) {
    const auto reply = control::ask(process.pid(), control::StatusRequest{true}, 10s);
    REQUIRE(std::holds_alternative<control::Status>(reply));
    return std::get<control::Status>(reply).bypasses;
}

}  // namespace

TEST_CASE("curb doctor finds nothing wrong with a capped program, nor with one behind another preload") {
    const Machine machine;
    const std::string preload = GENERATE(std::string(tested::kLibrary), tested::kLibrary + ":" + tested::kSecondPreload,
                                         tested::kSecondPreload + " " + tested::kLibrary);
    Capped process = usual(machine, {{"CURB_CAP", "8GiB"}, {"LD_PRELOAD", preloaded(preload)}});
    CHECK(process("pool") == "ok");
    const Outcome outcome = doctor(machine, process.pid());
    finds_nothing(outcome);
    CHECK(last_line(outcome.out) == "no problems, no notes");
    CHECK_THAT(outcome.out,
               contains("is under curb and answers") && contains("CURB_CAP 8GiB") && contains(" of 8 GiB"));
    CHECK(passed_by(process).empty());
}

TEST_CASE("curb doctor finds nothing wrong with a framework: a Python program, the runtime, an allocator, plugins",
          "[foreign]") {
    const Machine machine;
    constexpr const char *kProgram = R"(
import ctypes, sys
torch = ctypes.CDLL(sys.argv[1])                     # libc10_cuda, which is linked with the runtime
plugins = [ctypes.CDLL(one) for one in sys.argv[2:]]
print('ready', flush=True)
for plugin in plugins: assert plugin.plugin_allocates() == 0
sys.stdin.readline()
print('used', flush=True)
sys.stdin.readline()
)";
    Capped process = capped(
        machine,
        {tested::kPython, "-c", kProgram, tested::kC10Cuda, plugin("bound"), plugin("looks_up"), plugin("no_cuda")},
        {{"CURB_CAP", "8GiB"}});
    CHECK(process("") == "used");
    finds_nothing(doctor(machine, process.pid()));
    CHECK(passed_by(process).empty());
}

TEST_CASE("curb doctor names a library that bypasses curb by RTLD_DEEPBIND", "[bare]") {
    const Machine machine;
    Capped process = capped(machine, {tested::kPluginHost, "CUDA"}, {{"CURB_CAP", "8GiB"}});
    SECTION("its references are bound to the driver") {
        CHECK(process("deep " + plugin("bound")) == "0");
        finds(doctor(machine, process.pid()), plugin("bound") + ": its references to ");
        REQUIRE(passed_by(process).size() == 1);
        CHECK(passed_by(process)[0].library == plugin("bound"));
        CHECK_THAT(passed_by(process)[0].how, contains(" and 3 more are bound to the driver itself"));
    }
    SECTION("it looked them up by glibc's own dlsym") {
        CHECK(process("deep " + plugin("looks_up")) == "0");
        finds(doctor(machine, process.pid()), plugin("looks_up") + ": it bypassed curb to look up cuMemAlloc_v2");
    }
    SECTION("but not a library that looked up something else") {
        CHECK(process("deep " + plugin("no_cuda")) == "0");
        finds_nothing(doctor(machine, process.pid()));
    }
    SECTION("but not a library that has not called the driver yet") {
        CHECK(process("lazy " + plugin("bound")) == "0");
        finds_nothing(doctor(machine, process.pid()));
    }
}

TEST_CASE("curb doctor names a second driver in a name space of its own", "[bare]") {
    const Machine machine;
    Capped process = capped(machine, {tested::kPluginHost, "CUDA"}, {{"CURB_CAP", "8GiB"}});
    CHECK(process("apart " + plugin("bound")) == "0");
    finds(doctor(machine, process.pid()), "libcuda.so.1: it is a second CUDA driver");
}

TEST_CASE("curb doctor notes TensorFlow that does not use the GPU, and TensorFlow's own limit") {
    const Machine machine;
    const Environment beside = with(with_library(machine, "libtensorflow_framework.so.2"), {{"CURB_CAP", "8GiB"}});
    const auto says = [&](const Capped &process, const std::string &what) {
        const Outcome outcome = doctor(machine, process.pid());
        finds_nothing(outcome);
        CHECK_THAT(outcome.out, contains(what));
    };
    says(capped(machine, {tested::kPluginHost, "none"}, beside, false), "TensorFlow is loaded, and libcuda is not");
    says(capped(machine, {tested::kPluginHost, "init"}, beside),
         "TensorFlow is loaded, and it has no context on a GPU");
    Capped uses = usual(machine, beside);
    CHECK(uses("take 1024") == "ok");
    says(uses, "curb has refused nothing, and ");
}

TEST_CASE("curb doctor finds a program that uses CUDA only by a bypass", "[bare]") {
    const Machine machine;
    Capped process = capped(machine, {tested::kPluginHost, "none"}, {{"CURB_CAP", "8GiB"}}, false);
    finds_nothing(doctor(machine, process.pid()));
    CHECK_THAT(doctor(machine, process.pid()).out, contains("it has not used CUDA yet"));
    CHECK(process("apart " + plugin("bound")) == "0");
    finds(doctor(machine, process.pid()), "holds GPU memory that curb does not answer for");
    const Outcome all = doctor(machine, Words{});
    CHECK_THAT(problems(all), contains("(plugin_host)") && contains("is under curb and does not say what it holds"));
}

TEST_CASE("curb doctor says why libcurb.so is not in a process") {
    const Machine machine;
    const auto finds_of = [&](const std::string &program, Environment more, const std::function<void()> &prepare,
                              const std::string &why) {
        more.emplace("CURB_CAP", "8GiB");
        Capped process(machine.runtime(), {{program}, with(machine.environment(), more), prepare, false});
        finds(doctor(machine, process.pid()), why);
    };
    if (!tested::has_sanitizer()) finds_of(tested::kStaticWaits, {}, {}, "its program is statically linked");
    finds_of(
        tested::kWaits, {}, [] { ::clearenv(); }, "LD_PRELOAD was not set when it was started");
    finds_of(
        tested::kWaits, {}, [] { ::unsetenv("LD_PRELOAD"); },
        "LD_PRELOAD was not set when it was started, though CURB_CAP was");
    for (const std::string name : {"CURB_SIGNAL", "CURB_KEEP_FREE"}) {
        const auto set_alone = [&] {
            for (const char *other : {"LD_PRELOAD", "CURB_CAP"}) ::unsetenv(other);
            ::setenv(name.c_str(), "SIGUSR2", 1);
        };
        finds_of(tested::kWaits, {}, set_alone, "LD_PRELOAD was not set when it was started, though " + name + " was");
    }
    finds_of(tested::kWaits, {{"LD_PRELOAD", preloaded(tested::kSecondPreload)}}, {},
             "LD_PRELOAD named other libraries alone");
    finds_of(tested::kWaits, {{"LD_PRELOAD", preloaded("/nowhere/libcurb.so")}}, {},
             "LD_PRELOAD names /nowhere/libcurb.so, which is not there");
}

TEST_CASE("curb doctor recognises a program with rights of its own, for root and for other users", "[bare]") {
    const Machine machine;
    struct statvfs system {};
    REQUIRE(::statvfs(machine.runtime().c_str(), &system) == 0);
    if (::geteuid() != 0 || (system.f_flag & ST_NOSUID) != 0)
        return skip("only root can make such programs, and not where they are not heeded");
    if (!can_become_another()) return;
    const TempDir folder;
    fs::permissions(folder.path(), fs::perms(0755));
    fs::permissions(machine.folder(), fs::perms(0755));
    fs::permissions(machine.runtime(), fs::perms(01777));
    const fs::path program = folder / "waits";
    fs::copy_file(tested::kWaits, program);
    fs::permissions(program, fs::perms(04755));
    Capped process(machine.runtime(), {{program.string()}, {}, becoming(kNobody), false});
    finds(doctor(machine, process.pid()), "its program has rights of its own (setuid, setgid or capabilities)");
    const auto asked_by_nobody = [&](int pid) {
        return start({{tested::kCurb, "doctor", std::to_string(pid)}, {}, {}, {}, becoming(kNobody)});
    };
    // Even the user who started a setuid program may not read its files in /proc.
    finds(asked_by_nobody(process.pid()), "its program has another user's rights (setuid)");
    Capped of_root = usual(machine, {});
    finds(asked_by_nobody(of_root.pid()), "belongs to root, so it cannot be looked into");
}

TEST_CASE("curb doctor says that a PID is of no process, of a thread, or of a zombie") {
    const Machine machine;
    finds(doctor(machine, 2147483647), "there is no process 2147483647");
    Capped process = usual(machine, {});
    std::string thread;
    for (const auto &entry : fs::directory_iterator("/proc/" + std::to_string(process.pid()) + "/task"))
        if (entry.path().filename() != std::to_string(process.pid())) thread = entry.path().filename();
    finds(doctor(machine, {thread}), "is a thread of process " + std::to_string(process.pid()));
    ::kill(process.pid(), SIGKILL);
    REQUIRE(within(10s, [&] { return control::has_ended(process.pid()); }));
    finds(doctor(machine, process.pid()), "has ended, and its parent has not taken notice");
    if (fs::exists("/proc/2/stat") && !fs::exists("/proc/2/exe"))
        CHECK_THAT(problems(doctor(machine, 2)), contains("is a thread of the kernel"));
}

TEST_CASE("curb doctor tells two installed versions apart") {
    const Machine machine;
    const fs::path folder = fs::path(machine.runtime()) / "other", command = folder / "bin/curb";
    fs::create_directories(folder / "bin");
    std::string bytes = contents(tested::kCurb);
    const std::size_t note = bytes.find(std::string("curb\0\0\0", 8) + tested::kVersion);
    REQUIRE(note != std::string::npos);
    const auto doctor_beside = [&](const std::string &text) {
        std::ofstream(command, std::ios::binary) << text;
        fs::permissions(command, fs::perms::owner_all);
        return doctor(machine, Words{}, {{"PATH", command.parent_path().string() + ":/bin"}});
    };
    CHECK_THAT(doctor_beside(bytes).out, contains(command.string() + " (" + tested::kVersion + ") is installed too"));
    bytes[note + 8] = '9';  // another version
    const std::string other = std::string(tested::kVersion).replace(0, 1, "9");
    const Outcome outcome = doctor_beside(bytes);
    finds_nothing(outcome);
    CHECK_THAT(outcome.out, contains("note") && contains(command.string() + " (" + other + ") is installed too"));
    CHECK_THAT(outcome.out,
               contains("a shell here starts " + command.string()) && contains("remove curb from " + folder.string()));
}

TEST_CASE("curb doctor finds a folder for control sockets that cannot be written to") {
    const Machine machine;
    const auto read_only = [&] {
        const fs::path runtime = machine.runtime();
        return own_mounts() && ::mount(runtime.c_str(), runtime.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
               ::mount("none", runtime.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
    };
    finds_nothing(doctor(machine, Words{}));  // this run makes the folder
    const Environment environment = with(machine.environment(), {{"CURB_LIBRARY", tested::kLibrary}});
    const Outcome outcome = start({{tested::kCurb, "doctor"}, environment, {}, {}, [&] {
                                       if (!read_only()) ::_exit(96);
                                   }});
    if (outcome.status == 96) return skip("no mount namespace can be made here");
    finds(outcome, machine.runtime().string() + "/curb cannot be written to: Read-only file system");
}

TEST_CASE("curb doctor PID finds that the process cannot make a control socket") {
    const Machine machine;
    const std::string own = machine.folder().string();
    const auto read_only = [&] {
        const bool is_done = own_mounts() && ::mount("none", "/run", "tmpfs", 0, nullptr) == 0 &&
                             ::mount("/tmp", "/tmp", nullptr, MS_BIND, nullptr) == 0 &&
                             ::mount(own.c_str(), own.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
                             ::mount("none", "/tmp", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
        if (!is_done) ::_exit(96);
    };
    if (start({{"/bin/true"}, {}, {}, {}, read_only}).status == 96) return skip("no mount namespace can be made here");
    const Environment environment = with(machine.environment(), {{"XDG_RUNTIME_DIR", "/nonexistent"}});
    const Capped process(machine.runtime(), {{tested::kPluginHost, "CUDA"}, environment, read_only, false});
    const Outcome outcome = doctor(machine, process.pid());
    finds(outcome,
          "cannot make a control socket, so it cannot be asked: /nonexistent: No such file or directory; /tmp");
    CHECK_THAT(problems(outcome), contains(": Read-only file system\n"));
}

TEST_CASE("curb doctor finds a process whose policy is invalid, or whose last edit is not in force") {
    const Machine machine;
    constexpr const char *kGood = R"({ "version": 1, "gpu": { "*": { "cap": "8GiB" } } })";
    const std::string file = machine.write("job.json", "{");
    Capped process = capped(machine, {tested::kPluginHost, "init"}, {{"CURB_POLICY", file}});
    finds(doctor(machine, process.pid()),
          "its policy cannot be used, so every GPU allocation is refused: " + file + ":1:");
    CHECK_THAT(problems(doctor(machine, Words{})), contains("so it gets no GPU memory: " + file + ":1:"));
    const auto says = [&](auto what) {
        return within(20s, [&] {
            const auto reply = control::ask(process.pid(), control::StatusRequest{}, 5s);
            const auto *status = std::get_if<control::Status>(&reply);
            return status != nullptr && what(status->policy);
        });
    };
    machine.write("job.json", kGood);
    REQUIRE(says([](const control::PolicyStatus &policy) { return !policy.unusable; }));
    finds_nothing(doctor(machine, process.pid()));
    machine.write("job.json", "{");
    REQUIRE(says([](const control::PolicyStatus &policy) { return !policy.error.empty(); }));
    finds(doctor(machine, process.pid()), "the last edit of its policy is not in force: " + file + ":1:");
    CHECK_THAT(problems(doctor(machine, Words{})), contains("the last edit of the policy of process"));
}

TEST_CASE("curb doctor names the cap of a job") {
    const Machine machine;
    const Environment job{{"CURB_JOB", "0123456789abcdef"}, {"CURB_JOB_CAP", "2GiB"}};
    Capped process = usual(machine, job);
    finds_nothing(doctor(machine, process.pid()));
    const std::string found = doctor(machine, process.pid()).out;
    CHECK_THAT(found, contains("a job's cap of 2 GiB"));
    CHECK_THAT(found, contains("its job holds 0 B of 2 GiB") || contains("its job holds 518 MiB of 2 GiB"));
}

TEST_CASE("curb doctor finds problems of the driver, of NVML and of this environment's policy") {
    const Machine machine;
    const std::string file = machine.write("job.json", R"({ "version": 1, "gpu": { "*": { "cap": "8Gib" } } })");
    finds(doctor(machine, Words{}, {{"CURB_POLICY", file}}), file + ":1:40: /gpu/*/cap");
    finds(doctor(machine, Words{}, {{"CURB_CAP", "8Gib"}}), "CURB_CAP");
    finds(doctor(machine, Words{}, {{"CURB_SIM_NVML", "broken"}}), "NVML cannot be initialised");
    finds(doctor(machine, Words{}, {{"CURB_SIM_FAULT", "cuInit:1:100"}}), "CUDA_ERROR_NO_DEVICE");
    finds(doctor(machine, Words{}, {{"CURB_SIM_FAULT", "cuInit:1:999"}}), "the CUDA driver cannot be initialised");
    if (::dlopen("libcuda.so.1", RTLD_LAZY) || ::dlopen("libnvidia-ml.so.1", RTLD_LAZY))
        return skip("there is a real driver here");
    finds(doctor(machine, Words{}, {{"LD_LIBRARY_PATH", ""}}), "there is no CUDA driver here: libcuda.so.1");
    finds(doctor(machine, Words{}, {{"LD_LIBRARY_PATH", tested::kSim + "/12.2"}}), "there is no NVML");
}

TEST_CASE("curb doctor notes harmless facts: a sleeping or divided GPU, an older driver, processes outside curb") {
    const Machine machine;
    const auto notes = [&](Environment more, const std::string &what) {
        const Outcome outcome = doctor(machine, Words{}, std::move(more));
        finds_nothing(outcome);
        CHECK_THAT(outcome.out, contains(what));
    };
    const std::string file = machine.write("job.json", R"({ "version": 1, "gpu": { "*": { "cap": "8GiB" } } })");
    notes({{"CURB_POLICY", file}}, file + " is valid");
    notes({}, ", CUDA 1");  // after the driver's version
    notes({{"CURB_SIM_PERSISTENCE", "off"}}, "GPU 0 is put to sleep whenever no process uses it");
    notes({{"CURB_SIM_MIG", "1"}}, "GPU 0 is divided (MIG)");
    notes({{"CUDA_VISIBLE_DEVICES", ""}}, "programs that are started here see no GPU");
    notes(older_driver(), "there is no curb suspend");
    notes({{"XDG_RUNTIME_DIR", "/nonexistent"}}, "is used, because a folder before it cannot be: /nonexistent");
    Capped beside = capped(machine, {tested::kPluginHost, "CUDA"}, {{"LD_PRELOAD", preloaded("")}}, false);
    notes({}, "process " + beside.id() + " (plugin_host)");
    notes({}, " is not under curb and holds 518 MiB of GPU 0");
    Capped unlisted = capped(machine, {tested::kPluginHost, "CUDA"}, {{"CURB_CAP", "8GiB"}});
    notes({{"CURB_SIM_NVML", "nopids"}}, "NVML does not list process ");
    notes({{"CURB_SIM_NVML", "nolist"}}, "NVML lists no processes here, as on WSL2, so what the driver takes");
}

TEST_CASE("curb doctor notes a stopped process, and does not count it as a problem") {
    const Machine machine;
    Capped process = usual(machine);
    ::kill(process.pid(), SIGSTOP);
    REQUIRE(within(10s, [&] { return control::is_stopped(process.pid()); }));
    const Outcome outcome = doctor(machine, process.pid());
    finds_nothing(outcome);
    CHECK_THAT(outcome.out, contains("is stopped") && contains("kill -CONT"));
    ::kill(process.pid(), SIGCONT);
}

TEST_CASE("curb doctor tells a fork child from a program that has not used CUDA yet") {
    const Machine machine;
    Capped process = usual(machine);
    const int child = std::stoi(process("fork and stay"));
    const Outcome outcome = doctor(machine, child);
    ::kill(child, SIGKILL);
    finds_nothing(outcome);
    CHECK_THAT(outcome.out, contains("was forked by process " + std::to_string(process.pid())));
}

TEST_CASE("curb doctor notes that libcurb.so was replaced after the program started") {
    const Machine machine;
    const fs::path library = machine.folder() / "libcurb.so";
    fs::copy_file(tested::kLibrary, library);
    Capped process = usual(machine, {{"CURB_CAP", "8GiB"}, {"LD_PRELOAD", preloaded(library.string())}});
    fs::remove(library);
    const Outcome outcome = doctor(machine, process.pid());
    finds_nothing(outcome);
    CHECK_THAT(outcome.out, contains(library.string() + " was replaced since"));
}
