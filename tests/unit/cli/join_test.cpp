// join() makes the view of a machine from facts, here made-up ones.
#include "machine/view.hpp"

#include "catch.hpp"

using namespace curb;
using namespace curb::cli;
using policy::Bytes;
using policy::GiB;
using policy::MiB;

namespace {

GpuState gpu(int index, std::vector<GpuUser> users) {
    GpuState out;
    out.index = index;
    out.uuid = "GPU-" + std::to_string(index);
    out.name = "NVIDIA H100 80GB HBM3";
    out.total = 80 * GiB;
    out.used = 20 * GiB;
    out.free = 60 * GiB;
    out.users = std::move(users);
    return out;
}
GpuUser user(int pid, std::optional<Bytes> held) { return {pid, "", held}; }

control::GpuStatus books(const std::string &uuid, Bytes held) {
    control::GpuStatus out;
    out.uuid = uuid;
    out.total = 80 * GiB;
    out.held = held;
    out.contexts = held == 0 ? 0 : 1;
    return out;
}
control::Answer answer(int pid, std::vector<control::GpuStatus> gpus) {
    control::Status status;
    status.pid = pid;
    status.gpus = std::move(gpus);
    return {pid, status};
}
ProcessFacts process(int pid) {
    ProcessFacts out;
    out.pid = pid;
    out.lives = true;
    out.user = "alice";
    out.name = "python3";
    out.command = "python3 train.py";
    return out;
}
ViewFacts facts(std::vector<GpuState> gpus, std::vector<control::Answer> answers, std::vector<ProcessFacts> processes) {
    return {std::move(gpus), std::move(answers), std::move(processes)};
}

const ViewProcess &process_of(const View &view, const ViewUse &use) { return view.processes.at(use.process); }
Bytes held(const View &view, const ViewUse &use) {
    return process_of(view, use).status.value().gpus.at(use.books.value()).held;
}

}  // namespace

TEST_CASE("a process that answers and that NVML lists is joined into one") {
    const View view = join(facts({gpu(0, {user(7, 9 * GiB)})}, {answer(7, {books("GPU-0", 8 * GiB)})}, {process(7)}));
    REQUIRE(view.processes.size() == 1);
    CHECK(view.processes[0].under_curb);
    CHECK(view.processes[0].trouble.empty());
    CHECK(view.processes[0].user == "alice");
    REQUIRE(view.gpus.size() == 1);
    CHECK(view.gpus[0].index == 0);
    CHECK(view.gpus[0].used == 20 * GiB);
    REQUIRE(view.gpus[0].uses.size() == 1);
    CHECK(held(view, view.gpus[0].uses[0]) == 8 * GiB);
    CHECK(view.gpus[0].uses[0].nvml == 9 * GiB);
}

TEST_CASE("devices are joined by UUID, whatever the process's own order of them is") {
    const View view = join(facts({gpu(0, {}), gpu(1, {user(7, GiB)})},
                                 {answer(7, {books("GPU-1", 3 * GiB), books("GPU-0", 2 * GiB)})}, {process(7)}));
    REQUIRE(view.gpus.size() == 2);
    REQUIRE(view.gpus[0].uses.size() == 1);
    REQUIRE(view.gpus[1].uses.size() == 1);
    CHECK(held(view, view.gpus[0].uses[0]) == 2 * GiB);
    CHECK(held(view, view.gpus[1].uses[0]) == 3 * GiB);
    CHECK(view.gpus[0].uses[0].nvml == std::nullopt);
}

TEST_CASE("a process uses the devices on which it holds memory or was refused a request") {
    auto refused = books("GPU-2", 0);
    refused.refused[0] = 1;
    const View view = join(facts({gpu(0, {}), gpu(1, {}), gpu(2, {})},
                                 {answer(7, {books("GPU-0", MiB), books("GPU-1", 0), refused})}, {process(7)}));
    CHECK(view.gpus[0].uses.size() == 1);
    CHECK(view.gpus[1].uses.empty());
    CHECK(view.gpus[2].uses.size() == 1);
}

TEST_CASE("each process is in the view once, whatever is known of it") {
    struct Row {
        const char *what;
        ViewFacts facts;
        bool under_curb, answers;
        const char *trouble;
        std::size_t uses;
    };
    auto mapped = process(7), stopped = process(7);
    mapped.under_curb = true;
    stopped.stopped = true;
    const std::vector<GpuState> unused{gpu(0, {})}, used{gpu(0, {user(7, 5 * GiB)})};
    const std::vector<control::Answer> silent{
        {7, control::Failure{"process 7 has not answered for 300 ms: it is stopped"}}};
    for (const Row &row : std::vector<Row>{
             {"holds nothing yet", facts(unused, {answer(7, {books("GPU-0", 0)})}, {process(7)}), true, true, "", 0},
             {"not under curb", facts(used, {}, {process(7)}), false, false, "", 1},
             {"answers and has curb mapped", facts({}, {answer(7, {books("GPU-0", GiB)})}, {mapped}), true, true, "",
              1},
             {"curb mapped, no socket", facts(used, {}, {mapped}), true, false,
              "has no control socket: see curb doctor 7", 1},
             {"does not answer", facts(used, silent, {stopped}), true, false,
              "has not answered for 300 ms: it is stopped", 1},
             {"another kind of answer", facts(unused, {{7, control::ReleaseReport()}}, {process(7)}), true, false,
              "answers something else than was asked", 0}}) {
        INFO(row.what);
        const View view = join(row.facts);
        REQUIRE(view.processes.size() == 1);
        CHECK(view.processes[0].under_curb == row.under_curb);
        CHECK(view.processes[0].status.has_value() == row.answers);
        CHECK(view.processes[0].trouble == row.trouble);
        CHECK(view.processes[0].stopped == row.facts.processes[0].stopped);
        REQUIRE(view.gpus.at(0).uses.size() == row.uses);
        if (!row.answers && row.uses != 0) {  // only NVML's figure
            CHECK(view.gpus[0].uses[0].books == std::nullopt);
            CHECK(view.gpus[0].uses[0].nvml == 5 * GiB);
        }
    }
}

TEST_CASE("a process that has ended meanwhile is left out") {
    ProcessFacts ended;
    ended.pid = 7;
    const View view =
        join(facts({gpu(0, {user(7, GiB), user(8, GiB)})}, {answer(7, {books("GPU-0", GiB)})}, {ended, process(8)}));
    REQUIRE(view.processes.size() == 1);
    CHECK(view.processes[0].pid == 8);
    REQUIRE(view.gpus[0].uses.size() == 1);
    CHECK(view.gpus[0].uses[0].process == 0);
}

TEST_CASE("a process of another pid namespace is in the view with NVML's figure only") {
    const View view = join(facts({gpu(0, {user(12'345, 5 * GiB)})}, {}, {}));
    REQUIRE(view.processes.size() == 1);
    CHECK(view.processes[0].pid == 12'345);
    CHECK(view.processes[0].elsewhere);
    CHECK(view.processes[0].user.empty());
    CHECK(view.gpus[0].uses.at(0).nvml == 5 * GiB);
}

TEST_CASE("a process of another user has the state, the figures and the cap that it posts, to look at only") {
    control::board::Entry entry;
    entry.state = control::board::State::waiting;
    entry.gpus = {
        {"GPU-1", 3 * GiB, 8 * GiB, MiB, 5}, {"GPU-0", 2 * GiB, std::nullopt, 0, 0}, {"GPU-9", GiB, GiB, 0, 0}};
    auto theirs = process(7);
    theirs.unseen = true;
    ViewFacts known = facts({gpu(0, {user(7, 2 * GiB)}), gpu(1, {})}, {}, {theirs});
    CHECK(is_under_curb(join(known).processes[0]) == std::nullopt);
    CHECK(state_of(join(known).processes[0]) == State::unknown);
    known.posted = {{7, entry}};
    const View view = join(known);
    REQUIRE(view.processes.size() == 1);
    CHECK(is_under_curb(view.processes[0]) == true);
    CHECK_FALSE(view.processes[0].under_curb);
    CHECK(state_of(view.processes[0]) == State::waiting);
    REQUIRE(view.gpus.at(0).uses.size() == 1);
    REQUIRE(view.gpus.at(1).uses.size() == 1);
    CHECK(posted_of(view, view.gpus[0].uses[0])->held == 2 * GiB);
    CHECK(view.gpus[0].uses[0].nvml == 2 * GiB);
    CHECK(posted_of(view, view.gpus[1].uses[0])->cap == 8 * GiB);
    known.posted[0].entry.state = control::board::State::running;
    CHECK(state_of(join(known).processes[0]) == State::running);
    known.posted[0].entry.gpus[0].held = 9 * GiB;
    CHECK(state_of(join(known).processes[0]) == State::over_cap);
}

TEST_CASE("the PID of a process that only the board shows is that of its own pid namespace") {
    control::board::Entry entry;
    entry.process = {1, 100};
    entry.gpus = {{"GPU-0", GiB, std::nullopt, 0, 0}};
    ViewFacts known = facts({gpu(0, {user(7, GiB)})}, {}, {process(7)});
    known.posted = {{0, entry, "alice"}};
    const View view = join(known);
    REQUIRE(view.processes.size() == 2);
    CHECK(has_pid_here(view.processes[0]));
    CHECK(view.processes[1].pid == 1);
    CHECK_FALSE(has_pid_here(view.processes[1]));
}

TEST_CASE("processes of several pid namespaces with one PID are apart, and each has its own uses") {
    const auto posted = [](std::uint64_t pid_namespace, std::uint64_t start, Bytes held) {
        control::board::Entry entry;
        entry.process = {7, start};
        entry.pid_namespace = pid_namespace;
        entry.gpus = {{"GPU-0", held, std::nullopt, 0, 0}};
        return PostedFacts{0, entry, "root"};
    };
    ViewFacts known = facts({gpu(0, {user(7, 3 * GiB)})}, {}, {process(7)});
    known.posted = {posted(1, 100, GiB), posted(2, 100, 2 * GiB), posted(2, 90, 5 * GiB)};  // the last has ended
    const View view = join(known);
    REQUIRE(view.processes.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(view.processes[i].pid == 7);
        CHECK(namespace_of(view.processes[i]) == i);
        const View one = only(view, {i});
        REQUIRE(one.processes.size() == 1);
        REQUIRE(one.gpus.at(0).uses.size() == 1);
        const auto *of_board = posted_of(one, one.gpus[0].uses[0]);
        CHECK((of_board ? of_board->held : one.gpus[0].uses[0].nvml) == (i == 0 ? 3 : i) * GiB);
    }
}

TEST_CASE("memory that a process has not used for a minute is idle, unless the process is out of its GPUs") {
    control::board::Entry entry;
    entry.used = 1'000'000;
    entry.gpus = {{"GPU-0", 2 * GiB, std::nullopt, 0, 0}};
    ViewFacts known = facts({gpu(0, {user(7, 2 * GiB)})}, {answer(7, {books("GPU-0", 3 * GiB)})}, {process(7)});
    const auto idle = [&] { return join(known).gpus[0].uses[0].idle; };
    known.now = entry.used + 60'000;
    CHECK(idle() == std::nullopt);  // no post says when it used it
    known.posted = {{7, entry}};
    CHECK(idle() == 3 * GiB);
    CHECK(idle_on(join(known).gpus[0], join(known)) == std::map<std::string, Bytes>{{"alice", 3 * GiB}});
    --known.now;
    CHECK(idle() == 0);
    CHECK(idle_on(join(known).gpus[0], join(known)).empty());
    known.now += 3'600'000;
    known.answers.clear();
    CHECK(idle() == 2 * GiB);
    known.posted[0].entry.gpus[0].held.reset();
    CHECK(idle() == std::nullopt);
    known.posted[0].entry = entry;
    known.posted[0].entry.state = control::board::State::napping;
    CHECK(idle() == 0);
}

TEST_CASE("the largest use comes first, by whichever figure is the larger, and equal ones by pid") {
    const View view = join(facts({gpu(0, {user(1, GiB), user(2, 6 * GiB), user(4, GiB), user(3, std::nullopt)})},
                                 {answer(1, {books("GPU-0", 7 * GiB)}), answer(3, {books("GPU-0", 2 * GiB)})},
                                 {process(1), process(2), process(3), process(4)}));
    std::vector<int> order;
    for (const ViewUse &use : view.gpus[0].uses) order.push_back(process_of(view, use).pid);
    CHECK(order == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("without NVML the view has the figures of the capped processes") {
    ViewFacts blind{std::string("there is no NVML"), {}, {process(7), process(8)}};
    blind.answers = {answer(7, {books("GPU-b", GiB)}), answer(8, {books("GPU-b", 2 * GiB), books("GPU-a", GiB)})};
    const View view = join(blind);
    CHECK(view.nvml_fault == "there is no NVML");
    REQUIRE(view.gpus.size() == 2);
    for (const ViewGpu &gpu : view.gpus) {
        CHECK(gpu.index == std::nullopt);
        CHECK(gpu.used == std::nullopt);
        CHECK(gpu.free == std::nullopt);
        CHECK(gpu.total == 80 * GiB);
    }
    CHECK(view.gpus[0].uuid == "GPU-b");
    CHECK(view.gpus[0].uses.size() == 2);
    CHECK(view.gpus[1].uses.size() == 1);
}

TEST_CASE("an instance of a divided GPU stands under it, by its own UUID, with the processes that are on it") {
    GpuState divided = gpu(0, {user(7, std::nullopt), user(9, std::nullopt), user(5, std::nullopt)});
    divided.mig = true;
    GpuState instance = gpu(0, {user(7, 3 * GiB), user(9, GiB)});
    instance.uuid = "MIG-a";
    instance.mig = true;
    divided.instances = {instance};
    auto own = books("MIG-a", 2 * GiB);
    own.parent = "GPU-0";
    const View view = join(facts({divided, gpu(1, {})}, {answer(7, {own})}, {process(5), process(7), process(9)}));
    REQUIRE(view.gpus.size() == 3);
    CHECK(view.gpus[1].uuid == "MIG-a");
    CHECK(view.gpus[1].parent == "GPU-0");
    REQUIRE(view.gpus[1].uses.size() == 2);
    CHECK(held(view, view.gpus[1].uses[0]) == 2 * GiB);
    REQUIRE(view.gpus[0].uses.size() == 1);  // its instance is unknown
    CHECK(process_of(view, view.gpus[0].uses[0]).pid == 5);
}

TEST_CASE("an instance that NVML does not list stands under its GPU, too") {
    GpuState divided = gpu(0, {user(7, std::nullopt)});
    divided.mig = true;
    auto first = books("MIG-a", 2 * GiB), second = books("MIG-b", 0);
    first.parent = second.parent = "GPU-0";
    second.contexts = 1;
    const View view = join(facts({divided, gpu(1, {})}, {answer(7, {first, second})}, {process(7)}));
    REQUIRE(view.gpus.size() == 4);
    CHECK(view.gpus[0].uses.empty());
    CHECK(view.gpus[1].uuid == "MIG-a");
    CHECK(view.gpus[1].index == std::nullopt);
    CHECK(view.gpus[1].mig);
    CHECK(view.gpus[2].uuid == "MIG-b");
    CHECK(view.gpus[3].uuid == "GPU-1");
}
