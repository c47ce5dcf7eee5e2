// Reading PyTorch's memory snapshots. A pickle is read as data and never run.
#include "trace/snapshot.hpp"

#include "../../fuzz/trace_read_checks.hpp"
#include "catch.hpp"
#include "trace/pickle.hpp"

using namespace curb;
using namespace curb::cli;
using policy::GiB;
using policy::MiB;

namespace {

// Writes pickles of protocol 4 as Python does, without its framing.
class Written {
  public:
    operator const std::string &() const { return bytes_; }
    Written &operator+=(const std::string &bytes) {
        bytes_ += bytes;
        return *this;
    }

  private:
    std::string bytes_ = "\x80\x04";
};

std::string little(std::uint64_t value, int size) {
    std::string out;
    for (int i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
    return out;
}
std::string text(const std::string &value) { return "X" + little(value.size(), 4) + value; }
std::string number(std::uint64_t value) { return "\x8a\x09" + little(value, 8) + std::string(1, '\0'); }
std::string list(const std::vector<std::string> &items) {
    std::string out = "](";
    for (const std::string &item : items) out += item;
    return out + "e";
}
std::string dictionary(const std::vector<std::pair<std::string, std::string>> &members) {
    std::string out = "}(";
    for (const auto &[name, value] : members) out += text(name) + value;
    return out + "u";
}
std::string frames(const std::string &name, int line) {
    return list({dictionary({{"filename", text("train.py")},
                             {"line", number(static_cast<std::uint64_t>(line))},
                             {"name", text(name)}}),
                 dictionary({{"filename", text("??")}, {"line", number(0)}, {"name", text("main")}})});
}
std::string entry(const char *action, std::uint64_t address, std::uint64_t size, std::uint64_t time,
                  const std::string &stack = "]") {
    return dictionary({{"action", text(action)},
                       {"addr", number(address)},
                       {"size", number(size)},
                       {"stream", "K" + little(0, 1)},
                       {"time_us", number(time)},
                       {"frames", stack}});
}
std::string block(std::uint64_t address, std::uint64_t size, const char *state, const std::string &stack = "]") {
    return dictionary({{"address", number(address)},
                       {"size", number(size)},
                       {"requested_size", number(size)},
                       {"state", text(state)},
                       {"frames", stack}});
}
std::string segment(std::uint64_t address, std::uint64_t size, const std::vector<std::string> &blocks) {
    return dictionary({{"device", "K" + little(0, 1)},
                       {"address", number(address)},
                       {"total_size", number(size)},
                       {"segment_pool_id", std::string("K\0K\0\x86", 5)},
                       {"is_expandable", "\x89"},
                       {"blocks", list(blocks)}});
}
std::string snapshot_of(const std::vector<std::string> &segments, const std::vector<std::string> &history) {
    Written out;
    out += dictionary({{"segments", list(segments)}, {"device_traces", list({list(history)})}}) + ".";
    return out;
}

constexpr std::uint64_t kBase = 0x7f00'0000'0000, kTime = 1'795'264'264'000'000;

// Three tensors, of which one was there before the history began, and an error.
std::string training() {
    const std::string stack = frames("forward", 12);
    return snapshot_of(
        {segment(kBase, 4 * GiB,
                 {block(kBase, GiB, "active_allocated", frames("load", 3)),
                  block(kBase + GiB, 2 * GiB, "active_allocated", stack), block(kBase + 3 * GiB, GiB, "inactive")})},
        {entry("segment_alloc", kBase, 4 * GiB, kTime), entry("alloc", kBase + GiB, 2 * GiB, kTime + 10, stack),
         entry("alloc", kBase + 3 * GiB, GiB, kTime + 20, stack),
         entry("free_requested", kBase + 3 * GiB, GiB, kTime + 30),
         entry("free_completed", kBase + 3 * GiB, GiB, kTime + 30), entry("oom", 0, 8 * GiB, kTime + 40),
         entry("snapshot", 0, 0, kTime + 50)});
}

std::string fault_of(const std::string &bytes) {
    const auto read = read_snapshot(bytes, "s.pickle");
    return read ? "" : read.error();
}
bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("A memory snapshot is a recording of tensors, with the lines of Python that allocated them") {
    const auto read = read_snapshot(training(), "s.pickle");
    INFO((read ? "" : read.error()));
    REQUIRE(read);
    CHECK(read->missing.empty());
    const Summary summary = summarise(*read);
    REQUIRE(summary.gpus.size() == 1);
    const GpuSummary &gpu = summary.gpus[0];
    CHECK(gpu.peak == 4 * GiB);
    CHECK(gpu.at_end == 3 * GiB);
    CHECK(gpu.frees == 1);
    REQUIRE(gpu.refusals.size() == 1);
    CHECK(gpu.refusals[0]->bytes == static_cast<std::int64_t>(8 * GiB));
    REQUIRE(gpu.callers_at_peak.size() == 2);
    CHECK(gpu.callers_at_peak[0].bytes == 3 * GiB);
    CHECK(calls_of(read->text(*gpu.callers_at_peak[0].stack)) ==
          std::vector<std::string>{"forward (train.py:12)", "main"});
    CHECK(calls_of(read->text(*gpu.callers_at_peak[1].stack)).front() == "load (train.py:3)");
    const std::string report = text_report(*read, summary);
    CHECK_THAT(report,
               contains("forward (train.py:12)") && contains("reserved 4 GiB of cuda:0 in 1 segment, and 3 GiB"));
    CHECK_THAT(report, contains("begun 2026-11-2") && contains("memory snapshot of PyTorch"));
}

TEST_CASE("A snapshot without a history shows the memory in use, and says what to call") {
    const auto read = read_snapshot(
        snapshot_of({segment(kBase, 64 * MiB, {block(0, 32 * MiB, "active_allocated"), block(0, 32 * MiB, "inactive")}),
                     segment(kBase + GiB, 64 * MiB, {block(0, 64 * MiB, "active_awaiting_free")})},
                    {}),
        "s.pickle");
    REQUIRE(read);
    CHECK(summarise(*read).gpus.at(0).peak == 96 * MiB);  // blocks without an address follow each other
    REQUIRE(read->missing.size() == 1);
    CHECK_THAT(read->missing[0], contains("_record_memory_history"));
}

TEST_CASE("Memory that the history frees but did not allocate was there before it, and nothing is counted twice") {
    const auto read =
        read_snapshot(snapshot_of({}, {entry("free_completed", kBase, GiB, 5), entry("alloc", kBase, MiB, 6),
                                       entry("alloc", kBase, MiB, 7), entry("alloc", 0, MiB, 8),
                                       entry("alloc", kBase, ~std::uint64_t{0}, 8)}),
                      "s.pickle");
    REQUIRE(read);
    CHECK(summarise(*read).gpus.at(0).peak == GiB);
    CHECK(summarise(*read).gpus.at(0).at_end == MiB);
    REQUIRE(read->missing.size() == 1);
    CHECK_THAT(read->missing[0], contains("3 of its entries could not be used"));
}

TEST_CASE("A pickle that names, calls or builds anything is refused; the error names the byte") {
    for (const char opcode : std::string("cRbioPQ\x81\x82\x83\x84\x92\x93"))
        CHECK_THAT(fault_of(std::string("\x80\x04}") + opcode + "os\nsystem\n."),
                   contains("byte 3 names or calls something of Python") && contains("'s.pickle' begins as a pickle"));
    // Bytes after a whole snapshot are not read.
    CHECK(fault_of(training() + "cos\nsystem\n(X\x02\0\0\0lstR.").empty());
}

TEST_CASE("Pickles of something else, of later protocols and of other forms are refused with a reason") {
    CHECK_THAT(fault_of("\x80\x04]."), contains("not a memory snapshot"));
    CHECK_THAT(fault_of("\x80\x04}."), contains("it has no list of segments"));
    CHECK_THAT(fault_of("\x80\x09."), contains("protocol 9 is later than 5"));
    CHECK_THAT(fault_of("\x80"), contains("no opcode that belongs there"));
    CHECK_THAT(fault_of("\x80\x04"), contains("it ends before its value does"));
    CHECK_THAT(fault_of("\x80\x04I1\n."), contains("byte 2 is no opcode that belongs there (0x49)"));
    for (const std::string wrong :
         {"u.", "e.", "a.", "s.", "0.", "2.", "h\x01.", "(.", "\x85.", "t.", "]q", "\x8a\xff.", "X\xff\xff\xff\xff."})
        CHECK(has(fault_of("\x80\x04" + wrong), "s.pickle"));
}

TEST_CASE("Lists that contain themselves, or expand to thousands of millions of entries, end in time") {
    // A list in a list in a list, ten times each, by the memo: ten thousand million entries, if all were read.
    std::string nested = entry("alloc", kBase, MiB, 1) + "\x94";
    for (int i = 0; i < 9; ++i)
        nested = "](" + nested + [&] {
            std::string again;
            for (int k = 0; k < 9; ++k) again += "h" + std::string(1, static_cast<char>(i));
            return again;
        }() + "e\x94";
    CHECK(fuzz::broken(snapshot_of({}, {nested})).empty());
    // segments: a list that contains itself.
    CHECK(fuzz::broken("\x80\x04}(" + text("segments") + "]\x94(h" + std::string(1, '\0') + "eu.").empty());
}

TEST_CASE("A snapshot that is cut off or changed at any byte is read or refused, and one that is read can be shown") {
    const std::string whole = training();
    REQUIRE(fuzz::broken(whole).empty());
    for (std::size_t length = 1; length < whole.size(); ++length) {
        CHECK(!fault_of(whole.substr(0, length)).empty());
    }
    std::size_t read = 0;
    for (std::size_t i = 1; i < whole.size(); ++i)
        for (const int change : {0x01, 0x80, 0xFF, 0x24}) {
            std::string changed = whole;
            changed[i] = static_cast<char>(changed[i] ^ change);
            const std::string wrong = fuzz::broken(changed);
            if (!wrong.empty()) FAIL("byte " << i << " ^ " << change << ": " << wrong);
            read += fault_of(changed).empty();
        }
    CHECK(read > whole.size());  // most changes are of names and figures
}
