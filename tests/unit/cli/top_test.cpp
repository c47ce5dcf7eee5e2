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
std::vector<int> pids(const View &view, const TopState &state) {
    std::vector<int> out;
    for (const TopRow &row : top_rows(view, state)) out.push_back(view.processes[row.process].pid);
    return out;
}

}  // namespace

TEST_CASE("The screen fits a window of any size, and its last line is always the keys or the message") {
    const View view = busy();
    for (const std::size_t width : {1, 7, 40, 80, 99, 100, 200})
        for (const std::size_t height : {1, 2, 5, 24, 60}) {
            CAPTURE(width, height);
            TopState state;
            remember(state, view);
            state.message = "kept";
            const auto lines = top_screen(view, state, width, height, kNow);
            REQUIRE(lines.size() == height);
            for (const ScreenLine &line : lines) CHECK(width_of(text_of(line)) <= width);
            if (height > 8) CHECK(text_of(lines.back()) == clipped("kept", width));
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
    CHECK_THAT(screen(), contains("  idle 3 GiB  ") && contains(" idle      "));
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
