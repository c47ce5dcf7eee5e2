// `curb ps` on processes of the simulated driver: what it shows is held against that driver's own books.
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "simulated.hpp"

namespace {

using Json = nlohmann::json;

const Environment kTwoGpus{{"CURB_SIM_GPUS", "2"}};

// A process on a GPU, by names: what --json says of both.
using Row = std::map<std::string, std::string>;
std::string plain(const Json &value) {
    return value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
}
std::string state_of(const Json &process) {
    for (const char *state : {"suspended", "stopped", "elsewhere"})
        if (process[state]) return state;
    return process["under_curb"] && process["status"].is_null() ? "silent" : "running";
}
std::vector<Row> rows_of(const std::string &json) {
    const Json answer = Json::parse(json);
    std::vector<Row> out;
    std::map<int, Row> idle;
    for (const Json &one : answer["processes"])
        idle[one["pid"]] = {{"pid", plain(one["pid"])},
                            {"user", plain(one["user"])},
                            {"command", plain(one["command"])},
                            {"under_curb", one["under_curb"] ? "yes" : "no"},
                            {"state", state_of(one)}};
    const std::map<int, Row> processes = idle;
    for (const Json &gpu : answer["gpus"])
        for (const Json &use : gpu["uses"]) {
            Row &row = out.emplace_back(processes.at(use["pid"]));
            row.merge(Row{{"gpu", plain(gpu["index"])},
                          {"uuid", plain(gpu["uuid"])},
                          {"parent", plain(gpu["parent"])},
                          {"nvml_bytes", plain(use["nvml"])},
                          {"held_bytes", use["books"].is_null() ? "" : plain(use["books"]["held"])}});
            idle.erase(use["pid"]);
        }
    for (auto &[pid, row] : idle) out.emplace_back(std::move(row))["gpu"];
    return out;
}
// On a machine with much else to do a process may not come to answer in 300 ms: then it is looked at again.
std::vector<Row> rows(const Machine &machine, const Environment &more = {}) {
    std::vector<Row> out;
    const auto all_answered = [&] {
        const Outcome outcome = machine.curb({"ps", "--json"}, more);
        INFO(outcome.err);
        REQUIRE(outcome.status == 0);
        out = rows_of(outcome.out);
        return std::none_of(out.begin(), out.end(), [](const Row &one) { return one.at("state") == "silent"; });
    };
    CHECK(within(20s, all_answered));
    return out;
}
// The row of a process on a GPU ("": on none); empty: there is none.
Row row(const std::vector<Row> &all, const Running &process, const std::string &gpu) {
    for (const Row &one : all)
        if (one.at("pid") == process.id() && one.at("gpu") == gpu) return one;
    return {};
}

std::string socket_of(const fs::path &folder, const Running &process) {
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(folder, error))
        if (const std::string name = entry.path().filename();
            name.starts_with(process.id() + "-") && name.ends_with(".sock"))
            return name;
    return {};
}
// Root sees everybody's processes on this machine, those of other tests too: only those of a test count in it.
std::ptrdiff_t rows_with(const std::vector<Row> &all, const Running &process) {
    return std::count_if(all.begin(), all.end(), [&](const Row &one) { return one.at("pid") == process.id(); });
}
// The first line from `from` on that has `text`; the number of lines: there is none.
std::size_t line_with(const Words &all, const std::string &text, std::size_t from = 0) {
    while (from < all.size() && all[from].find(text) == std::string::npos) ++from;
    return from;
}

// A user whose processes are all the test's own, where the test is root's.
const uid_t kSomebody = 200'000 + static_cast<uid_t>(::getpid());
std::function<void()> becoming_somebody() {
    return ::geteuid() == 0 ? becoming(kSomebody) : [] {};
}

// A program that curb can ask, which is some milliseconds after its first call.
class Askable : public Program {
  public:
    explicit Askable(const Machine &machine, const Environment &more = {})
        : Program(machine, with(under_curb(), more)) {
        REQUIRE(within(20s, [&] { return !socket_of(machine.runtime() / "curb", *this).empty(); }));
    }
};

}  // namespace

TEST_CASE("who holds what of two GPUs is what the books of the driver say, capped or not") {
    const Machine machine(kTwoGpus);
    Askable first(machine), second(machine);
    Program bare(machine, {});
    REQUIRE(first.answers("hold 2048 0") == "held");
    REQUIRE(first.answers("hold 1024 1") == "held");
    REQUIRE(second.answers("hold 512 1") == "held");
    REQUIRE(bare.answers("hold 300 1") == "held");
    const auto all = rows(machine);
    for (const Running *process : std::vector<const Running *>{&first, &second, &bare}) {
        for (const int device : {0, 1}) {
            CAPTURE(process->id(), device);
            Row one = row(all, *process, std::to_string(device));
            REQUIRE(!one.empty());
            const std::string books = std::to_string(machine.held_of(device, process->pid()));
            CHECK(one["nvml_bytes"] == books);
            CHECK(one["held_bytes"] == (process == &bare ? "" : books));
            CHECK(one["under_curb"] == (process == &bare ? "no" : "yes"));
            CHECK(one["state"] == "running");
            CHECK_THAT(one["command"], contains("scenarios does_what_it_is_told"));
        }
    }
    for (const Running *process : std::vector<const Running *>{&first, &second, &bare})
        CHECK(rows_with(all, *process) == 2);
    const Outcome table = machine.curb({"ps"});
    CHECK(table.err.empty());
    const Words out = lines(table.out);
    const std::size_t one = line_with(out, "GPU 0  NVIDIA H100 80GB HBM3"), two = line_with(out, "GPU 1  ");
    REQUIRE(one < two);
    REQUIRE(two < out.size());
    CHECK_THAT(out[one], contains(" used, ") && contains(" free"));
    for (const std::size_t gpu : {one, two}) {
        const std::size_t largest = line_with(out, "  " + first.id() + "  ", gpu);
        CHECK(largest < line_with(out, "  " + second.id() + "  ", gpu));
        CHECK(largest < line_with(out, "  " + bare.id() + "  ", gpu));
    }
    CHECK(line_with(out, "  " + first.id() + "  ", one) < two);
}

TEST_CASE("a process that is stopped or stuck keeps nobody waiting, and what NVML says of it stands in") {
    const Machine machine;
    Askable good(machine), stopped(machine), computing(machine);
    REQUIRE(stopped.answers("hold 1024") == "held");
    REQUIRE(computing.answers("submit 0") == "submitting");  // its CUDA call does not return
    stopped.kill(SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = machine.curb({"ps"});
    CHECK(std::chrono::steady_clock::now() - begin < 300ms + 2s);
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, contains(stopped.id() +
                                     " (scenarios) runs under curb, and has not answered for 300 ms: it is stopped; "
                                     "kill -CONT " +
                                     stopped.id() + "; NVML says that it holds 1.51 GiB of GPU 0"));
    const auto all = rows(machine);
    CHECK(row(all, stopped, "0").at("state") == "stopped");
    CHECK(row(all, stopped, "0").at("held_bytes").empty());
    CHECK(row(all, stopped, "0").at("nvml_bytes") == std::to_string(machine.held_of(0, stopped.pid())));
    CHECK(row(all, computing, "0").at("held_bytes") == std::to_string(machine.held_of(0, computing.pid())));
    CHECK(row(all, good, "0").at("state") == "running");
    const Outcome one = machine.curb({"ps", stopped.id()});
    CHECK(one.status == 1);
    CHECK_THAT(one.out, contains("silent") && contains("it is stopped") && contains("NVML says   1.51 GiB"));
    stopped.kill(SIGCONT);
    CHECK(within(20s, [&] { return machine.curb({"ps", stopped.id()}).status == 0; }));
    computing.tell("");
    CHECK(computing.says() == "ended");
}

TEST_CASE("what was killed is gone, with its socket") {
    const Machine machine;
    Askable kept(machine), killed(machine);
    killed.kill(SIGKILL);
    CHECK(within(20s, [&] { return row(rows(machine), killed, "0").empty(); }));  // a zombie until it is waited for
    killed.end();
    CHECK(row(rows(machine), killed, "0").empty());
    CHECK(!row(rows(machine), kept, "0").empty());
    CHECK(socket_of(machine.runtime() / "curb", killed).empty());
    const Outcome gone = machine.curb({"ps", killed.id()});
    CHECK(gone.status == 1);
    CHECK(gone.out.empty());
    CHECK(gone.err == "curb: there is no process " + killed.id() + "\n");
}

TEST_CASE("a suspended process is said to be") {
    const Machine machine;
    Askable program(machine);
    REQUIRE(program.answers("hold 1024") == "held");
    REQUIRE(machine.curb({"suspend", "--force", program.id()}).status == 0);
    CHECK(row(rows(machine), program, "0").at("state") == "suspended");
    CHECK(row(rows(machine), program, "0").at("nvml_bytes") == std::to_string(machine.held_of(0, program.pid())));
    CHECK_THAT(machine.curb({"ps"}).out, contains(program.id() +
                                                  " (scenarios) is suspended: what it held is in host "
                                                  "memory until: curb resume " +
                                                  program.id()));
    CHECK_THAT(machine.curb({"doctor", program.id()}).out, contains("is suspended: its memory is in host memory") &&
                                                               contains("in host memory until it is resumed"));
    REQUIRE(machine.curb({"resume", program.id()}).status == 0);
    CHECK(row(rows(machine), program, "0").at("state") == "running");
}

TEST_CASE("a request that waits is shown, by ps, doctor and metrics") {
    const Machine machine;
    const fs::path policy = machine.folder() / "waits.json";
    std::ofstream(policy) << R"({ "version": 1, "gpu": { "*": { "cap": "4GiB", "growth":
        { "start": "640MiB", "step": "1GiB", "every": "1h", "wait": "10m" } } } })";
    Program program(machine, {{"LD_PRELOAD", preloaded(CURB_LIBRARY)}, {"CURB_POLICY", policy.string()}});
    REQUIRE(within(20s, [&] { return !socket_of(machine.runtime() / "curb", program).empty(); }));
    REQUIRE(program.answers("hold 32") == "held");
    REQUIRE(program.answers("ask") == "ok");
    const auto doctor = [&] { return machine.curb({"doctor", program.id()}).out; };
    const auto is_shown = [&] { return doctor().find("it waits on cuda:0 for 64 MiB since ") != std::string::npos; };
    REQUIRE(within(20s, is_shown));
    CHECK_THAT(doctor(), contains("it met the allowance; the next growth step is due in "));
    CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("requests that wait") && contains("64 MiB since "));
    CHECK_THAT(machine.curb({"metrics"}).out, contains("\ncurb_waiting_bytes{"));
}

TEST_CASE("a forked child of a capped process is not taken for one") {
    const Machine machine;
    Running parent({CURB_SCENARIOS, "does_what_it_is_told"}, with(machine.environment(), under_curb()));
    REQUIRE(parent.says() == "ready");
    REQUIRE(within(20s, [&] { return !row(rows(machine), parent, "0").empty(); }));
    const pid_t child = std::stoi(parent.answers("fork and stay"));
    const auto all = rows(machine);
    CHECK(rows_with(all, parent) == 1);
    CHECK(std::none_of(all.begin(), all.end(), [&](const Row &one) { return one.at("pid") == std::to_string(child); }));
    CHECK(row(all, parent, "0").at("under_curb") == "yes");
    const Outcome one = machine.curb({"ps", std::to_string(child)});
    CHECK(one.status == 1);
    CHECK_THAT(one.out, contains("process " + std::to_string(child)) && contains("has no control socket"));
    ::kill(child, SIGKILL);
}

TEST_CASE("a user sees others' processes by NVML's figures, root sees all") {
    if (const std::string why = no_other_user(CURB_BINARY); !why.empty()) return skip(why);
    const std::string folder = "/tmp/curb-" + std::to_string(kSomebody);
    const Machine machine;
    Askable roots(machine);
    fs::permissions(machine.folder(), fs::perms(0755));
    fs::permissions(machine.state_file(), fs::perms(0666));
    Environment theirs = machine.environment();
    theirs.erase("XDG_RUNTIME_DIR");  // so it is below /tmp, where root looks too
    Running users({CURB_SCENARIOS, "does_what_it_is_told"}, with(theirs, under_curb()), becoming_somebody());
    REQUIRE(users.says() == "ready");
    REQUIRE(within(20s, [&] { return !socket_of(folder, users).empty(); }));

    CHECK(row(rows(machine), users, "0").at("under_curb") == "yes");
    CHECK(row(rows(machine), users, "0").at("user") == std::to_string(kSomebody));
    CHECK(row(rows(machine), roots, "0").at("user") == "root");
    const auto as_user = [&](Words words) {
        words.insert(words.begin(), {CURB_BINARY, "ps"});
        return start({words, theirs, {}, {}, becoming_somebody()});
    };
    const auto seen = rows_of(as_user({"--json"}).out);
    CHECK(row(seen, users, "0").at("held_bytes") == std::to_string(machine.held_of(0, users.pid())));
    CHECK(row(seen, roots, "0").at("under_curb") == "no");
    CHECK(row(seen, roots, "0").at("held_bytes").empty());
    CHECK(row(seen, roots, "0").at("nvml_bytes") == std::to_string(machine.held_of(0, roots.pid())));
    const Outcome foreign = as_user({roots.id()});
    CHECK(foreign.status == 1);
    CHECK_THAT(foreign.err, contains("belongs to user 0: ask as that user, or as root; NVML says that it holds "));
    CHECK(users.finish() == 0);
    fs::remove_all(folder);
}

TEST_CASE("what cannot be shown is said with the reason, and the rest is shown") {
    const Machine machine;
    Askable capped(machine);
    Program bare(machine, {});
    const Outcome outcome = machine.curb({"ps", capped.id(), bare.id(), "2147483647"});
    CHECK(outcome.status == 1);
    CHECK_THAT(outcome.out, contains("process " + capped.id() + " (scenarios) of ") && !contains(bare.id()));
    CHECK(outcome.err == "curb: process " + bare.id() +
                             " does not run under curb; start it by: curb run -- COMMAND; NVML says that it holds 518 "
                             "MiB of GPU 0\ncurb: there is no process 2147483647\n");
    const Outcome json = machine.curb({"ps", "--json", bare.id()});
    CHECK(json.status == 1);
    CHECK(json.err.empty());
    CHECK_THAT(json.out, contains("\"gpus\":[],\"processes\":[],\"errors\":[{\"pid\":" + bare.id() + ",\"message\":"));
    const std::string no_pid = "is not the pid of a process\ncurb: see curb ps --help",
                      no_time = "is no time between two";
    for (const auto &[words, why] : std::vector<std::pair<Words, std::string>>{{{"0"}, no_pid},
                                                                               {{"x"}, no_pid},
                                                                               {{"--", "-1"}, no_pid},
                                                                               {{"--watch", "0"}, no_time},
                                                                               {{"--watch", "x"}, no_time},
                                                                               {{"--watch", "10ms"}, no_time}}) {
        CAPTURE(words.back());
        Words all{"ps"};
        all.insert(all.end(), words.begin(), words.end());
        const Outcome wrong = machine.curb(all);
        CHECK(wrong.status == 125);
        CHECK(wrong.out.empty());
        CHECK_THAT(wrong.err, contains(why));
    }
}

TEST_CASE("without NVML there is what capped processes say, and where it lists nobody, too") {
    const Machine machine;
    Askable capped(machine);
    Program bare(machine, {});
    REQUIRE(capped.answers("hold 1024") == "held");
    const Outcome blind = machine.curb({"ps"}, {{"CURB_SIM_NVML", "broken"}});
    CHECK(blind.status == 0);
    CHECK_THAT(blind.out, contains("GPU-c07b513d  80 GiB") && contains(capped.id() + "  ") && !contains(bare.id()) &&
                              contains("NVML cannot be initialised") &&
                              contains("so there is only what capped processes say"));
    const auto all = rows(machine, {{"CURB_SIM_NVML", "nopids"}});
    CHECK(row(all, capped, "0").at("held_bytes") == std::to_string(machine.held_of(0, capped.pid())));
    CHECK(row(all, capped, "0").at("nvml_bytes").empty());
    CHECK(row(all, bare, "0").empty());
}

TEST_CASE("an instance of a divided GPU stands under it, with its processes") {
    const Environment mig{{"CURB_SIM_MIG", "1"}};
    const Machine machine(mig);
    Askable capped(machine);
    REQUIRE(capped.answers("hold 1024") == "held");
    const auto all = rows(machine);
    REQUIRE(rows_with(all, capped) == 1);
    const Row one = row(all, capped, "0");
    CHECK_THAT(one.at("uuid"), contains("MIG-"));
    CHECK_THAT(one.at("parent"), contains("GPU-"));
    CHECK(one.at("held_bytes") == std::to_string(machine.held_of(0, capped.pid())));
    CHECK(one.at("nvml_bytes") == one.at("held_bytes"));
    const Words out = lines(machine.curb({"ps"}).out);
    const std::size_t gpu = line_with(out, "GPU 0  "), instance = line_with(out, "GPU 0 MIG 0  ");
    CHECK(gpu < instance);
    CHECK(instance < line_with(out, "  " + capped.id() + "  "));
    CHECK(line_with(out, "  " + capped.id() + "  ") < out.size());
}

TEST_CASE("of a command line as long as a process likes its beginning is shown") {
    const Machine machine;
    Running wordy({CURB_SCENARIOS}, with(machine.environment(), under_curb()), [] {
        Words words{std::string(120'000, 'x'), "does_what_it_is_told"};
        ::execv(CURB_SCENARIOS, pointers(words).data());
    });
    REQUIRE(wordy.says() == "ready");
    REQUIRE(within(20s, [&] { return !socket_of(machine.runtime() / "curb", wordy).empty(); }));
    const std::string command = row(rows(machine), wordy, "0").at("command");
    CHECK_THAT(command, contains("xxx"));
    CHECK(command.size() <= 64 << 10);
}

TEST_CASE("a machine on which nobody does anything is said to be one") {
    if (const std::string why = no_other_user(CURB_BINARY); ::geteuid() == 0 && !why.empty()) return skip(why);
    const Machine machine;
    fs::permissions(machine.folder(), fs::perms::all);
    Environment environment = machine.environment();
    environment.erase("XDG_RUNTIME_DIR");
    const auto as_somebody = [&](Words words) {
        words.insert(words.begin(), {CURB_BINARY, "ps"});
        return start({words, environment, {}, {}, becoming_somebody()});
    };
    const Outcome outcome = as_somebody({});
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, contains("GPU 0") && contains("no process is on a GPU, and none runs under curb"));
    CHECK_THAT(as_somebody({"--json"}).out, contains("\"processes\":[],\"errors\":[]}"));
}

TEST_CASE("a framework whose allocator returns nothing is named, with the remedy, and one that does is not") {
    struct Case {
        const char *library;
        Environment more;
        const char *named;  // "": none
        const char *takes = "hold 1024 0";
    };
    const auto one = GENERATE(as<Case>{}, Case{"libtensorflow_framework.so.2", {}, "TensorFlow"},
                              Case{"libtensorflow_framework.so.2", {{"TF_GPU_ALLOCATOR", "BFC"}}, "TensorFlow"},
                              Case{"libtensorflow_framework.so.2", {{"TF_GPU_ALLOCATOR", "cuda_malloc_async"}}, ""},
                              Case{"xla_cuda_plugin.so", {}, "JAX"},
                              Case{"xla_cuda_plugin.so", {{"XLA_PYTHON_CLIENT_ALLOCATOR", "VMM"}}, "JAX"},
                              Case{"xla_cuda_plugin.so", {{"XLA_PYTHON_CLIENT_ALLOCATOR", "Platform"}}, ""},
                              Case{"libtensorflow_framework.so.2", {}, "", "pool"},  // by an option of its own
                              Case{"libc10_cuda.so", {}, ""});
    CAPTURE(one.library, one.more, one.takes);
    const Machine machine;
    Askable program(machine, with(with_library(machine, one.library), one.more));
    REQUIRE_THAT(program.answers(one.takes), contains("held") || contains("ok"));
    const std::string note = std::string(one.named) +
                             "'s allocator returns nothing before the process ends; if it starts "
                             "under a policy with \"frameworks\": { \"steer\": true }";
    const Outcome shown = machine.curb({"ps", program.id()}), released = machine.curb({"release", program.id()});
    const std::string json = machine.curb({"ps", "--json", program.id()}).out,
                      release = machine.curb({"release", "--json", program.id()}).out;
    CHECK(released.status == 0);
    if (!*one.named) {
        CHECK_THAT(shown.out + released.out, !contains("returns nothing"));
        CHECK_THAT(json, contains(R"("returns_nothing":[])"));
        CHECK_THAT(release, contains(R"("returns_nothing":[])"));
        return;
    }
    CHECK_THAT(shown.out, contains("  release     " + note));
    CHECK_THAT(released.out, contains("  " + note));
    for (const std::string &answer : {json, release})
        CHECK_THAT(answer, contains(R"("returns_nothing":[")" + std::string(one.named) + "\"]"));
}
