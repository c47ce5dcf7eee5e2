// A traced process that runs beside the test while its policy, its trace's file and its descriptors change.

#include <sys/resource.h>

#include <optional>

#include "capped.hpp"
#include "traces.hpp"

using curb::control::Status;
using curb::control::StatusRequest;
using curb::control::TraceStatus;

namespace {

constexpr std::uint64_t MiB = 1ULL << 20;

class Traced {
  public:
    explicit Traced(const std::string &file = "trace.json") {
        ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
        process_.emplace(dir_.path(), Capped::How{.policy = policy(file)});
    }
    Capped &operator*() { return *process_; }
    Capped *operator->() { return &*process_; }

    void edit(const std::string &file, const std::string &more = "") const { process_->edit(policy(file, more)); }
    [[nodiscard]] fs::path file(const std::string &name = "trace.json") const { return dir_ / name; }

    [[nodiscard]] std::optional<TraceStatus> status() const {
        const auto reply = curb::control::ask(process_->pid(), StatusRequest(), 5s);
        const auto *status = std::get_if<Status>(&reply);
        REQUIRE(status);
        return status->trace;
    }
    // Waits for a status that `wanted` accepts.
    template <class Wanted>
    [[nodiscard]] bool comes_to(Wanted wanted) const {
        return within(10s, [&] { return wanted(status()); });
    }
    // Waits until the file has this many allocations.
    [[nodiscard]] bool has_taken(std::size_t allocations, const std::string &name = "trace.json") const {
        return within(10s, [&] {
            std::error_code none;
            return fs::exists(file(name), none) && plain(read_trace(file(name))) >= allocations;
        });
    }
    // Waits until the trace in this file has begun and will have every later event.
    [[nodiscard]] bool begins(const std::string &name = "trace.json") const {
        return within(10s, [&] {
            std::error_code none;
            return fs::exists(file(name), none) && !read_trace(file(name)).of(What::policy).empty();
        });
    }
    [[nodiscard]] static std::size_t plain(const ReadTrace &read) { return read.of(What::alloc, Kind::plain).size(); }

  private:
    // Returns a policy with a trace in this file of the test's folder; without a trace if the name is empty.
    [[nodiscard]] std::string policy(const std::string &name, const std::string &more = "") const {
        return R"({ "version": 1, "gpu": { "*": { "cap": "8GiB" } }, "trace": { "file": ")" +
               (name.empty() ? "" : file(name).string()) + R"(" })" + more + " }";
    }

    TempDir dir_;
    std::optional<Capped> process_;
};

bool is_well(const std::optional<TraceStatus> &status) { return status && status->error.empty(); }

}  // namespace

TEST_CASE("the status of a traced process has the trace's file and its number of events") {
    Traced traced;
    REQUIRE((*traced)("take 2") == "ok");
    REQUIRE(traced.has_taken(1));
    CHECK(traced.comes_to([&](const auto &status) {
        return is_well(status) && status->file == traced.file().string() && status->dropped == 0 &&
               status->events == read_trace(traced.file()).events.size();
    }));
    // The trace has each policy that came into force.
    traced.edit("trace.json", R"(, "rules": [ { "name": "all", "match": {}, "gpu": { "*": { "cap": "4GiB" } } } ])");
    REQUIRE(within(10s, [&] { return read_trace(traced.file()).of(What::policy).size() == 2; }));
    const auto policies = read_trace(traced.file()).of(What::policy);
    CHECK(policies[0].limit == 8192 * MiB);
    CHECK(policies[1].limit == 4096 * MiB);
    CHECK_THAT(policies[1].text, contains("job.json") && contains("\"all\""));
    CHECK(traced->finish() == 0);
}

TEST_CASE("an edit of the policy begins a trace, ends it, and begins another", "[own-descriptors]") {
    Traced traced("");
    REQUIRE((*traced)("take 2") == "ok");
    CHECK_FALSE(traced.status());
    const std::string threads = (*traced)("threads");
    const auto trace_one_block = [&](const std::string &name) {
        traced.edit(name);
        REQUIRE(traced.begins(name));
        REQUIRE((*traced)("take 2") == "ok");
        REQUIRE(traced.has_taken(1, name));
    };
    trace_one_block("first.json");
    CHECK((*traced)("threads") == std::to_string(std::stoi(threads) + 1));
    for (const auto &entry : fs::directory_iterator("/proc/" + traced->id() + "/fd")) {
        std::error_code closed;  // meanwhile
        CHECK(fs::read_symlink(entry.path(), closed) != traced.file("first.json"));
    }
    trace_one_block("second.json");
    traced.edit("");
    REQUIRE(traced.comes_to([](const auto &status) { return !status; }));
    REQUIRE((*traced)("take 2") == "ok");
    trace_one_block("third.json");
    const std::string held = (*traced)("held");
    CHECK(traced->finish() == 0);

    // Each begins with the books of that moment, and has no allocation from before or after it.
    std::uint64_t before = 0;
    for (const std::string name : {"first.json", "second.json", "third.json"}) {
        CAPTURE(name);
        const ReadTrace read = read_trace(traced.file(name));
        before += name == "third.json" ? 4 * MiB : 2 * MiB;
        REQUIRE(read.of(What::books, Kind::plain).size() == 1);
        CHECK(read.of(What::books, Kind::plain)[0].of_kind == before);
        CHECK(read.of(What::books, Kind::contexts).size() == 1);
        CHECK(Traced::plain(read) == 1);
        CHECK(books_of(read).at(0).sum() == books_of(read).at(0).held);
    }
    CHECK(std::to_string(books_of(read_trace(traced.file("third.json"))).at(0).held) == held);
}

TEST_CASE("a fork child writes nothing into its parent's trace", "[fork-child]") {
    Traced traced;
    CHECK((*traced)("fork and allocate") == "ok");
    REQUIRE((*traced)("take 2") == "ok");
    CHECK(traced->finish() == 0);
    const ReadTrace read = read_trace(traced.file());
    CHECK(Traced::plain(read) == 1);
    for (const Event &event : read.events) CHECK(event.thread != 0);
    CHECK(read.missing() == 0);
}

TEST_CASE("a program that replaces itself by exec begins its own trace") {
    Traced traced;
    REQUIRE((*traced)("take 2") == "ok");
    REQUIRE(traced.has_taken(1));
    CHECK((*traced)("exec") == "ready");
    REQUIRE(within(10s, [&] { return Traced::plain(read_trace(traced.file())) == 0; }));
    CHECK((*traced)("take 2") == "ok");
    CHECK(traced->finish() == 0);
    CHECK(Traced::plain(read_trace(traced.file())) == 1);
}

TEST_CASE("a program that closes every descriptor keeps its trace, and curb does not touch the program's own files",
          "[own-descriptors]") {
    Traced traced;
    REQUIRE(traced.comes_to(is_well));
    CHECK((*traced)("close for files") == "ok");
    CHECK((*traced)("much") == "ok");
    REQUIRE(traced.has_taken(2000));
    CHECK((*traced)("look") == "untouched");
    CHECK(traced->finish() == 0);
    CHECK(read_trace(traced.file()).rest.empty());
}

TEST_CASE("a pipe that was open when the trace began is closed when the program closes it") {
    Traced traced("");
    CHECK((*traced)("pipe") == "ok");
    traced.edit("trace.json");
    REQUIRE(traced.begins());
    CHECK((*traced)("take 2") == "ok");
    REQUIRE(traced.has_taken(1));
    CHECK((*traced)("close the pipe") == "ok");
    CHECK(traced->finish() == 0);
}

TEST_CASE("a trace ends if its file is removed, replaced or changed by others, and an edit begins it again") {
    const std::string how = GENERATE("removed", "replaced", "emptied", "written to");
    CAPTURE(how);
    Traced traced;
    REQUIRE((*traced)("take 2") == "ok");
    REQUIRE(traced.has_taken(1));
    if (how == "removed") fs::remove(traced.file());
    if (how == "replaced") {
        std::ofstream(traced.file("theirs")) << "theirs";
        fs::rename(traced.file("theirs"), traced.file());
    }
    if (how == "emptied") fs::resize_file(traced.file(), 0);
    if (how == "written to") std::ofstream(traced.file(), std::ios::app) << "theirs";
    const std::string left = contents(traced.file());
    CHECK((*traced)("much") == "ok");
    REQUIRE(traced.comes_to([](const auto &status) { return status && !status->error.empty(); }));
    CHECK_THAT(traced.status()->error, contains(traced.file().string()) && contains("An edit of the policy begins it"));
    CHECK(contents(traced.file()) == left);
    REQUIRE(within(10s, [&] { return traced->log().find("the trace has ended") != std::string::npos; }));

    fs::remove(traced.file());
    traced.edit("trace.json", R"(, "release": { "idle": "1h" })");
    REQUIRE(traced.begins());
    REQUIRE((*traced)("take 2") == "ok");
    REQUIRE(traced.has_taken(1));
    CHECK(traced->finish() == 0);
    CHECK(books_of(read_trace(traced.file())).at(0).kinds.at(Kind::plain) == 4 * MiB);
}

TEST_CASE("a trace stops in whole lines where its file may not grow, and goes on when there is room") {
    constexpr rlim_t kLeast = 100'000;
    const auto limit = [](pid_t pid, rlim_t bytes) {
        const rlimit set{bytes, RLIM_INFINITY};
        REQUIRE(::prlimit(pid, RLIMIT_FSIZE, &set, nullptr) == 0);
    };
    Traced traced;
    REQUIRE(traced.comes_to(is_well));
    limit(traced->pid(), kLeast);
    CHECK((*traced)("much") == "ok");  // SIGXFSZ would have killed it
    REQUIRE(traced.comes_to([](const auto &status) { return status && !status->error.empty(); }));
    CHECK_THAT(traced.status()->error, contains("File too large"));
    const ReadTrace stopped = read_trace(traced.file());
    CHECK(stopped.rest.empty());
    CHECK(stopped.events.size() > 100);
    CHECK(fs::file_size(traced.file()) <= kLeast);
    CHECK((*traced)("take 2") == "ok");  // this event is missing too

    limit(traced->pid(), RLIM_INFINITY);
    REQUIRE(traced.comes_to([](const auto &status) { return is_well(status) && status->dropped != 0; }));
    const TraceStatus status = *traced.status();
    const std::string held = (*traced)("held");
    CHECK(traced->finish() == 0);
    const ReadTrace read = read_trace(traced.file());
    CHECK(read.missing() == status.dropped);
    CHECK(read.rest.empty());
    // A reader still ends with the right books.
    CHECK(std::to_string(books_of(read).at(0).held) == held);
    CHECK(books_of(read).at(0).sum() == books_of(read).at(0).held);
}
