// The screen of `curb top` for made-up machines, at every size of a window.
#include "top/top_screen.hpp"

#include <numeric>

#include "catch.hpp"
#include "terminal/text_width.hpp"
#include "views.hpp"

namespace {

using namespace views;

std::string text_of(const ScreenLine &line) {
    return std::accumulate(line.begin(), line.end(), std::string(),
                           [](std::string all, const Span &span) { return std::move(all) + span.text; });
}
std::string text_of(const View &view, TopState &state, std::size_t width, std::size_t height = 24) {
    std::string all;
    for (const ScreenLine &line : top_screen(view, state, width, height, kNow)) all += text_of(line) + "\n";
    return all;
}
std::vector<int> pids(const View &view, const TopState &state) {
    std::vector<int> out;
    for (const TopRow &row : top_rows(view, state)) out.push_back(view.processes[row.process].pid);
    return out;
}

}  // namespace

TEST_CASE("The screen fits a window of any size, and its last line is always the keys or the message") {
    const View view = busy();
    for (const std::size_t width : {1, 7, 40, 60, 80, 99, 100, 200})
        for (const std::size_t height : {1, 2, 5, 24, 60})
            for (const bool helps : {false, true}) {
                CAPTURE(width, height, helps);
                TopState state;
                remember(state, view);
                state.message = "kept";
                state.helps = helps;
                const auto lines = top_screen(view, state, width, height, kNow);
                REQUIRE(lines.size() == height);
                for (const ScreenLine &line : lines) CHECK(width_of(text_of(line)) <= width);
                if (height > 8 && !helps) CHECK(text_of(lines.back()) == clipped("kept", width));
            }
}

TEST_CASE("The command is in the narrowest window, and the state; a wider one adds columns") {
    const View view = busy();
    TopState state;
    CHECK_THAT(text_of(view, state, 40),
               contains("    PID      HELD STATE       COMMAND") && contains("   4711   7.5 GiB wait 3 s    python3"));
    CHECK_THAT(text_of(view, state, 60), contains("    PID GPU      HELD       CAP STATE       COMMAND") &&
                                             contains("   4712 0      20 GiB         - no curb     python3 -m no"));
    CHECK_THAT(text_of(view, state, 80), contains("    PID USER     GPU      HELD       CAP OF CAP   STATE       "));
    CHECK_THAT(text_of(view, state, 200),
               contains(" OF CAP   HISTORY    STATE       COMMAND") && contains("/opt/conda/bin/python3 -m notebook"));
}

TEST_CASE("The selection stays on its process when rows above it go") {
    const View before = busy();
    TopState state;
    const std::vector<int> all = pids(before, state);
    REQUIRE(all.size() > 2);
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < before.processes.size(); ++i)
        if (before.processes[i].pid != all.front()) others.push_back(i);
    const View after = only(before, others);
    state.at = all.size() - 1;
    keep_selected(state, before, after);
    CHECK(state.at < all.size() - 1);
    CHECK(pids(after, state).at(state.at) == all.back());
    state.at = 0;  // its process has gone
    keep_selected(state, before, after);
    CHECK(state.at == 0);
}

TEST_CASE("The help can be read in 60 columns and 24 lines") {
    const auto help = top_help(TopState());
    CHECK(help.size() <= 24);
    for (const ScreenLine &line : help) CHECK(width_of(text_of(line)) <= 60);
}

TEST_CASE("A GPU's line has its use and temperature, where NVML tells them") {
    View view = busy();
    TopState state;
    CHECK_THAT(text_of(view, state, 80), !contains("%"));
    view.gpus[0].utilization = 87;
    view.gpus[0].temperature = 64;
    view.gpus[1].temperature = 31;
    CHECK_THAT(text_of(view, state, 60), contains("35.5 GiB of 80 GiB     87%  64°C") && contains("   -  31°C"));
    state.unicode = false;
    CHECK_THAT(text_of(view, state, 60), contains("  87%   64C"));
}

TEST_CASE("The first line has the signs of the bars, and what is not as usual") {
    const View view = busy();
    TopState state;
    const auto first = [&](std::size_t width) { return text_of(top_screen(view, state, width, 24, kNow)[0]); };
    CHECK(first(80) == "curb top  12:31:04  2 GPUs, 3 processes  by held  █ under curb ▒ others ░ free");
    CHECK(first(60) == "curb top  12:31:04  2 GPUs, 3 processes  by held");
    state.every = std::chrono::seconds(5);
    state.read_only = true;
    state.filter = "alice";
    CHECK_THAT(first(100), contains("2 processes  read-only, by held, with \"alice\", every 5 s"));
}

TEST_CASE("The help is on 80 x 24, without signs that are not ASCII if need be") {
    const View view = busy();
    TopState state;
    state.helps = true;
    const std::string help = text_of(view, state, 80);
    CHECK_THAT(help, contains("under curb") && contains("unknown:") && !contains("…"));
    state.unicode = false;
    const std::string ascii = text_of(view, state, 80);
    CHECK(std::all_of(ascii.begin(), ascii.end(), [](char c) { return static_cast<unsigned char>(c) < 128; }));
}

TEST_CASE("Keys stand apart, as many as fit, and a click on one finds it") {
    const View view = busy();
    TopState state;
    const auto last = [&](std::size_t width) { return top_screen(view, state, width, 24, kNow).back(); };
    CHECK(text_of(last(80)) == "q quit  ? help  r release  c cap  s suspend  u resume  o order  / filter");
    CHECK(text_of(last(40)) == "q quit  ? help  r release  c cap");
    for (const auto &[column, key] :
         {std::pair{0, 'q'}, {5, 'q'}, {6, '\0'}, {8, '?'}, {13, '?'}, {16, 'r'}, {39, '\0'}})
        CHECK(key_at(last(40), static_cast<std::size_t>(column)) == key);
    state.read_only = true;
    CHECK(text_of(last(80)) == "q quit  ? help  o order  / filter");
}

TEST_CASE("The screen says where its first row stands") {
    const View view = machine();
    TopState state;
    for (const std::size_t height : {24, 6}) {
        state.at = 2;
        const auto lines = top_screen(view, state, 80, height, kNow);
        const int pid = pids(view, state)[state.first];
        CHECK_THAT(text_of(lines.at(state.line)), contains(std::to_string(pid)));
    }
}

TEST_CASE("Every GPU has a line, then come the processes with their states") {
    const View view = busy();
    TopState state;
    remember(state, view);
    const auto lines = top_screen(view, state, 120, 24, kNow);
    CHECK(text_of(lines[1]).starts_with("GPU 0 "));
    CHECK(text_of(lines[1]).find("35.5 GiB of 80 GiB") != std::string::npos);
    CHECK(text_of(lines[2]).starts_with("GPU 1 "));
    std::string all;
    for (const ScreenLine &line : lines) all += text_of(line) + "\n";
    for (const char *part : {"wait 3 s", "no curb", "stopped", "7.5 GiB     7 GiB", "python3 train_bert.py"})
        CHECK_THAT(all, contains(part));
}

TEST_CASE("A wide window has columns for the job and the container") {
    View view = busy();
    const auto screen = [&](std::size_t width) {
        TopState state;
        std::string all;
        for (const ScreenLine &line : top_screen(view, state, width, 24, kNow)) all += text_of(line) + "\n";
        return all;
    };
    CHECK_THAT(screen(160), !contains("JOB") && !contains("CONTAINER"));
    view.processes[0].status->job = "slurm 4711";
    view.processes[0].container = "3f2a9c0b1d4e";
    CHECK_THAT(screen(160), contains(" JOB                CONTAINER    COMMAND") &&
                                contains(" slurm 4711         3f2a9c0b1d4e python3 train_bert.py"));
    CHECK_THAT(screen(120), contains(" JOB                COMMAND") && !contains("CONTAINER"));
    CHECK_THAT(screen(119), !contains("JOB"));
}

TEST_CASE("A process that has not used the GPU for a minute is idle, and its GPU's line has the sum") {
    View view = busy();
    const auto screen = [&] {
        TopState state;
        std::string all;
        for (const ScreenLine &line : top_screen(view, state, 120, 24, kNow)) all += text_of(line) + "\n";
        return all;
    };
    CHECK_THAT(screen(), !contains("idle"));
    control::GpuStatus &books = view.processes[0].status->gpus[0];
    view.processes[0].status->releasing = false;
    books.waiting = 0;
    books.held = 3 * GiB;
    for (ViewUse &use : view.gpus[0].uses)
        if (use.process == 0) use.idle = books.held;
    CHECK_THAT(screen(), contains(" idle 3 GiB      ") && contains(" idle        python3"));
}

TEST_CASE("A napping process is not shown as suspended") {
    View view = machine();
    view.processes[0].suspended = true;
    view.processes[0].status->nap = control::NapStatus{.out = true, .since = kNow, .bytes = GiB, .refused = {}};
    TopState state;
    std::string all;
    for (const ScreenLine &line : top_screen(view, state, 120, 24, kNow)) all += text_of(line) + "\n";
    CHECK_THAT(all, contains(" napping ") && !contains(" suspended "));
}

TEST_CASE("Above the keys stand the notes on the selected process, if there are any") {
    View view = busy();
    TopState state;
    const auto screen = [&](std::size_t height) {
        std::string all;
        for (const ScreenLine &line : top_screen(view, state, 80, height, kNow)) all += text_of(line) + "\n";
        return all;
    };
    state.sort = Sort::pid;
    CHECK_THAT(screen(24),
               !contains("serve.py is stopped") && contains("4711 (python3) runs under its last good policy"));
    view.processes[0].status->policy.error.clear();
    view.processes[0].status->gpus[0].live_cap.reset();
    view.processes[0].status->gpus[0].cap = 8 * GiB;
    CHECK_THAT(screen(24), contains("4711 (python3) waits for 800 MiB, 3 s so far (thread 4720)") &&
                               contains("growth step is due in 5 s"));
    CHECK_THAT(screen(11), !contains("waits for"));
    state.at = 1;
    CHECK_THAT(screen(24), !contains("waits for"));
}

TEST_CASE("Rows are in the chosen order, and only those that match the filter") {
    const View view = machine();
    TopState state;
    CHECK(pids(view, state) == std::vector{4712, 4711, 4800});
    state.sort = Sort::pid;
    CHECK(pids(view, state) == std::vector{4711, 4712, 4800});
    state.sort = Sort::cap;
    CHECK(pids(view, state).front() == 4711);
    state.sort = Sort::user;
    CHECK(pids(view, state).back() == 4712);
    for (const auto &[filter, found] : std::vector<std::pair<std::string, std::vector<int>>>{
             {"BERT", {4711}}, {"bob", {4712}}, {"480", {4800}}, {"nothing", {}}}) {
        state.filter = filter;
        CHECK(pids(view, state) == found);
    }
}

TEST_CASE("STATE says whose turn it is, what is left of it, who is next and who waits, while one waits") {
    View view;
    view.gpus = {gpu(0, 40 * GiB)};
    for (int pid = 1; pid <= 3; ++pid) {
        ViewProcess one = process(pid, "alice", "train");
        give_books(one, view.gpus[0], pid == 1 ? 40 * GiB : GiB);
        one.posted.emplace().gpus = {{.uuid = view.gpus[0].uuid}};
        one.posted->gpus[0].turn = {pid == 1 ? 40 * GiB : 0, kNow + 12'000};
        one.suspended = pid != 1;
        if (one.suspended) one.status->nap.emplace().out = true;
        view.processes.push_back(std::move(one));
        view.gpus[0].uses.push_back({view.processes.size() - 1, 0, std::nullopt, 0});
    }
    TopState state;
    const auto screen = [&] { return text_of(view, state, 80); };
    CHECK_THAT(screen(), contains("running") && contains("napping") && !contains("turn"));
    view.gpus[0].next = 2;
    CHECK_THAT(screen(), contains("turn 12 s ") && contains("next ") && contains("wait turn ") &&
                             contains("on GPU 0 it is the turn of 1 (train), for 12 s more; next is 2"));
    view.processes[0].posted->gpus[0].turn->ends = kNow;
    CHECK_THAT(screen(), contains("turn over "));
    view.processes[0].status->gpus[0].waiting = 1;
    view.processes[0].status->waits = {{0, 1, kNow - 4'000, GiB, policy::Limit::device, kNow, {}}};
    CHECK_THAT(screen(), contains("wait 4 s ") && !contains("turn over"));
}

TEST_CASE("The selection stays on an existing row, and the rows scroll with it") {
    const View view = machine();
    TopState state;
    state.at = 100;
    const auto lines = top_screen(view, state, 80, 6, kNow);  // room for two processes
    CHECK(state.at == 2);
    CHECK(state.first == 1);
    state.at = 0;
    static_cast<void>(top_screen(view, state, 80, 24, kNow));
    CHECK(state.first == 0);
}

TEST_CASE("The selected row is marked up to the window's edge") {
    const View view = machine();
    TopState state;
    state.at = 1;
    const auto lines = top_screen(view, state, 200, 24, kNow);
    const ScreenLine &row = lines.at(state.line + 1);
    CHECK(width_of(text_of(row)) == 200);
    CHECK(std::all_of(row.begin(), row.end(), [](const Span &span) { return span.ink == Ink::reverse; }));
    CHECK(width_of(text_of(lines.at(state.line))) < 200);
}

TEST_CASE("A process that only the board shows has a history, apart from that of others with its PID") {
    View view = machine();
    add_posted(view, 1, 4711, 2 * GiB);
    add_posted(view, 2, 4711, 3 * GiB);
    TopState state;
    remember(state, view);
    const auto last = [&](std::uint64_t pid_namespace) {
        return state.held.at({pid_namespace, 4711, view.gpus[0].uuid}).back();
    };
    CHECK(last(0) == 7 * GiB + 512 * MiB);
    CHECK(last(1) == 2 * GiB);
    CHECK(last(2) == 3 * GiB);
    state.sort = Sort::pid;
    state.at = 2;  // the last row of this PID
    View without_first = only(view, {0, 1, 2, 4});
    keep_selected(state, view, without_first);
    CHECK(without_first.processes[top_rows(without_first, state).at(state.at).process].posted->pid_namespace == 2);
}

TEST_CASE("A history has a limited length, and is deleted with its process") {
    View view = machine();
    TopState state;
    for (int i = 0; i < 500; ++i) remember(state, view);
    CHECK(state.held.size() == 3);
    CHECK(state.held.begin()->second.size() <= 120);
    view.gpus[0].uses.clear();
    remember(state, view);
    CHECK(state.held.empty());
    CHECK(state.used.size() == 2);
}
