// Measures how fast curb reads and replays a trace: replay_speed [EVENTS]. Makes the trace in memory, as libcurb.so
// writes it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "control/trace.hpp"
#include "trace/replay.hpp"

namespace {

using namespace curb;
using Clock = std::chrono::steady_clock;

// Returns a trace of allocations and frees of plain memory, with at most about 6 GiB held.
std::string trace_of(std::size_t events) {
    std::string out = control::trace::text({4711, "0.1.0", 1, "bench", {{0, "GPU-1", "", 80 * policy::GiB}}});
    std::vector<control::trace::Event> live;
    policy::Bytes held = 0;
    unsigned random = 1;
    for (std::size_t i = 0; i < events; ++i) {
        random = random * 1'664'525 + 1'013'904'223;
        control::trace::Event event{i * 1'000, control::trace::What::alloc};
        if (held > 6 * policy::GiB || (!live.empty() && (random >> 20) % 2 == 0)) {
            const std::size_t at = (random >> 8) % live.size();
            event = live[at];
            live[at] = live.back();
            live.pop_back();
            event.ns = i * 1'000;
            event.what = control::trace::What::free;
            event.charge = -event.charge;
            held -= static_cast<policy::Bytes>(-event.charge);
        } else {
            event.kind = policy::Kind::plain;
            event.pointer = 0x7f00'0000'0000 + i * 512;
            event.bytes = 1 + (random >> 4) % (16 << 20);
            event.charge = (event.bytes + 0x1F'FFFF) / 0x20'0000 * 0x20'0000;
            held += static_cast<policy::Bytes>(event.charge);
            live.push_back(event);
        }
        event.of_kind = event.held = held;
        event.thread = 4711 + static_cast<int>(i % 4);
        control::trace::append(out, event, 4711);
    }
    return out;
}

void line(const char *what, Clock::time_point began, std::size_t events) {
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    std::printf("  %-34s %8.3f s  %8.2f M events/s\n", what, seconds, static_cast<double>(events) / seconds / 1e6);
}

}  // namespace

int main(int argc, char **argv) {
    const std::size_t events = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
    const std::string text = trace_of(events);
    std::printf("%zu events, %.0f MB of text\n", events, static_cast<double>(text.size()) / 1e6);

    auto began = Clock::now();
    cli::TraceReader reader("bench");
    reader.expect(events);
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    for (std::size_t at = 0; at < text.size(); at += kPiece) reader.take(std::string_view(text).substr(at, kPiece));
    const auto recording = std::move(reader).done();
    if (!recording || recording->events.size() != events) {
        std::fprintf(stderr, "replay_speed: the trace was not read\n");
        return 1;
    }
    line("reading", began, events);

    cli::ReplayTerms terms;
    terms.gpu.cap = terms.total = 80 * policy::GiB;
    began = Clock::now();
    const cli::Replayed served = cli::replay(*recording, 0, terms);
    line("replay, all granted", began, events);
    terms.gpu.cap = 5 * policy::GiB;
    terms.gpu.growth.start = policy::GiB;
    terms.gpu.growth.step = policy::GiB;
    terms.gpu.growth.every = policy::Duration(10);
    began = Clock::now();
    const cli::Replayed refused = cli::replay(*recording, 0, terms);
    line("replay, growing and refusing", began, events);
    began = Clock::now();
    const auto smallest = cli::smallest_cap(*recording, 0, terms.total);
    line("the smallest cap", began, events);
    std::printf("  %zu and %zu refused, smallest cap %s\n", served.refused, refused.refused,
                smallest ? policy::format_human(*smallest).c_str() : "none");
    return 0;
}
