// `curb ps` of processes on the simulated driver, compared with that driver's own books. tests/load/crowd_test.py
// compares many.
#include <sys/resource.h>

#include <algorithm>

#include "simulated.hpp"

namespace {

bool is_silent(const Json &process) {
    return process["under_curb"] && process["status"].is_null() && !process["suspended"] && !process["stopped"] &&
           !process["elsewhere"];
}
// Returns the answer of curb ps --json. Asks again if a process has not answered in 300 ms, as on a busy machine.
Json answer_of(const Machine &machine, const Environment &more = {}) {
    Json answer;
    CHECK(within(20s, [&] {
        answer = Json::parse(machine.succeeds({"ps", "--json"}, more).out);
        const Json &all = answer["processes"];
        return std::none_of(all.begin(), all.end(), is_silent);
    }));
    return answer;
}
// The figures of one process on one GPU in the answer. Root's answer also has processes of other tests.
struct Row {
    bool is_there = false;
    Json process, gpu, nvml, held, posted;
};
Row row(const Json &answer, const Running &process, int gpu = 0) {
    Row out;
    for (const Json &one : answer["processes"])
        if (one["pid"] == process.pid()) out.process = one;
    for (const Json &one : answer["gpus"])
        for (const Json &use : one["uses"])
            if (one["index"] == gpu && use["pid"] == process.pid())
                out = {
                    true,         out.process, one, use["nvml"], use["books"].is_null() ? Json() : use["books"]["held"],
                    use["posted"]};
    return out;
}

// A user who has no processes but the test's.
const uid_t kSomebody = 200'000 + static_cast<uid_t>(::getpid());

// A program that has its control socket, some milliseconds after its first call.
class Askable : public Program {
  public:
    explicit Askable(const Machine &machine, const Environment &more = {})
        : Program(machine, with(under_curb(), more)) {
        REQUIRE(within(20s, [&] { return !socket_of(machine.runtime() / "curb", *this).empty(); }));
    }
};

}  // namespace

TEST_CASE("curb ps shows NVML's figure of a stopped process at once; a process in a long CUDA call answers") {
    const Machine machine;
    Askable stopped(machine), computing(machine);
    REQUIRE(stopped.answers("hold 1024") == "held");
    REQUIRE(computing.answers("submit 0") == "submitting");
    stopped.kill(SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = machine.curb({"ps"});
    CHECK(std::chrono::steady_clock::now() - begin < 300ms + 2s);
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, contains(stopped.id() +
                                     " (scenarios) runs under curb, and has not answered for 300 ms: it is stopped; "
                                     "kill -CONT " +
                                     stopped.id() + "; NVML says that it holds 1.51 GiB of GPU 0"));
    const Json answer = answer_of(machine);
    const Row one = row(answer, stopped);
    CHECK(one.process["stopped"] == true);
    CHECK(one.held.is_null());
    CHECK(one.nvml == Json(machine.held_of(0, stopped.pid())));
    CHECK(row(answer, computing).held == Json(machine.held_of(0, computing.pid())));
    const Outcome alone = machine.curb({"ps", stopped.id()});
    CHECK(alone.status == 1);
    CHECK_THAT(alone.out, contains("silent") && contains("it is stopped") && contains("NVML says   1.51 GiB"));
    stopped.kill(SIGCONT);
    CHECK(within(20s, [&] { return machine.curb({"ps", stopped.id()}).status == 0; }));
    computing.tell("");
    CHECK(computing.says() == "ended");
}

TEST_CASE("curb ps fails if it may open too few files to see the processes", "[bare]") {
    const Machine machine;
    const Askable program(machine);
    const auto with_descriptors = [&](rlim_t count, const Words &words) {
        return start({joined({tested::kCurb, "ps"}, words), machine.environment(), {}, {}, [=] {
                          const rlimit few{count, count};
                          ::close_range(3, ~0U, 0);
                          ::setrlimit(RLIMIT_NOFILE, &few);
                      }});
    };
    for (const Words &words : {Words{}, Words{"--json"}}) {
        const Outcome none = with_descriptors(4, words);
        fails(none, contains("raise the limit of open files (ulimit -n): Too many open files"), 125);
        CHECK(none.out.empty());
    }
    CHECK_THAT(with_descriptors(8, {}).out, contains(program.id()));
}

TEST_CASE("curb ps and curb doctor say that a process is suspended, and how to resume it") {
    const Machine machine;
    Askable program(machine);
    REQUIRE(program.answers("hold 1024") == "held");
    REQUIRE(machine.curb({"suspend", "--force", program.id()}).status == 0);
    const Row one = row(answer_of(machine), program);
    CHECK(one.process["suspended"] == true);
    CHECK(one.nvml == Json(machine.held_of(0, program.pid())));
    CHECK_THAT(machine.curb({"ps"}).out,
               contains(program.id() + " (scenarios) is suspended") && contains("curb resume " + program.id()));
    CHECK_THAT(machine.curb({"doctor", program.id()}).out, contains("is suspended: its memory is in host memory"));
    REQUIRE(machine.curb({"resume", program.id()}).status == 0);
    CHECK(row(answer_of(machine), program).process["suspended"] == false);
}

TEST_CASE("a user sees others' processes, their caps and states as far as these share them, and root sees all") {
    if (!can_become_another()) return;
    const std::string folder = "/tmp/curb-" + std::to_string(kSomebody);
    const Machine machine;
    const auto sharing = [&](const char *what) {
        return machine.write("job.json", std::string(R"({ "version": 1, "share": ")") + what +
                                             R"(", "gpu": { "*": { "cap": "8GiB" } } })");
    };
    const std::string policy = sharing("all");
    Askable roots(machine, {{"CURB_POLICY", policy}});
    fs::permissions(machine.folder(), fs::perms(0755));
    fs::permissions(machine.state_file(), fs::perms(0666));
    Environment theirs = machine.environment();
    theirs.erase("XDG_RUNTIME_DIR");  // so its socket is below /tmp, where root searches too
    Running users({tested::kScenarios, "runs_commands"}, with(theirs, under_curb()), becoming(kSomebody));
    REQUIRE(users.says() == "ready");
    REQUIRE(within(20s, [&] { return !socket_of(folder, users).empty(); }));

    const Json by_root = answer_of(machine);
    CHECK(row(by_root, users).process["under_curb"] == true);
    CHECK(row(by_root, users).process["user"] == std::to_string(kSomebody));
    CHECK(row(by_root, roots).process["user"] == "root");
    const auto as_user = [&](const Words &words) {
        return start({joined({tested::kCurb, "ps"}, words), theirs, {}, {}, becoming(kSomebody)});
    };
    const Json by_user = Json::parse(as_user({"--json"}).out);
    CHECK(row(by_user, users).held == Json(machine.held_of(0, users.pid())));
    const auto others = [&] { return row(Json::parse(as_user({"--json"}).out), roots); };
    CHECK(within(20s, [&] { return others().posted["held"] == Json(machine.held_of(0, roots.pid())); }));
    const Row shown = others();
    CHECK(shown.process["under_curb"] == true);
    CHECK(shown.process["state"] == "running");
    CHECK(shown.posted["cap"] == 8192 * kMiB);
    CHECK(shown.held.is_null());
    CHECK(shown.nvml == Json(machine.held_of(0, roots.pid())));
    CHECK_THAT(as_user({}).out, contains("  8 GiB  ") && !contains("no curb"));
    sharing("none");
    CHECK(within(20s, [&] { return others().process["state"] == "unknown"; }));
    CHECK(others().process["under_curb"].is_null());
    CHECK(others().posted.is_null());
    const Outcome foreign = as_user({roots.id()});
    CHECK(foreign.status == 1);
    CHECK_THAT(foreign.err, contains("belongs to user 0: ask as that user, or as root; NVML says that it holds "));
    CHECK(users.finish() == 0);
    fs::remove_all(folder);
}

TEST_CASE("curb ps says why it cannot show a process, and shows the others") {
    const Machine machine;
    Askable capped(machine);
    Program bare(machine, {});
    const Outcome outcome = machine.curb({"ps", capped.id(), bare.id(), "2147483647"});
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.out, contains("process " + capped.id() + " (scenarios) of ") && !contains(bare.id()));
    CHECK(outcome.err == "curb: process " + bare.id() +
                             " does not run under curb; start it by: curb run -- COMMAND; NVML says that it holds 518 "
                             "MiB of GPU 0\ncurb: there is no process 2147483647\n");
    CHECK(machine.curb({"ps", "--json", bare.id()}).err.empty());  // the JSON answer has the error
}

TEST_CASE("without NVML, and where NVML lists no process, curb ps shows the books of capped processes") {
    const Machine machine;
    Askable capped(machine);
    Program bare(machine, {});
    REQUIRE(capped.answers("hold 1024") == "held");
    const Outcome without = machine.curb({"ps"}, {{"CURB_SIM_NVML", "broken"}});
    CHECK(without.status == 0);
    CHECK_THAT(without.out, contains("GPU-c07b513d  80 GiB") && contains(capped.id() + "  ") && !contains(bare.id()) &&
                                contains("NVML cannot be initialised") &&
                                contains("so only processes under curb are shown"));
    const Json answer = answer_of(machine, {{"CURB_SIM_NVML", "nopids"}});
    CHECK(row(answer, capped).held == Json(machine.held_of(0, capped.pid())));
    CHECK(row(answer, capped).nvml.is_null());
    CHECK(!row(answer, bare).is_there);
    // On WSL2 NVML has the GPU's figures alone.
    CHECK_THAT(machine.succeeds({"ps"}, {{"CURB_SIM_NVML", "nolist"}}).out,
               contains(" GiB used, ") && contains(capped.id() + "  ") && !contains(bare.id()) &&
                   contains("NVML lists no processes here, as on WSL2; so only processes under curb are shown"));
}

TEST_CASE("curb ps knows the older names of NVML's lists") {
    const Machine machine;
    Askable capped(machine);
    const Json answer = answer_of(machine, {{"LD_LIBRARY_PATH", tested::kSim + "/11.4/nvml:" + tested::kSim}});
    CHECK(row(answer, capped).nvml == Json(machine.held_of(0, capped.pid())));
}

TEST_CASE("a process on an instance of a divided GPU is shown under that instance") {
    const Machine machine(Environment{{"CURB_SIM_MIG", "1"}});
    Askable capped(machine);
    REQUIRE(capped.answers("hold 1024") == "held");
    const Row one = row(answer_of(machine), capped);
    REQUIRE(one.is_there);
    CHECK_THAT(one.gpu["uuid"].get<std::string>(), contains("MIG-"));
    CHECK_THAT(one.gpu["parent"].get<std::string>(), contains("GPU-"));
    CHECK(one.held == Json(machine.held_of(0, capped.pid())));
    CHECK(one.nvml == one.held);
}

TEST_CASE("curb ps shows the beginning of a very long command line") {
    const Machine machine;
    Running wordy({tested::kScenarios}, with(machine.environment(), under_curb()), [] {
        Words words{std::string(120'000, 'x'), "runs_commands"};
        ::execv(tested::kScenarios.c_str(), pointers(words).data());
    });
    REQUIRE(wordy.says() == "ready");
    REQUIRE(within(20s, [&] { return !socket_of(machine.runtime() / "curb", wordy).empty(); }));
    const std::string command = row(answer_of(machine), wordy).process["command"];
    CHECK_THAT(command, contains("xxx"));
    CHECK(command.size() <= 64 << 10);
}

TEST_CASE("curb ps and curb release name a framework whose allocator returns nothing, and no other") {
    struct Case {
        const char *library;
        Environment more;
        const char *named;  // "": none
        const char *takes = "hold 1024 0";
    };
    constexpr const char *kTensorFlow = "libtensorflow_framework.so.2", *kJax = "xla_cuda_plugin.so";
    const auto one = GENERATE_COPY(as<Case>{}, Case{kTensorFlow, {}, "TensorFlow"},
                                   Case{kTensorFlow, {{"TF_GPU_ALLOCATOR", "BFC"}}, "TensorFlow"},
                                   Case{kTensorFlow, {{"TF_GPU_ALLOCATOR", "cuda_malloc_async"}}, ""},
                                   Case{kJax, {}, "JAX"}, Case{kJax, {{"XLA_PYTHON_CLIENT_ALLOCATOR", "VMM"}}, "JAX"},
                                   Case{kJax, {{"XLA_PYTHON_CLIENT_ALLOCATOR", "Platform"}}, ""},
                                   Case{kTensorFlow, {}, "", "pool"},  // TensorFlow's own option selects the pool
                                   Case{"libc10_cuda.so", {}, ""});
    CAPTURE(one.library, one.more, one.takes);
    const Machine machine;
    Askable program(machine, with(with_library(machine, one.library), one.more));
    REQUIRE_THAT(program.answers(one.takes), contains("held") || contains("ok"));
    const std::string names = *one.named ? "\"" + std::string(one.named) + "\"" : "";
    for (const char *command : {"ps", "release"}) {
        CAPTURE(command);
        const std::string text = machine.curb({command, program.id()}).out;
        if (*one.named)
            CHECK_THAT(text, contains(std::string(one.named) + "'s allocator returns nothing before the process ends"));
        else
            CHECK_THAT(text, !contains("returns nothing"));
        CHECK_THAT(machine.curb({command, "--json", program.id()}).out,
                   contains("\"returns_nothing\":[" + names + "]"));
    }
}

TEST_CASE("NVML that hangs does not hang the commands: they show what the processes answer, and say so") {
    const Machine machine;
    const Askable program(machine);
    const std::string fault = "NVML has not answered for 30 s", id = program.id();
    const std::vector<std::pair<Words, std::vector<std::string>>> rows{
        {{"ps"}, {fault, id}},
        {{"ps", id}, {fault, "40 GiB"}},
        {{"metrics"}, {"curb_nvml_up 0", "pid=\"" + id}},
        {{"doctor"}, {fault, " under curb answer"}},  // root sees those of other tests too
        {{"doctor", id}, {"518 MiB of 40 GiB"}},
        {{"suspend", "--sim", id}, {fault}},
    };
    std::vector<Begun> begun;
    for (const auto &row : rows) {
        const Environment environment = with(machine.environment(), {{"CURB_SIM_NVML", "hangs:init"}});
        begun.emplace_back(Start{joined({tested::kCurb}, row.first), environment, {}, {}, {}, 90s});
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Outcome outcome = begun[i].end();
        CAPTURE(rows[i].first, outcome.err);
        for (const std::string &text : rows[i].second) CHECK_THAT(outcome.out + outcome.err, contains(text));
    }
}
