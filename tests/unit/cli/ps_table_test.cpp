// The exact text of `curb ps` for made-up machines, at the widths of terminals.
#include <cstdlib>
#include <set>

#include "catch.hpp"
#include "lines_of.hpp"
#include "policy/values/words.hpp"
#include "ps/ps_text.hpp"
#include "terminal/text_width.hpp"
#include "views.hpp"

using namespace views;

namespace {

std::string table(const View &view, std::optional<std::size_t> width, bool colour = false) {
    ::setenv("TZ", "UTC", 1);
    return ps_table(view, {width, std::nullopt, colour}, kNow);
}

// Returns the notes below the table, one a line.
std::string notes_of(View view) {
    std::string out;
    for (const std::string &note : ps_notes(view, kNow)) out += note + "\n";
    return out;
}
View one_process() {
    View view;
    ViewGpu first = gpu(0, 8 * GiB);
    view.processes = {process(7, "alice", "python3 a.py")};
    give_books(view.processes[0], first, 4 * GiB, 8 * GiB);
    first.uses = {{0, 0, 4 * GiB}};
    view.gpus = {first};
    return view;
}
control::GpuStatus &books(View &view) { return view.processes[0].status->gpus[0]; }

}  // namespace

TEST_CASE("a wide terminal shows everything") {
    const std::string wide = table(machine(), std::nullopt);
    CHECK("\n" + wide == R"(
   PID  USER      HELD      NVML    CAP  ALLOWANCE   CACHED  REFUSED  RELEASED  STATE    COMMAND
GPU 0  NVIDIA H100 80GB HBM3  35.5 GiB of 80 GiB used, 44.5 GiB free
  4712  bob          -    20 GiB      -          -        -        -         -  no curb  /opt/conda/bin/python3 -m notebook
  4711  alice  7.5 GiB  7.63 GiB  8 GiB      8 GiB  512 MiB       12     3 GiB  running  python3 train_bert.py --lr 1e-4 --batch-size 256
  4800  alice        -     7 GiB      -          -        -        -         -  stopped  python3 serve.py
GPU 1  NVIDIA H100 80GB HBM3  0 B of 80 GiB used, 80 GiB free

4711 (python3) was refused 12 requests on GPU 0, last 12:30:04: 2 GiB hit the cap; help: raise it: curb cap 4711 10GiB
4800 (python3) runs under curb, and has not answered for 300 ms: it is stopped; kill -CONT 4800; NVML says that it holds 7 GiB of GPU 0
)");
    CHECK(table(machine(), 400) == wide);
}

TEST_CASE("a wide terminal shows the job and the container of each process, where one has any") {
    View view = one_process();
    view.processes.push_back(process(8, "bob", "python3 b.py"));
    view.gpus[0].uses.push_back({1, {}, 2 * GiB});
    CHECK_THAT(table(view, std::nullopt), !contains("JOB") && !contains("CONTAINER"));
    view.processes[0].status->job = "slurm 4711";
    CHECK_THAT(table(view, std::nullopt), contains("  JOB         COMMAND\n") &&
                                              contains("  slurm 4711  python3 a.py\n") &&
                                              contains("  -           python3 b.py\n") && !contains("CONTAINER"));
    view.processes[1].container = "3f2a9c0b1d4e";
    CHECK_THAT(table(view, 200), contains("  JOB         CONTAINER     COMMAND\n") &&
                                     contains("  slurm 4711  -             python3 a.py\n") &&
                                     contains("  -           3f2a9c0b1d4e  python3 b.py\n"));
    CHECK_THAT(table(view, 80), !contains("JOB") && !contains("CONTAINER") && contains("HELD"));
}

TEST_CASE("each process has one state, the most important that applies") {
    View view = one_process();
    ViewProcess &one = view.processes[0];
    const auto state = [&] { return state_name(state_of(one, one.status ? &one.status->gpus[0] : nullptr)); };
    CHECK(state() == std::string("running"));
    one.status->releasing = true;
    CHECK(state() == std::string("releasing"));
    books(view).held = 9 * GiB;
    CHECK(state() == std::string("over cap"));
    books(view).waiting = 1;
    CHECK(state() == std::string("waiting"));
    CHECK(state_of(one) == State::waiting);  // on any of its GPUs
    const control::GpuStatus other;
    CHECK(state_of(one, &other) == State::releasing);
    one.stopped = true;
    CHECK(state() == std::string("stopped"));
    one.suspended = true;
    CHECK(state() == std::string("suspended"));
    one.status->nap = control::NapStatus{.out = true, .since = kNow - 60'000, .bytes = 4 * GiB, .refused = {}};
    CHECK(state() == std::string("napping"));
    CHECK_THAT(table(view, 80), contains("  napping  "));
    CHECK(notes_of(view) == "7 (python3) naps since 12:30:04: its memory is in host memory until its next CUDA call\n");
    View beside = view;
    beside.processes.push_back(process(8, "bob", "python3 b.py"));
    beside.gpus[0].uses.push_back({1, std::nullopt, 3 * GiB});
    beside.processes[0].status->nap->no_room_since = kNow - 5'000;
    CHECK_THAT(notes_of(beside),
               contains("and a call has waited 5 s for room to come back; 8 (python3) holds 3 GiB of GPU 0"));
    one.suspended = one.stopped = false;
    one.status.reset();
    CHECK(state() == std::string("silent"));
    one.under_curb = false;
    CHECK(state() == std::string("no curb"));
    one.elsewhere = true;
    CHECK(state() == std::string("unknown"));
}

TEST_CASE("a narrow terminal loses the least important columns, and the ends of commands") {
    const auto first_line = [](std::size_t width) { return lines_of(table(machine(), width)).front(); };
    CHECK(first_line(120) ==
          "   PID  USER      HELD      NVML    CAP  ALLOWANCE   CACHED  REFUSED  RELEASED  STATE    COMMAND");
    CHECK(first_line(60) == "   PID     HELD      NVML    CAP  STATE    COMMAND");
    CHECK(first_line(80) == "   PID  USER      HELD      NVML    CAP  REFUSED  STATE    COMMAND");
    CHECK_THAT(table(machine(), 80), contains("\nGPU 0  NVIDIA H100 80GB HBM3  35.5 GiB") &&
                                         contains("  python3 -m notebook\n") && contains("  python3 train_bert.p…\n"));
    CHECK("\n" + table(machine(), 40) == R"(
   PID     HELD  STATE    COMMAND
GPU 0  35.5 GiB of 80 GiB used
  4712   20 GiB  no curb  python3 -m no…
  4711  7.5 GiB  running  python3 train…
  4800    7 GiB  stopped  python3 serve…
GPU 1  0 B of 80 GiB used, 80 GiB free

4711 (python3) was refused 12 requests
  on GPU 0, last 12:30:04: 2 GiB hit the
  cap; help: raise it: curb cap 4711
  10GiB
4800 (python3) runs under curb, and has
  not answered for 300 ms: it is
  stopped; kill -CONT 4800; NVML says
  that it holds 7 GiB of GPU 0
)");
}

TEST_CASE("of the columns that are there in the narrowest terminal, the state stays longest") {
    View view = machine();
    ViewUse &first = view.gpus[0].uses[1];
    view.processes[0].status->gpus[0].held = 79 * GiB + 256 * MiB;
    view.processes[0].status->gpus[0].cap = 79 * GiB + 256 * MiB;
    first.nvml = 79 * GiB + 256 * MiB;
    const auto first_line = [&](std::size_t width) { return lines_of(table(view, width)).front(); };
    CHECK(first_line(60) == "   PID       HELD       NVML        CAP  STATE    COMMAND");
    CHECK(first_line(50) == "   PID       HELD        CAP  STATE    COMMAND");
    CHECK(first_line(38) == "   PID       HELD  STATE    COMMAND");
    first.idle = GiB;  // held without use: more than what could be released
    CHECK_THAT(first_line(90), contains("IDLE") && !contains("RELEASED"));
}

TEST_CASE("no line is wider than the terminal, whatever is in it") {
    View view = machine();
    view.processes[0].user = "someone_with_a_long_name";
    view.processes[1].command = "訓練 " + std::string(300, 'x');
    view.processes[2].trouble = std::string(300, 'y');
    view.gpus[1].name = "グラフィックス " + std::string(100, 'z');
    for (std::size_t width = 34; width < 200; ++width) {
        CAPTURE(width);
        for (const std::string &line : lines_of(table(view, width))) CHECK(width_of(line) <= width);
    }
    for (const std::size_t width : {1, 5, 10, 20}) CHECK(!table(view, width).empty());
}

TEST_CASE("columns stay aligned beside wide and combining characters and beside bytes that are no text") {
    View view = machine();
    view.processes[0].user = "日本";
    view.processes[1].user = "Zoe\u0308";  // with a combining mark
    view.processes[2].user = "\xFF\xFE";
    std::set<std::size_t> begins;  // of the commands
    for (const std::string &line : lines_of(table(view, 120)))
        if (const std::size_t at = std::min(line.find("python3 "), line.find("/opt/")); line.starts_with("  4"))
            begins.insert(width_of(line.substr(0, at)));
    CHECK(begins.size() == 1);
}

TEST_CASE("control characters are not printed to the terminal") {
    View view = machine();
    view.processes[0].command = "python3 \x1b[2J\n\x07 \u009B2J \u202Ereversed";
    view.processes[0].name = "a\x1b[31m";
    view.processes[0].user = "\r";
    view.gpus[0].name = "\x1b]0;title\x07";
    view.processes[0].status->policy.error = "\x1b[2J";
    for (const std::string &text : {table(view, std::nullopt), ps_detail(view, 0, {}, kNow)}) {
        for (const char *control : {"\x1b", "\r", "\x07", "\u009B", "\u202E"}) CHECK_THAT(text, !contains(control));
        CHECK_THAT(text, contains("python3 \\x1B[2J\\x0A"));
    }
}

TEST_CASE("colours mark figures over the cap, refusals, silent processes and those that are not under curb") {
    View view = machine();
    const std::string text = table(view, std::nullopt, true);
    CHECK_THAT(text, contains("\x1b[33m12\x1b[0m"));
    CHECK_THAT(text, contains("\x1b[2m4712\x1b[0m"));
    CHECK_THAT(text, contains("\x1b[33m4800\x1b[0m"));
    CHECK_THAT(text, contains("\x1b[1mGPU 1"));
    CHECK_THAT(text, !contains("\x1b[31m"));
    view.processes[0].status->gpus[0].cap = 7 * GiB;
    CHECK_THAT(table(view, std::nullopt, true), contains("\x1b[31m7.5 GiB\x1b[0m"));
    std::string uncoloured = table(view, 60, true);
    for (std::size_t at; (at = uncoloured.find('\x1b')) != std::string::npos;)
        uncoloured.erase(at, uncoloured.find('m', at) - at + 1);
    CHECK(uncoloured == table(view, 60));
}

TEST_CASE("what other users' processes tell is in the table, and what is held without use") {
    View view = one_process();
    view.processes.push_back(process(8, "bob", "python3 b.py"));
    view.processes[1].unseen = true;
    view.gpus[0].uses.push_back({1, std::nullopt, 3 * GiB});
    CHECK_THAT(table(view, std::nullopt),
               contains("  unknown  python3 b.py\n") && !contains("no curb") && !contains("IDLE"));
    view.processes[1].posted.emplace().gpus = {{"GPU-0", 2 * GiB, 5 * GiB, 0, 0}};
    view.gpus[0].uses[1].posted = 0;
    view.gpus[0].uses[1].idle = 2 * GiB;
    CHECK_THAT(table(view, std::nullopt), contains("  IDLE  STATE ") && contains("  2 GiB  3 GiB  5 GiB ") &&
                                              contains("  2 GiB  running  python3 b.py\n"));
    CHECK_THAT(notes_of(view), contains("2 GiB of GPU 0 is held without use for a minute or more: bob 2 GiB\n"));
}

TEST_CASE("an empty machine has a line that says so") {
    View view;
    view.gpus = {gpu(0, 0)};
    CHECK(table(view, 80) ==
          "GPU 0  NVIDIA H100 80GB HBM3  0 B of 80 GiB used, 80 GiB free\n\n"
          "no process is on a GPU, and none runs under curb\n");
    view = View();
    CHECK(table(view, 80) == "no process is on a GPU, and none runs under curb\n");
    view.nvml_fault = "there is no NVML (libnvidia-ml.so.1 cannot be loaded)";
    CHECK(table(view, std::nullopt) ==
          "no process that can be asked runs under curb\n"
          "there is no NVML (libnvidia-ml.so.1 cannot be loaded); so only processes under curb are shown\n");
}

TEST_CASE("a process that holds nothing, or does not answer, stands below the GPUs") {
    View view = one_process();
    view.processes.push_back(process(8, "alice", "sleep"));
    view.processes[1].under_curb = true;
    view.processes[1].status.emplace();
    view.processes.push_back(process(9, "alice", "stuck"));
    view.processes[2].under_curb = true;
    view.processes[2].trouble = "has not answered";
    const auto all = lines_of(table(view, std::nullopt));
    REQUIRE(all.size() >= 6);
    CHECK(all[3] == "on no GPU");
    CHECK_THAT(all[4], contains("  8  alice    0 B") && contains("sleep"));
    CHECK_THAT(all[5], contains("  9  alice      -") && contains("stuck"));
}

TEST_CASE(
    "instances stand under their GPU, and a device that NVML does not list is named by the beginning of its UUID") {
    View view;
    view.gpus = {gpu(0, GiB), gpu(0, GiB), gpu(1, GiB)};
    view.gpus[1].uuid = "MIG-12345678-0000-4000-8000-000000000000";
    view.gpus[1].parent = view.gpus[0].uuid;
    CHECK(gpu_label(view, view.gpus[1]) == "GPU 0 MIG 0");
    view.gpus[1].index = std::nullopt;
    CHECK(gpu_label(view, view.gpus[1]) == "GPU 0 MIG-12345678");
    view.gpus[0].index = std::nullopt;
    CHECK(gpu_label(view, view.gpus[0]) == "GPU-8f3a1b2c");
    CHECK(gpu_label(view, view.gpus[1]) == "GPU-8f3a1b2c MIG-12345678");
    view.gpus[0].parent = view.gpus[0].uuid;  // a wrong report of a process must not make it loop
    CHECK(!gpu_label(view, view.gpus[0]).empty());
    view.gpus[0].used = view.gpus[0].free = std::nullopt;
    CHECK_THAT(table(view, 80), contains("NVIDIA H100 80GB HBM3  80 GiB\n"));
}

TEST_CASE("each problem of a process has a note with its remedy") {
    const auto noted = [](const auto &...changes) {
        View view = one_process();
        (changes(view), ...);
        return notes_of(view);
    };
    CHECK(noted().empty());
    const auto over = [](View &view) { books(view).held = 9 * GiB; };
    CHECK(noted(over) ==
          "7 (python3) holds 1 GiB more than its cap of 8 GiB; new requests wait or are refused until it holds less\n");
    CHECK_THAT(noted(over, [](View &view) { view.processes[0].status->releasing = true; }),
               contains("a release is under way"));
    CHECK_THAT(noted(over, [](View &view) { view.gpus.push_back(gpu(1, 0)); }),
               contains("holds 1 GiB more on GPU 0 than its cap"));
    CHECK(noted([](View &view) { books(view).held = 8 * GiB; }).empty());
    CHECK(noted([](View &view) {
              books(view).live_cap = policy::Size{policy::Size::Unit::bytes, 10 * GiB};
          }) ==
          "7 (python3) has a cap that was set by curb cap: 10GiB; curb cap 7 --reset restores that of its policy\n");
    CHECK(noted(over, [](View &view) { view.processes[0].suspended = true; }) ==  // not over its cap as well
          "7 (python3) is suspended: its memory is in host memory; curb resume 7 brings it back\n");
    CHECK(noted([](View &view) { view.processes[0].stopped = true; }) ==
          "7 (python3) is stopped; kill -CONT 7 continues it\n");
    const auto elsewhere = [](View &view) {
        view.processes[0] = ViewProcess();
        view.processes[0].pid = 7;
        view.processes[0].elsewhere = true;
        view.gpus[0].uses[0].books = std::nullopt;
    };
    CHECK(noted(elsewhere) ==
          "7 runs in another pid namespace, perhaps a container; NVML says that it holds 4 GiB of GPU 0\n");
    CHECK_THAT(noted(elsewhere, [](View &view) { view.gpus[0].uses[0].nvml = std::nullopt; }),
               contains("NVML does not say what it holds"));
    const auto edited = [](View &view) { view.processes[0].status->policy.error = "job.json:3:1: nonsense"; };
    CHECK(noted(edited) ==
          "7 (python3) runs under its last good policy; the last edit is not in force: job.json:3:1: nonsense\n");
    CHECK(noted(edited, [](View &view) { view.processes[0].status->policy.unusable = true; }) ==
          "7 (python3) has a policy that cannot be used, so curb refuses all its requests: job.json:3:1: nonsense\n");
}

TEST_CASE("an old refusal, or one whose limit has been raised since, has no note") {
    View view = one_process();
    const auto notes_after = [&](control::UnixMs age, policy::Limit why) {
        books(view).refused[static_cast<std::size_t>(why)] = 1;
        view.processes[0].status->refusals = {{kNow - age, 0, 2 * GiB, why, 7 * GiB, 8 * GiB}};
        return notes_of(view);
    };
    books(view).allowance = 8 * GiB;
    for (const policy::Limit why : {policy::Limit::cap, policy::Limit::allowance}) {
        CHECK_THAT(notes_after(600'000, why), contains("was refused"));
        CHECK(notes_after(600'001, why).empty());
    }
    CHECK_THAT(notes_after(0, policy::Limit::cap), contains("curb cap 7 10GiB"));
    books(view).cap = 9 * GiB;
    CHECK(notes_after(0, policy::Limit::cap).empty());
    CHECK_THAT(notes_after(0, policy::Limit::allowance), contains("it grows with time"));
    books(view).allowance = 9 * GiB;
    CHECK(notes_after(0, policy::Limit::allowance).empty());
    view.processes[0].status->refusals[0].gpu = 1;  // this device's last refusal is no longer in the list
    CHECK(notes_of(view).empty());
}

TEST_CASE("the note on refused requests has the last one's time, size, reason and remedy") {
    View view = one_process();
    const auto refuse = [&](policy::Limit why, Bytes bytes, control::UnixMs at = kNow) {
        books(view).refused = {};
        books(view).refused[static_cast<std::size_t>(why)] = 1;
        view.processes[0].status->refusals = {{at, 0, bytes, why, 7 * GiB + 1, 8 * GiB}};
        return notes_of(view);
    };
    CHECK(refuse(policy::Limit::cap, 2 * GiB) ==
          "7 (python3) was refused 1 request, last 12:31:04: 2 GiB hit the cap; help: raise it: curb cap 7 10GiB\n");
    CHECK_THAT(refuse(policy::Limit::cap, 2 * GiB, kNow - 600'000), contains("last 12:21:04: "));
    CHECK_THAT(refuse(policy::Limit::cap, 0), contains("code of unknown size hit the cap") && contains(" 9GiB"));
    CHECK_THAT(refuse(policy::Limit::cap, 2 * GiB - 300 * MiB), contains("curb cap 7 9GiB"));
    CHECK_THAT(refuse(policy::Limit::cap, 2 * GiB - 200 * MiB), contains("curb cap 7 10GiB"));  // none to spare
    // Programs ask for absurd sizes, too.
    for (const Bytes bytes : {81 * GiB, ~Bytes{0}})
        CHECK_THAT(refuse(policy::Limit::cap, bytes), contains("help: none: the GPU has 80 GiB\n"));
    books(view).allowance = 8 * GiB;
    CHECK_THAT(refuse(policy::Limit::allowance, GiB), contains("1 GiB hit the allowance; help: it grows with time"));
    CHECK_THAT(refuse(policy::Limit::keep_free, GiB), contains("help: other processes have to free memory"));
    CHECK_THAT(refuse(policy::Limit::device, GiB), contains("hit a full device; help: make room"));
    books(view).ceiling = true;
    CHECK_THAT(refuse(policy::Limit::cap, GiB), contains("the machine's ceiling") && !contains("curb cap"));
}

TEST_CASE("the note on a long wait has its limit and deadline") {
    View view = one_process();
    books(view).waiting = 2;
    auto &waits = view.processes[0].status->waits;
    waits = {{0, 9, kNow - 3'000, 800 * MiB, policy::Limit::allowance, kNow + 27'000, kNow + 5'000},
             {0, 7, kNow - 2'000, GiB, policy::Limit::allowance, kNow + 28'000, kNow + 5'000}};
    CHECK_THAT(notes_of(view),
               contains("7 (python3) waits for 800 MiB, 3 s so far (thread 9): it hit the allowance; ") &&
                   contains("in 5 s; it fails in 27 s unless there is room by then; 1 more wait\n"));
    waits = {{0, 7, kNow - 900, 800 * MiB, policy::Limit::cap, kNow + 27'000, {}}};
    CHECK(notes_of(view).empty());  // too short to be noted
}
