// The summary of a recorded run, how it is thinned for a picture, and the pages.
#include "page/picture.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "page/pages.hpp"
#include "recordings.hpp"

using namespace curb;
using namespace curb::cli;
using policy::Kind;
using policy::Limit;

namespace {

GpuSummary gpu_of(const Recording &recording) {
    const Summary summary = summarise(recording);
    REQUIRE(summary.gpus.size() == 1);
    return summary.gpus.front();
}

Picture picture_of(const Recording &recording, std::size_t columns = 100) {
    return draw(recording, summarise(recording), columns);
}

std::size_t occurrences(std::string_view text, std::string_view what) {
    std::size_t out = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; ++at) ++out;
    return out;
}

std::size_t marked(const std::vector<Mark> &marks) {
    std::size_t out = 0;
    for (const Mark &mark : marks) out += mark.count;
    return out;
}

}  // namespace

TEST_CASE("The peak is the most bytes held, with their kinds and the limits at that time") {
    const auto run = recorded({limits(0, 8 * GiB, 2 * GiB), alloc(1, 0x10, GiB), allowance(2, 4 * GiB),
                               alloc(3, 0x20, 2 * GiB, 1, Kind::vmm), free(4, 0x10, GiB), limits(5, 3 * GiB)});
    const GpuSummary gpu = gpu_of(run);
    CHECK(gpu.peak == 3 * GiB);
    CHECK(gpu.peak_ns == 3 * kSecond);
    CHECK(gpu.at_peak[static_cast<std::size_t>(Kind::plain)] == GiB);
    CHECK(gpu.at_peak[static_cast<std::size_t>(Kind::vmm)] == 2 * GiB);
    CHECK(gpu.cap == 8 * GiB);
    CHECK(gpu.allowance == 4 * GiB);
    CHECK(gpu.growth_steps == 1);
    CHECK(gpu.at_end == 2 * GiB);
    CHECK(gpu.live == 1);
    CHECK(gpu.live_bytes == 2 * GiB);
}

TEST_CASE("A request that waited counts in the peak once, from its allocation on, and not if it was never served") {
    const auto run =
        recorded({alloc(1, 0x10, 100 * MiB), stop(2, What::wait, 900 * MiB), stop(4, What::granted, 900 * MiB),
                  alloc(4.5, 0x20, 900 * MiB), free(5, 0x20, 900 * MiB)});
    const GpuSummary gpu = gpu_of(run);
    CHECK(gpu.peak == 1000 * MiB);
    CHECK(gpu.peak_ns == 4'500'000'000);
    CHECK(gpu.at_peak[static_cast<std::size_t>(Kind::plain)] == gpu.peak);
    REQUIRE(gpu.held_at_peak.size() == 2);
    CHECK(gpu.held_at_peak[0]->bytes == 900 * MiB);
    const Chart chart = draw(run, summarise(run), 100).charts.at(0);
    for (const HeldSample &sample : chart.samples) CHECK(sample.held == sample.kinds[0]);
    const auto never_served = recorded({alloc(1, 0x10, 100 * MiB), stop(2, What::granted, 900 * MiB)});
    CHECK(gpu_of(never_served).peak == 100 * MiB);
    CHECK(gpu_of(never_served).at_end == 100 * MiB);
}

TEST_CASE("The driver's memory for a context counts as context, not as an allocation of the program") {
    Recording run = recorded({alloc(2, 0x10, 518 * MiB, 1, Kind::contexts), alloc(3, 0x20, GiB, 1, Kind::stack)});
    Moment reserved = run.events[0];  // its cost is reserved before its own event
    reserved.what = What::books;
    reserved.kind = Kind::overhead;
    reserved.of_kind = 0;
    run.events.insert(run.events.begin(), reserved);
    const GpuSummary gpu = gpu_of(run);
    CHECK(gpu.at_peak[static_cast<std::size_t>(Kind::contexts)] == 518 * MiB);
    CHECK(gpu.at_peak[static_cast<std::size_t>(Kind::stack)] == GiB);
    CHECK(gpu.allocations == 0);
    CHECK(gpu.live == 0);
    CHECK(gpu.live_bytes == 0);
    CHECK(gpu.held_at_peak.size() == 2);
}

TEST_CASE("The allocations listed are the largest that lived at the peak") {
    Run run;
    for (unsigned i = 1; i <= 40; ++i) run.then({alloc(i, i, i * MiB)});
    run.then({free(41, 40, 40 * MiB), alloc(42, 100, 41 * MiB), free(43, 39, 39 * MiB)});
    const Recording recording = run.recording();  // which the summary points into
    const GpuSummary gpu = gpu_of(recording);
    REQUIRE(gpu.held_at_peak.size() == kLargest);
    CHECK(gpu.held_at_peak[0]->bytes == 41 * MiB);
    CHECK(gpu.held_at_peak[1]->bytes == 39 * MiB);
    CHECK(gpu.requests[1]->bytes == 40 * MiB);
}

TEST_CASE("A wait lasts until the same thread is granted or refused the memory it asked for") {
    const auto run =
        recorded({stop(1, What::wait, GiB, Limit::allowance, 1), stop(2, What::wait, 2 * GiB, Limit::cap, 2),
                  stop(3, What::granted, GiB, Limit::cap, 1), stop(6, What::refuse, 2 * GiB, Limit::cap, 2),
                  stop(7, What::wait, 3 * GiB, Limit::cap, 3)});
    const GpuSummary gpu = gpu_of(run);
    std::vector<std::pair<Waited::End, std::uint64_t>> ends;
    for (const Waited &wait : gpu.waits) ends.emplace_back(wait.end, wait.ended_ns);
    REQUIRE(ends.size() == 3);
    CHECK(ends[0] == std::pair(Waited::End::granted, 3 * kSecond));
    CHECK(ends[1] == std::pair(Waited::End::refused, 6 * kSecond));
    CHECK(ends[2].first == Waited::End::unknown);
    CHECK(gpu.refusals.size() == 1);
}

TEST_CASE("Steps of one trigger that follow each other are one release") {
    const auto run = recorded({step(1, policy::Step::pools, GiB, "SIGUSR1"),
                               step(1.02, policy::Step::frameworks, 2 * GiB, "SIGUSR1"),
                               step(1.04, policy::Step::pools, 5, "idle"), step(9, policy::Step::pools, 7, "idle")});
    const Summary summary = summarise(run);
    REQUIRE(summary.releases.size() == 3);
    CHECK(summary.releases[0].bytes == 3 * GiB);
    CHECK(summary.releases[0].steps.size() == 2);
    CHECK(summary.releases[1].bytes == 5);
}

TEST_CASE("A nap lasts until the process is back, and is a band of every device's picture") {
    const auto run = recorded({alloc(0, 1, 2 * GiB), leaves(10, "nap", 2 * GiB), comes_back(70, 2 * GiB, 0.5),
                               leaves(80, "suspend", 3 * GiB), comes_back(90, 3 * GiB, 2), alloc(100, 2, GiB)});
    const Summary summary = summarise(run);
    REQUIRE(summary.absences.size() == 2);
    const Absence &nap = summary.absences[0];
    CHECK(std::tuple(nap.began_ns, nap.ended_ns, nap.bytes) == std::tuple(10 * kSecond, 70 * kSecond, 2 * GiB));
    CHECK(nap.wake_ns == kSecond / 2);
    CHECK(sentences(run, summary).back() ==
          "Out of its GPUs 2 times, by a nap and a suspend, 1 min 10 s together, with at "
          "most 3 GiB in host memory; the way back took at most 2.0 s.");
    const Picture picture = picture_of(run);
    REQUIRE(picture.charts[0].absences.size() == 2);
    CHECK(bands(picture.charts[0].absences, {0, 100 * kSecond, GiB, 0, 0, 100, 50, 0}) ==
          "M10 0H70V50H10ZM80 0H90V50H80Z");
    CHECK_THAT(html_page(run, summary),
               contains("class=\"band\"") && contains("class=\"mark out\"") &&
                   contains("by a nap for 1 min 0 s: 2 GiB in host memory; the way back took 500 ms"));
    CHECK_THAT(svg_picture(run, summary), contains("fill-opacity") && contains("by a suspend for 10.0 s"));
    CHECK_THAT(text_report(run, summary), contains("by a nap, for 1 min 0 s, the way back took 500 ms"));
    CHECK_THAT(report_json(run, summary),
               contains(R"("how":"nap","bytes":2147483648,"out_ns":null,)") && contains(R"("wake_ns":500000000,)"));
}

TEST_CASE("A turn of others lasts until the process's own; what a call waited for it is no time of a move") {
    const auto run = recorded({alloc(0, 1, 2 * GiB), leaves(10, "turn", 2 * GiB, 0.25), comes_back(70, 2 * GiB, 59),
                               leaves(80, "turn", 2 * GiB, 0.25), comes_back(100, 2 * GiB, 19),
                               leaves(110, "nap", 2 * GiB, 0.5), comes_back(120, 2 * GiB, 0.75), alloc(130, 2, GiB)});
    const Summary summary = summarise(run);
    CHECK(sentences(run, summary).back() ==
          "Out of its GPUs 3 times, by a nap and turns of others, 1 min 30 s together, with at most 2 GiB in host "
          "memory; the moves out took 1.0 s together; the way back took at most 750 ms.");
    for (const std::string &text : {html_page(run, summary), text_report(run, summary)})
        CHECK_THAT(text,
                   contains("by a turn of others") && contains("for 1 min 0 s") && contains("a call waited 59.0 s"));
    CHECK_THAT(report_json(run, summary), contains(R"("how":"turn")"));
}

TEST_CASE("A light nap is one until the driver has moved the rest; both moves count") {
    const auto light = recorded({alloc(0, 1, 2 * GiB), leaves(10, "light nap", 2 * GiB, 0.15), comes_back(70, GiB, 1)});
    CHECK_THAT(text_report(light, summarise(light)),
               contains("by a light nap, for 1 min 0 s, the way out took 150 ms"));
    CHECK_THAT(sentences(light, summarise(light)).back(), contains("once, by a nap"));
    const auto deep = recorded({alloc(0, 1, 2 * GiB), leaves(10, "light nap", 2 * GiB, 0.15),
                                leaves(20, "deep", GiB, 0.25), comes_back(70, 3 * GiB, 1)});
    const Summary summary = summarise(deep);
    REQUIRE(summary.absences.size() == 1);
    CHECK(summary.absences[0].began_ns == 10 * kSecond);
    CHECK_THAT(report_json(deep, summary), contains(R"("how":"nap","bytes":3221225472,"out_ns":400000000,)") &&
                                               contains(R"("wake_ns":1000000000,)"));
}

TEST_CASE("A nap that began before the trace, or lasts at its end, is drawn as far as it is known") {
    const auto run = recorded({alloc(5, 1, GiB), comes_back(20, GiB, 1), leaves(30, "nap", GiB), alloc(50, 2, GiB)});
    const Summary summary = summarise(run);
    REQUIRE(summary.absences.size() == 2);
    CHECK(summary.absences[0].began_ns == 5 * kSecond);
    CHECK(summary.absences[0].how.empty());
    CHECK(summary.absences[1].ended_ns == 50 * kSecond);
    CHECK_FALSE(summary.absences[1].wake_ns);
    CHECK_THAT(text_report(run, summary), contains("by a nap, for 20.0 s, and at the end"));
}

TEST_CASE("The summary is in sentences, with times and negative sizes as people write them") {
    ::setenv("TZ", "UTC", 1);
    const auto run = recorded({limits(0, 8 * GiB), alloc(64, 0x10, 7 * GiB + 307 * MiB), stop(70, What::refuse, GiB),
                               stop(71, What::refuse, GiB), step(80, policy::Step::frameworks, 3 * GiB, "SIGUSR1")});
    CHECK(sentences(run, summarise(run)) ==
          std::vector<std::string>{"Peak 7.3 GiB of 8 GiB at 12:31:04 on cuda:0; refused 2 times, for the cap.",
                                   "3 GiB came back on SIGUSR1."});
    CHECK(span_text(999) == "1 us");
    CHECK(span_text(850'000'000) == "850 ms");
    CHECK(span_text(125 * kSecond) == "2 min 5 s");
    CHECK(span_text(3720 * kSecond) == "1 h 2 min");
    CHECK(control::size_text(-(std::int64_t{1} << 20)) == "-1 MiB");
    CHECK(control::size_text(std::numeric_limits<std::int64_t>::min()) == "-8388608 TiB");
}

// ---- the picture ----

TEST_CASE("Of 100,000 events each column keeps a peak, a trough and all its marks") {
    Run run;
    for (unsigned i = 0; i < 50'000; ++i) {
        run.then({alloc(i * 0.001, 0x1000 + i, MiB), free(i * 0.001, 0x1000 + i, MiB)});
        if (i == 20'000) run.then({alloc(20.0001, 1, 5 * GiB), free(20.0002, 1, 5 * GiB)});
        if (i % 1000 == 0) run.then({stop(i * 0.001, What::refuse, GiB)});
    }
    const Recording recording = run.recording();
    const Picture picture = picture_of(recording, 50);
    const Chart &chart = picture.charts.at(0);
    CHECK(chart.samples.size() <= 4 * 50);
    CHECK(html_page(recording, summarise(recording)).size() < 1'500'000);
    const auto highest = [](const HeldSample &a, const HeldSample &b) { return a.held < b.held; };
    CHECK(std::max_element(chart.samples.begin(), chart.samples.end(), highest)->held == 5 * GiB + 0 * MiB);
    CHECK(std::is_sorted(chart.samples.begin(), chart.samples.end(),
                         [](const HeldSample &a, const HeldSample &b) { return a.ns < b.ns; }));
    CHECK(marked(chart.refusals) == 50);
    CHECK(chart.top > 5 * GiB);
}

TEST_CASE("The mark of a column's refusals is at the largest one") {
    const auto run = recorded({alloc(0, 1, MiB), stop(1, What::refuse, GiB), stop(1.1, What::refuse, 3 * GiB),
                               stop(1.2, What::refuse, 2 * GiB), free(1000, 1, MiB)});
    const Picture picture = picture_of(run, 10);
    REQUIRE(picture.charts[0].refusals.size() == 1);
    const Mark &mark = picture.charts[0].refusals[0];
    CHECK(std::tuple(mark.count, mark.bytes, mark.ns) == std::tuple(3U, 6 * std::int64_t{1} << 30, 1'100'000'000U));
    CHECK_THAT(mark.text, contains("3 refusals, 6 GiB together; the largest: ") && contains("refused 3 GiB"));
}

TEST_CASE("A cap far above the held memory is not drawn, and a note says so") {
    const auto run = recorded({limits(0, 80 * GiB, 70 * GiB), alloc(1, 1, GiB), free(2, 1, GiB)});
    const Picture picture = picture_of(run);
    CHECK(picture.charts[0].cap_above);
    CHECK(picture.charts[0].cap.empty());
    CHECK(picture.charts[0].top < 2 * GiB);
    CHECK_THAT(html_page(run, summarise(run)), contains("The cap, 80 GiB, is far above the picture"));
}

TEST_CASE("Areas and limits are drawn as steps") {
    const auto run = recorded(
        {limits(0, 4 * GiB), alloc(0, 1, GiB), alloc(5, 2, GiB), limits(8, policy::kUnbounded), free(10, 1, GiB)});
    const Picture picture = picture_of(run);
    Canvas canvas{picture.begin_ns, picture.end_ns, 4 * GiB, 0, 0, 100, 40, 0};
    CHECK(area(picture.charts[0], 1, canvas) == "M0 40H0V40H0V30H50V20H80V20H100V30H100V40Z");
    CHECK(line(picture.charts[0].cap, canvas) == "M0 0H80");
}

TEST_CASE("Axes have few and round figures") {
    CHECK(height_ticks(8 * GiB + GiB / 2) == std::vector<policy::Bytes>{0, 2 * GiB, 4 * GiB, 6 * GiB, 8 * GiB});
    CHECK(height_ticks(0) == std::vector<policy::Bytes>{0});
    for (std::uint64_t span = 1'000; span < 400 * 86'400 * kSecond; span = span * 3 + 1) {
        const auto ticks = time_ticks(5, 5 + span, 8, 0, false);
        CHECK(ticks.size() <= 8);
        for (const auto &[ns, text] : ticks) CHECK((ns >= 5 && ns <= 5 + span));
    }
}

TEST_CASE("The axis has round times of day, as the tables write them") {
    ::setenv("TZ", "UTC", 1);
    const auto run = recorded({alloc(1, 1, GiB), alloc(241, 2, GiB)});  // begun at 12:30:00
    const auto ticks_of = [&](std::uint64_t begin_ns, std::uint64_t end_ns) {
        return time_ticks(begin_ns, end_ns, 8, local_begin_ns(run), false);
    };
    CHECK(ticks_of(kSecond, 241 * kSecond).front() == std::pair(60 * kSecond, std::string("12:31")));
    CHECK(ticks_of(kSecond, 15 * kSecond).front() == std::pair(2 * kSecond, std::string("12:30:02")));
    CHECK(ticks_of(kSecond, kSecond + 500'000'000).back().second == "12:30:01.500");
    CHECK(ticks_of(kSecond, kSecond + 5'000).back().second == "12:30:01.000005");
    CHECK(clock_text(run, 60 * kSecond) == "12:31:00");
    for (const std::string &page : {html_page(run, summarise(run)), svg_picture(run, summarise(run))})
        CHECK_THAT(page, contains(">12:31<") && contains("at 12:34:01 on cuda:0"));
    const auto brief = recorded({alloc(1, 1, GiB), alloc(1.25, 2, GiB)});
    CHECK_THAT(sentences(brief, summarise(brief)).at(0), contains(" at 12:30:01.250 on"));
    const auto lasting = recorded({alloc(1, 1, GiB), alloc(100'000, 2, GiB)});
    CHECK_THAT(sentences(lasting, summarise(lasting)).at(0), contains(" at 03-02 16:16:40 on"));
    CHECK_THAT(html_page(lasting, summarise(lasting)), contains(">03-02 00:00<"));
    auto timeless = recorded({alloc(1, 1, GiB), alloc(241, 2, GiB)});
    timeless.header.unix_ns = 0;
    CHECK(clock_text(timeless, 241 * kSecond) == "00:04:01");
    CHECK_THAT(html_page(timeless, summarise(timeless)), contains(">00:01<"));
}

TEST_CASE("The legend has no limit that was never in force, and no GPU without use has a chart") {
    Run made({limits(0, policy::kUnbounded, policy::kUnbounded), alloc(1, 1, GiB), free(20, 1, GiB)});
    Recording run = made.recording();
    run.header.gpus.push_back({1, "GPU-2", "H100", 80 * GiB});
    const Summary summary = summarise(run);
    REQUIRE(summary.gpus.size() == 2);
    for (const std::string &page : {html_page(run, summary), svg_picture(run, summary), text_report(run, summary)}) {
        CHECK_THAT(page, contains("cuda:0") && !contains("cuda:1") && contains("node7, pid 4711"));
        CHECK_THAT(page, !contains(">cap<") && !contains(">allowance<"));
    }
    CHECK_THAT(report_json(run, summary), contains("\"gpu\":1") && contains("\"host\":\"node7\""));
}

TEST_CASE("No two of the driver's greys are alike") {
    std::vector<double> greys;
    for (const Kind kind : {Kind::contexts, Kind::overhead, Kind::stack}) {
        const int level = std::stoi(std::string(colour_of(kind)).substr(1, 2), nullptr, 16);
        greys.push_back(std::pow(level / 255.0, 2.2) + 0.05);  // the luminance of WCAG's contrast
    }
    CHECK(greys[1] / greys[0] > 1.7);
    CHECK(greys[2] / greys[1] > 1.7);
}

TEST_CASE("A page of a job has each process below, on the times of all") {
    ::setenv("TZ", "UTC", 1);
    const auto first = recorded({limits(0, 2 * GiB), alloc(0, 1, GiB), free(100, 1, GiB)});
    auto second = recorded({alloc(0, 1, GiB), stop(10, What::refuse, GiB), alloc(20, 2, GiB)});
    second.header.unix_ns += 40 * static_cast<std::int64_t>(kSecond);
    second.name = "rank1.json";
    const std::vector<Chart> charts = draw_part(second, summarise(second), 100, 40 * kSecond);
    REQUIRE(charts.size() == 1);
    CHECK(charts[0].samples.front().ns == 40 * kSecond);
    CHECK(std::pair(charts[0].samples.back().ns, charts[0].samples.back().held) ==
          std::pair(60 * kSecond, policy::Bytes{0}));
    CHECK(charts[0].refusals.at(0).ns == 50 * kSecond);
    const std::vector<Part> parts = {{&first, summarise(first)}, {&second, summarise(second)}};
    const std::string page = html_page(first, summarise(first), parts);
    CHECK(occurrences(page, "<section data-gpu=") == 3);
    CHECK(occurrences(page, "class=\"chart low\"") == 2);
    CHECK_THAT(page, contains(">rank1.json</h3>") && contains("12:30:50 refused 1 GiB"));
}

// ---- pages ----

TEST_CASE("Text from a trace is escaped in pages and pictures") {
    const char *const evil = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&]]>";
    const auto run = recorded({alloc(1, 1, GiB), step(2, policy::Step::pools, 5, evil), limits(2, GiB)}, evil);
    for (const std::string &page : {html_page(run, summarise(run)), svg_picture(run, summarise(run))}) {
        CHECK(occurrences(page, "alert(1)") > 0);
        CHECK(occurrences(page, "<script>alert") == 0);
        CHECK(occurrences(page, "<img") == 0);
        CHECK(occurrences(page, "onerror=alert") == occurrences(page, "&lt;img src=x onerror=alert"));
    }
    CHECK(occurrences(html_page(run, summarise(run)), "</script>") == 2);
    CHECK(within_script("[\"</script><!--\"]") == "[\"\\u003c/script>\\u003c!--\"]");
}

TEST_CASE("No control character of a trace reaches the terminal, and a picture of it is XML") {
    std::string text =
        Run({alloc(1, 1, GiB), step(2, policy::Step::pools, 5, "\u009B2J\uFFFF")}, "a\u202Eb\uFFFE").text();
    for (const auto &[from, to] : {std::pair{"\"0.1.0\"", "\"0.1\\u001b[31m\""}, {"\"H100\"", "\"H\u009B\\u0007\""}}) {
        REQUIRE(text.find(from) != std::string::npos);
        text.replace(text.find(from), std::string_view(from).size(), to);
    }
    const auto run = fuzz::read_text(text);
    REQUIRE(run);
    const Summary summary = summarise(*run);
    for (const std::string &page : {text_report(*run, summary), svg_picture(*run, summary), html_page(*run, summary)}) {
        CAPTURE(page);
        CHECK(std::none_of(page.begin(), page.end(),
                           [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n'; }));
        for (const char *acted_on : {"\u009B", "\u202E", "\uFFFE", "\uFFFF"}) CHECK(occurrences(page, acted_on) == 0);
    }
    CHECK_THAT(text_report(*run, summary),
               contains("a\uFFFDb") && contains("curb 0.1\\x1B[31m") && contains("H\uFFFD\\x07"));
}

TEST_CASE(
    "A page loads nothing from elsewhere, and a picture for papers has neither variables nor scripts nor outlines") {
    const auto run = recorded(
        {limits(0, 2 * GiB), alloc(1, 1, GiB), alloc(1.5, 2, GiB, 1, Kind::vmm), stop(2, What::refuse, 2 * GiB)});
    const std::string page = html_page(run, summarise(run)), svg = svg_picture(run, summarise(run));
    for (const char *loaded : {"http://", "https://", "//cdn", "src="}) CHECK(occurrences(page, loaded) == 0);
    CHECK(occurrences(svg, "http") == 1);  // the namespace
    for (const char *part : {"var(", "<script", "class="}) CHECK(occurrences(svg, part) == 0);
    CHECK_THAT(svg, contains("font-family=\"sans-serif\"") && contains("refused 2 GiB"));
    // An outline would cover the areas of a busy program, whose steps are closer than a pixel.
    for (const Kind kind : {Kind::plain, Kind::vmm}) {
        const std::string fill = "fill=\"" + std::string(colour_of(kind)) + "\"";
        CHECK(occurrences(svg, "Z\" " + fill + "/>") == 1);
        CHECK(occurrences(page, "<path class=\"layer\" " + fill + " d=\"M") == 1);
    }
    CHECK(occurrences(page, ".layer") == 0);
}

TEST_CASE("Every page lists missing events, and says if no memory was used") {
    const auto recording = recorded({alloc(1, 1, GiB), dropped(2, 17)});
    const Summary summary = summarise(recording);
    for (const std::string &page :
         {html_page(recording, summary), svg_picture(recording, summary), text_report(recording, summary)})
        CHECK_THAT(page, contains("17 events were dropped"));
    auto nothing = recorded({});
    CHECK(picture_of(nothing).charts.empty());
    CHECK_THAT(html_page(nothing, summarise(nothing)), contains("No memory of a GPU was used."));
}
