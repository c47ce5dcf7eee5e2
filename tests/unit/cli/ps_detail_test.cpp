// The exact text of `curb ps` for one process with every figure, and the exact JSON.
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "lines_of.hpp"
#include "ps/ps_text.hpp"
#include "terminal/text_width.hpp"
#include "views.hpp"

using namespace views;

namespace {

std::string detail(const View &view, std::optional<std::size_t> width, std::size_t process = 0) {
    ::setenv("TZ", "UTC", 1);
    return ps_detail(view, process, {width, std::nullopt, false}, kNow);
}

}  // namespace

TEST_CASE("every figure that a process reports is shown") {
    CHECK("\n" + detail(busy(), std::nullopt) == R"(
process 4711 (python3) of alice, under curb 0.1.0 for 2 h 3 min
  command     python3 train_bert.py --lr 1e-4 --batch-size 256
  policy      /home/alice/job.json, rule 2 "bert", in force since 12:30:34
              the last edit is not in force: job.json:3:7: '8Gib' is no size
  CURB_CAP    8GiB
  ceiling     /etc/curb/policy.json
  signal      SIGUSR1
  trace       curb-4711.trace.json, 12345 events, 6 more were dropped
GPU 0, NVIDIA H100 80GB HBM3, cuda:0, GPU-8f3a1b2c-0000-4000-8000-000000000000
  held        7.5 GiB, 512 MiB more than its cap; a release is under way
                    4 GiB  allocations
                    3 GiB  stream-ordered pools (2 of them: 2 GiB, 1 GiB)
                  518 MiB  contexts
                 18.5 MiB  code and the driver's own
  cached      512 MiB of it, for reuse
  cap         7 GiB, set by curb cap (7GiB), the machine's ceiling
  allowance   8 GiB, until the next growth step
  refused     14: 12 hit the cap, 2 hit a full device
  waited      3 requests have waited for memory
  released    3.25 GiB: cache 256 MiB, pools 3 GiB
  NVML says   7.63 GiB
requests that wait
  cuda:0      800 MiB, 3 s so far (thread 4720): it hit the allowance; the next growth step is due in 5 s; it fails in 27 s unless there is room by then
  cuda:0      1 GiB, 0 s so far: it hit the cap; it fails in 29 s unless there is room by then
last refusals
  12:30:04    2 GiB on cuda:0 hit the cap, 8 GiB; 7.5 GiB was held
last releases; another one is under way
  12:29:04    3 GiB in 44 ms on SIGUSR1
    cache       0 B in 0.2 ms: nothing cached
    pools       3 GiB in 40 ms
calls that bypass curb
              /opt/lib/libodd.so: binds cuMemAlloc_v2 of the driver directly
)");
}

TEST_CASE("long lines are wrapped below the place where their text begins") {
    for (const std::size_t width : {40, 60, 80}) {
        CAPTURE(width);
        for (const std::string &line : lines_of(detail(busy(), width)))
            if (line.starts_with("  ")) CHECK(width_of(line) <= width);
    }
    CHECK_THAT(detail(busy(), 40), contains("\n              1e-4 --batch-size 256\n"));
}

TEST_CASE("a process that does not answer is shown with the figures of NVML") {
    CHECK("\n" + detail(machine(), std::nullopt, 2) == R"(
process 4800 (python3) of alice, under curb
  command     python3 serve.py
  silent      it has not answered for 300 ms: it is stopped; kill -CONT 4800
GPU 0, NVIDIA H100 80GB HBM3, GPU-8f3a1b2c-0000-4000-8000-000000000000
  NVML says   7 GiB
)");
}

TEST_CASE("problems, missing parts and suspension are shown") {
    View view = busy();
    control::Status &status = *view.processes[0].status;
    status.returns_nothing = {"TensorFlow"};
    CHECK_THAT(detail(view, std::nullopt), contains("  release     TensorFlow's allocator returns nothing before the"));
    status.policy = {"job.json", "", "", "", true, 0, "job.json:1:1: it is empty"};
    status.trace->error = "No space left on device";
    CHECK_THAT(detail(view, std::nullopt), contains("it cannot be used, so curb refuses every request") &&
                                               contains("  job.json:1:1: it is empty\n") &&
                                               contains("nothing is written any more: No space left on device"));
    status.gpus[0].refused = {5};
    CHECK_THAT(detail(view, std::nullopt), contains("refused     5 hit the cap\n"));
    status.policy = {};
    status.trace.reset();
    status.signal = "none";
    CHECK_THAT(detail(view, std::nullopt),
               contains("policy      no file\n") && !contains("trace") && contains("none asks for a release"));
    view.processes[0].suspended = true;
    CHECK_THAT(detail(view, std::nullopt),
               contains("held        7.5 GiB, in host memory\n") && !contains("more than its cap"));
}

TEST_CASE("a nap shows how it went out and back, and what stays on the GPU") {
    View view = busy();
    control::NapStatus &nap = view.processes[0].status->nap.emplace();
    nap = {.out = true, .since = kNow - 60'000, .count = 3, .bytes = 7 * GiB, .refused = {}};
    nap.is_light = true;
    nap.light = {.bytes = 6 * GiB, .out_ms = 150};
    nap.zeros = GiB;
    nap.stays = "526 MiB of the context, until the driver moves it after 10s";
    view.processes[0].suspended = true;
    CHECK_THAT(detail(view, std::nullopt),
               contains("naps        since 12:30:04, with 7 GiB in host memory until its next CUDA call\n"
                        "  light       6 GiB out in 0.1 s (40 GiB/s) by curb; 1 GiB of zeros, not copied\n"
                        "  stays       526 MiB of the context, until the driver moves it after 10s\n") &&
                   contains("held        7.5 GiB, in host memory but for NVML's figure\n"));
    CHECK_THAT(ps_notes(view, kNow).at(0), contains("naps since 12:30:04: 7 GiB of its memory is in host memory"));
    nap.out = nap.is_light = view.processes[0].suspended = false;
    nap.light.back_ms = 200;
    nap.deep = {.bytes = GiB, .out_ms = 500, .back_ms = 250};
    nap.kept = 6 * GiB;
    CHECK_THAT(detail(view, std::nullopt),
               contains("back in 0.2 s (30 GiB/s) by curb") && !contains("stays") &&
                   contains("  deep        1 GiB out in 0.5 s (2 GiB/s), back in 0.2 s (4 GiB/s) by the driver\n"
                            "  kept        6 GiB of host memory, for its next nap\n"));
    for (const std::string &line : lines_of(detail(view, 60)))
        if (line.starts_with("  ")) CHECK(width_of(line) <= 60);
}

TEST_CASE("one request has waited, two have") {
    View view = busy();
    control::GpuStatus &books = view.processes[0].status->gpus[0];
    books.waited = 1;
    CHECK_THAT(detail(view, std::nullopt), contains("1 request has waited for memory\n"));
    books.waited = 2;
    CHECK_THAT(detail(view, std::nullopt), contains("2 requests have waited for memory\n"));
}

TEST_CASE("the JSON answer of a machine with everything in it is the example in tests/command/answers") {
    const std::string answer = ps_json(busy(), {{7, "there is no process 7"}}, kNow);
    if (const char *copy = std::getenv("CURB_PS_ANSWER_TO")) std::ofstream(copy) << answer;
    std::ifstream file(CURB_PS_ANSWER);
    REQUIRE(file);
    CHECK(nlohmann::json::parse(answer) == nlohmann::json::parse(file).at(0));
}
