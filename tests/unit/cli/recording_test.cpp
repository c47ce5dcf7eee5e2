// Reading traces, whole and broken.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "lines_of.hpp"
#include "policy/values/words.hpp"
#include "recordings.hpp"
#include "temp_dir.hpp"

using namespace curb;
using namespace curb::cli;
using control::trace::name_of;

namespace {

Run short_run() {
    return Run({limits(0, 8 * GiB, 2 * GiB), alloc(1, 0x7f0000000000, 100 * MiB, 7),
                alloc_charged(1.5, 0x7f0000001000, 1000, 0, 8, policy::Kind::pools),
                books(2, policy::Kind::overhead, 92 * MiB), stop(3, What::wait, GiB, policy::Limit::allowance),
                stop(4, What::granted, GiB), allowance(4, policy::kUnbounded), stop(5, What::refuse, 3 * GiB),
                step(6, policy::Step::pools, -5, "SIGUSR1"), step(7, policy::Step::frameworks, 5, "a \"quoted\" one\n"),
                free(8, 0x7f0000000000, 100 * MiB), dropped(9, 17)});
}

void check_same(const Moment &moment, const Recording &recording, const Event &event) {
    CAPTURE(name_of(event.what));
    const bool stops = event.what == What::refuse || event.what == What::wait;
    CHECK(moment.what == event.what);
    CHECK(moment.ns == event.ns);
    CHECK(moment.kind == event.kind);
    CHECK(int{moment.gpu} == event.gpu);
    CHECK(moment.thread == event.thread);
    CHECK(moment.bytes == event.bytes);
    CHECK(moment.of_kind == event.of_kind);
    CHECK(moment.held == event.held);
    CHECK(moment.duration_ns() == event.duration_ns);
    CHECK(moment.limit() == event.limit);
    if (moment.moves_memory()) CHECK(moment.pointer == event.pointer);
    if (moment.moves_memory()) CHECK(moment.charge == event.charge);
    if (moment.moves_memory()) CHECK((moment.detail != 0) == event.reused);
    if (stops) CHECK(moment.why() == event.why);
    if (event.what == What::step) CHECK(moment.step() == event.step);
    CHECK(recording.text(moment) == policy::plain(event.text));
}

}  // namespace

TEST_CASE("Every event of a trace is read as it was written, wherever the pieces are cut") {
    const Run run = short_run();
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{200}, std::size_t{1} << 20}) {
        const auto read = read_text(run.text(), piece);
        REQUIRE(read);
        CHECK(read->header.command == "python3 train.py");
        REQUIRE(read->events.size() == run.events().size());
        for (std::size_t i = 0; i < read->events.size(); ++i) check_same(read->events[i], *read, run.events()[i]);
        CHECK(read->first_ns == 0);
        CHECK(read->last_ns == 9 * kSecond);
        REQUIRE(read->missing.size() == 1);
        CHECK_THAT(read->missing[0], contains("17 events were dropped") && contains("and what was held at the end"));
    }
}

TEST_CASE("A trace cut off at any byte is read up to its last whole event, and the cut is reported") {
    const Run run = short_run();
    const std::string whole = run.text();
    const std::size_t header = whole.find('\n', 2) + 1;
    for (std::size_t length = header; length < whole.size(); ++length) {
        const auto read = read_text(std::string_view(whole).substr(0, length));
        REQUIRE(read);
        const auto lines =
            static_cast<std::size_t>(std::count(whole.begin() + static_cast<std::ptrdiff_t>(header),
                                                whole.begin() + static_cast<std::ptrdiff_t>(length), '\n'));
        const std::string rest =
            whole.substr(whole.rfind('\n', length - 1) + 1, length - whole.rfind('\n', length - 1) - 1);
        const bool complete = rest.ends_with("}}") || rest.ends_with("}},");  // but for its newline
        const bool cut = !rest.empty() && !complete;
        CAPTURE(rest);
        CHECK(read->events.size() == lines + (complete ? 1 : 0));
        CHECK(read->missing.size() == std::size_t{cut} + (read->events.size() == run.events().size() ? 1 : 0));
        if (cut) CHECK_THAT(read->missing[0], contains("in the middle of line"));
    }
}

TEST_CASE("Unreadable lines are counted, and the first is reported") {
    std::string text = short_run().text();
    text.insert(text.find("{\"ph\":\"i\""), "{\"ph\":\"i\",\"name\":\"alloc\",\"ts\":1}\nnonsense\n");
    const auto read = read_text(text);
    REQUIRE(read);
    CHECK(read->events.size() == short_run().events().size());
    REQUIRE(!read->missing.empty());
    CHECK_THAT(read->missing[0], contains("2 lines could not be read") && contains("line 3"));
}

TEST_CASE("A line with a size that no device has is not read, a request of any size is") {
    const std::string nonsense =
        "{\"ph\":\"i\",\"s\":\"t\",\"name\":\"WHAT\",\"ts\":1.000,\"pid\":1,\"tid\":1,\"args\":{\"gpu\":0,"
        "\"kind\":\"plain\",\"MEMBER\":9223372036854775807}},\n";
    const auto events_with = [&](std::string what, std::string member) {
        std::string line = nonsense;
        line.replace(line.find("WHAT"), 4, what).replace(line.find("MEMBER"), 6, member);
        const auto read = read_text("[\n" + line);
        return read ? read->events.size() : 0;  // refused if no line is an event
    };
    CHECK(events_with("refuse", "bytes") == 1);
    CHECK(events_with("refuse", "held") == 0);
    CHECK(events_with("alloc", "bytes") == 0);
    CHECK(events_with("free", "charge") == 0);
    CHECK(events_with("books", "of_kind") == 0);
    CHECK(events_with("policy", "of_kind") == 1);
}

TEST_CASE("The memory held at the peak is summed by the call stack of its allocation") {
    const char *const one = "_ZN2at5emptyEi+0x1f (libtorch.so) < main+0x20 (train)", *const other = "train+0x77";
    const Recording run = recorded({
        alloc(1, 0x10, GiB),
        stack(1, 0x10, one),
        alloc(2, 0x20, 2 * GiB, 2),
        stack(2, 0x20, other, 2),
        alloc(3, 0x30, 3 * GiB, 1),
        alloc(3, 0x40, GiB, 2),
        stack(3, 0x30, one, 1),  // the events of two threads are interleaved
        stack(3, 0x30, "not of the last allocation of that thread", 2),
        free(4, 0x40, GiB, 2),
        alloc(5, 0x40, 2 * GiB, 2),
        alloc(6, 0x50, MiB),
        stack(6, 0x50, other),
        free(7, 0x50, MiB),
    });
    const GpuSummary gpu = summarise(run).gpus.at(0);
    REQUIRE(gpu.callers_at_peak.size() == 3);
    const Caller &most = gpu.callers_at_peak[0], &rest = gpu.callers_at_peak[2];
    CHECK(most.bytes == 4 * GiB);
    CHECK(most.count == 2);
    CHECK(calls_of(run.text(*most.stack)) ==
          std::vector<std::string>{"at::empty(int)+0x1f (libtorch.so)", "main+0x20 (train)"});
    CHECK(gpu.callers_at_peak[1].bytes == 2 * GiB + MiB);
    CHECK(run.text(*gpu.callers_at_peak[1].stack) == other);
    CHECK(rest.stack == nullptr);
    CHECK(rest.bytes == 2 * GiB);
    const std::string text = text_report(run, summarise(run)), page = html_page(run, summarise(run));
    CHECK_THAT(
        text, contains("allocated by  4 GiB         2 allocations\n") && contains("at::empty(int)+0x1f (libtorch.so)"));
    CHECK_THAT(page, contains("Who allocated the memory at the peak") && contains("at::empty(int)+0x1f (libtorch.so)"));
    CHECK_THAT(report_json(run, summarise(run)), contains(R"({"bytes":2147483648,"count":1,"calls":null}])"));
    CHECK(summarise(recorded({alloc(1, 0x10, GiB)})).gpus.at(0).callers_at_peak.empty());
}

TEST_CASE("A stack is split into its calls, and only C++ names are demangled") {
    CHECK(calls_of("").empty());
    CHECK(calls_of("_Znonsense+0x1 (a.so) < _ZN < 0x7f00 < operator< <") ==
          std::vector<std::string>{"_Znonsense+0x1 (a.so)", "_ZN", "0x7f00", "operator< <"});
}

TEST_CASE("A piece from the middle of a trace is read, and its missing beginning is reported") {
    std::string text = short_run().text();
    text.erase(0, text.find("{\"ph\":\"i\""));
    const auto read = read_text(text);
    REQUIRE(read);
    CHECK(read->events.size() == short_run().events().size());
    CHECK_THAT(read->missing.at(0), contains("beginning is missing"));
    CHECK(gpus_of(*read) == std::vector{0});
}

TEST_CASE("A file that is no trace is refused with its beginning, or the reason that it cannot be read") {
    std::string later = short_run().text();
    later.replace(later.find("\"trace\":1"), 9, "\"trace\":2");
    const std::pair<std::string, const char *> rows[] = {
        {"", "'t.json' is empty"},
        {"\n\n", "'t.json' is empty"},
        {"#!/bin/sh\necho\n", "its first line is '#!/bin/sh'"},
        {"{\"a\": 1}\n", "no trace that this curb can read"},
        {std::string("\x7F\x45LF\0\1\2\n\xFF\xFE", 10), "no trace"},
        {std::string(5 << 20, 'x'), "first line does not end"},
        {"\x1B[31mred\n", "'\\x1B[31mred'"},
        {later, "version 2"},
        {"[\n{\n\"ph\": \"i\"\n}\n]\n", "none of its lines is an event (line 2: "},
        {"[\n{\"name\":\"another's\",\"ph\":\"i\"},\n", "none of its lines is an event; it reads"},
    };
    for (const auto &[text, why] : rows) CHECK_THAT(error_of(read_text(text)), contains(why) && !contains("\x1B"));
    CHECK(error_of(read_trace("/nonexistent/t.json")) ==
          "'/nonexistent/t.json' cannot be read: No such file or directory");
    CHECK_THAT(error_of(read_trace("/tmp")), contains("Is a directory"));
    CHECK(Run({}, "sh -c 'a\nb\x1B[31m'").recording().header.command == "sh -c 'a\\x0Ab\\x1B[31m'");
}

TEST_CASE("A signal while curb waits for the first bytes does not hide what they are") {
    static std::atomic<int> came = 0;
    struct sigaction note {
    }, before{};
    note.sa_handler = [](int) { ++came; };  // without SA_RESTART
    REQUIRE(::sigaction(SIGUSR1, &note, &before) == 0);
    const TempDir dir;
    const std::string pipe = (dir / "pipe").string();
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::thread writer([&, reader = ::pthread_self(), id = ::gettid()] {
        const int fd = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
        const auto wait_until_it_reads = [&] {
            for (char state = 0; state != 'S';) {
                std::ifstream stat("/proc/self/task/" + std::to_string(id) + "/stat");
                stat.ignore(1000, ')') >> state;
            }
        };
        wait_until_it_reads();
        ::pthread_kill(reader, SIGUSR1);
        while (came == 0) std::this_thread::yield();
        wait_until_it_reads();
        if (::write(fd, "no\n", 3) == 3) ::close(fd);
    });
    CHECK_THAT(error_of(read_trace(pipe)), contains("its first line is 'no'"));
    writer.join();
    ::sigaction(SIGUSR1, &before, nullptr);
}
