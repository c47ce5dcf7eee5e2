// The metrics of a view of the machine, and their text.
#include <algorithm>

#include "catch.hpp"
#include "metrics/families.hpp"
#include "policy/kinds.hpp"
#include "views.hpp"

using namespace views;

namespace {

// A capped and an uncapped process on one GPU.
View two_processes() {
    View view;
    ViewGpu one = gpu(0, 10 * GiB);
    view.processes = {process(4711, "alice", "python3 train.py --lr 1"), process(4712, "bob", "julia")};
    give_books(view.processes[0], one, 3 * GiB, 8 * GiB);
    control::GpuStatus &books = view.processes[0].status->gpus[0];
    books.kinds[static_cast<std::size_t>(policy::Kind::plain)] = 2 * GiB;
    books.kinds[static_cast<std::size_t>(policy::Kind::contexts)] = GiB;
    books.refused[static_cast<std::size_t>(policy::Limit::cap)] = 7;
    books.released[static_cast<std::size_t>(policy::Step::pools)] = 256 * MiB;
    one.uses = {{1, std::nullopt, 7 * GiB}, {0, 0, 3 * GiB}};
    view.gpus = {std::move(one)};
    return view;
}

const Family &family(const std::vector<Family> &families, const std::string &name) {
    for (const Family &one : families)
        if (one.metric.name == name) return one;
    throw std::runtime_error("no family " + name);
}
std::vector<Sample> samples(const View &view, const std::string &name) {
    return family(families_of(view, "1.2.3"), name).samples;
}
std::vector<Sample> samples_with(const View &view, const std::string &name, const std::string &label,
                                 const std::string &value) {
    std::vector<Sample> out;
    for (const Sample &sample : samples(view, name))
        if (std::count(sample.labels.begin(), sample.labels.end(), std::pair(label, value)) == 1) out.push_back(sample);
    return out;
}
bool has_line(const std::string &text, const std::string &line) {
    return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

const std::string kUuid = gpu(0, 0).uuid;
const std::string kProcess = R"({gpu="0",uuid=")" + kUuid + R"(",pid="4711",user="alice",command="python3")";

}  // namespace

TEST_CASE("a capped process has the figures of its books and of NVML, another process only those of NVML") {
    const View view = two_processes();
    CHECK(samples(view, "curb_held_bytes").size() == 1);
    CHECK(samples(view, "curb_held_bytes").at(0).value == 3 * GiB);
    CHECK(samples(view, "curb_cap_bytes").at(0).value == 8 * GiB);
    CHECK(samples_with(view, "curb_nvml_used_bytes", "pid", "4711").at(0).value == 3 * GiB);
    CHECK(samples_with(view, "curb_nvml_used_bytes", "pid", "4712").at(0).value == 7 * GiB);
}

TEST_CASE("an unknown figure has no series") {
    View view = two_processes();
    CHECK(samples(view, "curb_allowance_bytes").empty());
    CHECK(samples(view, "curb_trace_events_total").empty());
    view.nvml_fault = "there is no NVML";
    view.gpus[0].index.reset();
    view.gpus[0].used.reset();
    view.gpus[0].free.reset();
    for (ViewUse &use : view.gpus[0].uses) use.nvml.reset();
    for (const char *name : {"curb_gpu_used_bytes", "curb_gpu_free_bytes", "curb_nvml_used_bytes"})
        CHECK(samples(view, name).empty());
    CHECK(samples(view, "curb_nvml_up").at(0).value == 0);
    CHECK(samples_with(view, "curb_processes", "state", "uncapped").empty());
    CHECK(samples(view, "curb_held_bytes").at(0).labels.front().first == "uuid");  // and no index
    // Of those that answer, a process without a limit is not capped.
    const auto counts = [&](unsigned capped, unsigned observed) {
        CHECK(samples_with(view, "curb_processes", "state", "capped").at(0).value == capped);
        CHECK(samples_with(view, "curb_processes", "state", "observed").at(0).value == observed);
    };
    counts(1, 0);
    view.processes[0].status->gpus[0].cap.reset();
    counts(0, 1);
    // A process that does not answer is counted.
    view = two_processes();
    view.processes[0].status.reset();
    view.processes[0].trouble = "stopped";
    view.gpus[0].uses[1].books.reset();
    for (const auto &[state, count] : {std::pair("silent", 1U), {"capped", 0U}, {"uncapped", 1U}, {"unknown", 0U}})
        CHECK(samples_with(view, "curb_processes", "state", state).at(0).value == count);
    for (const char *name : {"curb_held_bytes", "curb_policy_unusable"}) CHECK(samples(view, name).empty());
    CHECK(samples(view, "curb_nvml_used_bytes").size() == 2);
}

TEST_CASE("a process of another user has the metrics that it posts, and counts as unknown if it posts nothing") {
    View view = two_processes();
    view.processes[1].unseen = true;
    const auto count = [&](const char *state) {
        return samples_with(view, "curb_processes", "state", state).at(0).value;
    };
    CHECK(count("unknown") == 1);
    CHECK(count("uncapped") == 0);
    CHECK(samples_with(view, "curb_held_bytes", "pid", "4712").empty());
    CHECK(samples_with(view, "curb_idle_held_bytes", "pid", "4712").empty());
    view.processes[1].posted.emplace().gpus = {{view.gpus[0].uuid, 2 * GiB, 5 * GiB, 0, 0}};
    for (ViewUse &use : view.gpus[0].uses)
        if (use.process == 1) use = {1, std::nullopt, use.nvml, 0, 2 * GiB};
    CHECK(count("unknown") == 0);
    CHECK(count("capped") == 2);
    CHECK(samples_with(view, "curb_held_bytes", "pid", "4712").at(0).value == 2 * GiB);
    CHECK(samples_with(view, "curb_cap_bytes", "pid", "4712").at(0).value == 5 * GiB);
    CHECK(samples_with(view, "curb_idle_held_bytes", "pid", "4712").at(0).value == 2 * GiB);
}

TEST_CASE("each kind, limit and step is a series of its own") {
    const View view = two_processes();
    CHECK(samples(view, "curb_kind_bytes").size() == policy::kKinds);
    CHECK(samples_with(view, "curb_kind_bytes", "kind", "plain").at(0).value == 2 * GiB);
    CHECK(samples(view, "curb_refused_total").size() == policy::kLimits);
    CHECK(samples_with(view, "curb_refused_total", "why", "cap").at(0).value == 7);
    CHECK(samples(view, "curb_released_bytes_total").size() == policy::kSteps);
    CHECK(samples_with(view, "curb_released_bytes_total", "step", "pools").at(0).value == 256 * MiB);
}

TEST_CASE("waits, faults of the policy, the trace and suspension are series of a process") {
    View view = two_processes();
    for (const char *name : {"curb_waiting", "curb_policy_unusable", "curb_policy_rejected"})
        CHECK(samples(view, name).at(0).value == 0);
    for (const char *name :
         {"curb_waiting_bytes", "curb_waiting_since_timestamp_seconds", "curb_step_due_timestamp_seconds"})
        CHECK(samples(view, name).empty());
    control::Status &status = *view.processes[0].status;
    status.gpus[0].waiting = 2;
    status.waits = {{0, 1, 5'000'900, GiB, policy::Limit::allowance, 9'000'000, 7'000'100},
                    {0, 2, 6'000'000, 2 * GiB, policy::Limit::cap, 9'000'000, {}},
                    {1, 3, 4'000'000, 8 * GiB, policy::Limit::cap, 9'000'000, {}}};
    status.policy.unusable = true;
    status.policy.error = "job.json:1:1: …";
    status.trace = control::TraceStatus{"t.json", 100, 3, ""};
    view.processes[0].suspended = true;
    const std::pair<const char *, double> expected[] = {
        {"curb_waiting", 2},
        {"curb_waiting_bytes", double{3 * GiB}},
        {"curb_waiting_since_timestamp_seconds", 5000.9},
        {"curb_step_due_timestamp_seconds", 7000.1},
        {"curb_policy_unusable", 1},
        {"curb_policy_rejected", 1},
        {"curb_suspended", 1},
        {"curb_trace_events_total", 100},
        {"curb_trace_dropped_total", 3},
    };
    const auto check = [&](const char *name, double value) {
        INFO(name);
        REQUIRE(samples(view, name).size() == 1);
        CHECK(samples(view, name)[0].value == value);
    };
    for (const auto &[name, value] : expected) check(name, value);
    status.nap =
        control::NapStatus{.out = true, .since = 1, .count = 3, .bytes = GiB, .waited_ms = 1'500, .refused = {}};
    check("curb_napping", 1);
    check("curb_nap_waited_seconds", 1.5);
    check("curb_nap_waited_milliseconds", 1'500);
    check("curb_suspended", 0);  // not by curb suspend
    check("curb_nap_light", 0);
    CHECK(samples(view, "curb_nap_move_seconds").empty());
    status.nap->is_light = true;
    status.nap->light = {.bytes = 6 * GiB, .out_ms = 150};
    status.nap->zeros = status.nap->zeros_total = GiB;
    status.nap->light_total = 12 * GiB;
    status.nap->kept = 6 * GiB;
    check("curb_nap_kept_bytes", 6 * GiB);
    check("curb_nap_light", 1);
    check("curb_nap_move_seconds", 0.15);
    check("curb_nap_copied_bytes_total", 12 * GiB);
    check("curb_nap_zero_bytes_total", GiB);
    CHECK(samples_with(view, "curb_nap_moved_bytes", "way", "light").at(0).value == 6 * GiB);
    CHECK(samples_with(view, "curb_nap_moved_bytes", "way", "zeros").at(0).value == GiB);
}

TEST_CASE("an instance has a UUID of its own and the index of its GPU") {
    View view = two_processes();
    ViewGpu &instance = view.gpus.emplace_back();
    instance.index = 3;
    instance.uuid = "MIG-c1d2";
    instance.parent = kUuid;
    const auto found = samples_with(view, "curb_gpu_info", "uuid", "MIG-c1d2");
    REQUIRE(found.size() == 1);
    CHECK(found[0].labels.front() == std::pair<std::string, std::string>("gpu", "0"));
    CHECK(found[0].labels.back() == std::pair<std::string, std::string>("parent", kUuid));
}

TEST_CASE("no two series of a family have the same labels") {
    View view = two_processes();
    view.gpus.push_back(view.gpus[0]);
    view.gpus[1].index = 1;
    view.gpus[1].uuid = "GPU-other";
    for (const std::uint64_t pid_namespace : {1, 2}) add_posted(view, pid_namespace, 4711, GiB);
    CHECK(samples_with(view, "curb_held_bytes", "pid_namespace", "2").at(0).value == GiB);
    for (const Family &one : families_of(view, "1.2.3"))
        for (const Sample &sample : one.samples)
            CHECK(std::count_if(one.samples.begin(), one.samples.end(),
                                [&](const Sample &other) { return other.labels == sample.labels; }) == 1);
}

TEST_CASE("the text declares each series by the name of its samples") {
    const std::string text = text_of(families_of(two_processes(), "1.2.3"));
    CHECK(has_line(text, "# TYPE curb_held_bytes gauge"));
    CHECK(has_line(text, "curb_held_bytes" + kProcess + "} 3221225472"));
    CHECK(has_line(text, "# TYPE curb_released_bytes_total counter"));
    CHECK(has_line(text, "curb_released_bytes_total" + kProcess + R"(,step="pools"} 268435456)"));
    CHECK(has_line(text, "# TYPE curb_info gauge"));
    CHECK(has_line(text, R"(curb_info{version="1.2.3"} 1)"));
    CHECK(has_line(text, "curb_nvml_up 1"));
}

TEST_CASE("a process's name is escaped in its label, and its command line is in no label") {
    View view = two_processes();
    CHECK_THAT(text_of(families_of(view, "1.2.3")), !contains("train.py"));
    view.processes[0].name = "a\"b\\c\nd\xFF";
    CHECK_THAT(text_of(families_of(view, "1.2.3")), contains("command=\"a\\\"b\\\\c\\\\x0Ad\xEF\xBF\xBD\"} "));
    const std::vector<Family> families = {{{"a", MetricType::gauge, "l", "h"}, {{{{"l", "1\n2\"\\"}}, 1}}}};
    CHECK(has_line(text_of(families), R"(a{l="1\n2\"\\"} 1)"));
}

TEST_CASE("the names in the table follow Prometheus's conventions") {
    for (const Family &one : families_of({}, "1.2.3")) {
        const std::string name = one.metric.name;
        INFO(name);
        CHECK(name.starts_with("curb_"));
        CHECK(name.ends_with("_total") == (one.metric.type == MetricType::counter));
        CHECK(std::string(one.metric.help).find_first_of("\"\\\n") == std::string::npos);
        CHECK_FALSE(std::string(one.metric.help).ends_with("."));
    }
}
