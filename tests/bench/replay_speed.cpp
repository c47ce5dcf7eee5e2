// How fast traces are read and replayed: replay_speed [EVENTS]
//
// A trace of so many events is made in memory as libcurb.so writes it, read, summed up, drawn and replayed.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "control/trace.hpp"
#include "picture.hpp"
#include "replay.hpp"

namespace {

using namespace curb;
using Clock = std::chrono::steady_clock;

// Allocations and frees around 6 GiB held, every tenth of a pool.
std::string trace_of(std::size_t events) {
    std::string out = control::trace::text({4711, "0.1.0", 1, "bench", {{0, "GPU-1", "", 80 * policy::GiB}}});
    std::vector<control::trace::Event> live;
    policy::Bytes plain = 0, pools = 0;
    unsigned random = 1;
    for (std::size_t i = 0; i < events; ++i) {
        random = random * 1'664'525 + 1'013'904'223;
        control::trace::Event event{i * 1'000, control::trace::What::alloc};
        if (plain > 6 * policy::GiB || (!live.empty() && (random >> 20) % 2 == 0)) {
            const std::size_t at = (random >> 8) % live.size();
            event = live[at];
            live[at] = live.back();
            live.pop_back();
            event.ns = i * 1'000;
            event.what = control::trace::What::free;
            event.charge = -event.charge;
            if (event.kind == policy::Kind::plain) plain -= static_cast<policy::Bytes>(-event.charge);
            if (event.kind == policy::Kind::pools) event.charge = 0;
        } else {
            event.kind = i % 10 == 0 ? policy::Kind::pools : policy::Kind::plain;
            event.pointer = 0x7f00'0000'0000 + i * 512;
            event.bytes = 1 + (random >> 4) % (16 << 20);
            event.charge = event.kind == policy::Kind::plain ? (event.bytes + 0x1F'FFFF) / 0x20'0000 * 0x20'0000 : 0;
            if (event.kind == policy::Kind::plain) plain += static_cast<policy::Bytes>(event.charge);
            if (event.kind == policy::Kind::pools && pools == 0) {
                event.charge = policy::GiB;
                pools = policy::GiB;
            }
            live.push_back(event);
        }
        event.of_kind = event.kind == policy::Kind::plain ? plain : pools;
        event.held = plain + pools;
        event.thread = 4711 + static_cast<int>(i % 4);
        control::trace::append(out, event, 4711);
    }
    return out;
}

void line(const char *what, Clock::time_point began, std::size_t events, std::size_t bytes = 0) {
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    std::printf("  %-34s %8.3f s  %8.2f M events/s", what, seconds, static_cast<double>(events) / seconds / 1e6);
    if (bytes != 0) std::printf("  %8.0f MB/s", static_cast<double>(bytes) / seconds / 1e6);
    std::printf("\n");
}

}  // namespace

int main(int argc, char **argv) {
    const std::size_t events = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
    const std::string text = trace_of(events);
    std::printf("%zu events, %.0f MB of text, %zu bytes each in memory\n", events,
                static_cast<double>(text.size()) / 1e6, sizeof(cli::Moment));

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
    line("reading", began, events, text.size());

    began = Clock::now();
    const std::size_t parsed = std::min<std::size_t>(events, 100'000);
    std::string_view rest = text;
    for (std::size_t i = 0; i < parsed; ++i) {
        const std::size_t end = rest.find('\n');
        if (!control::trace::parse(rest.substr(0, end))) return 1;
        rest.remove_prefix(end + 1);
    }
    line("reading by the general parser", began, parsed);

    began = Clock::now();
    const cli::Summary summary = cli::summarise(*recording);
    line("summing up", began, events);
    began = Clock::now();
    const cli::Picture picture = cli::draw(*recording, summary, 1200);
    line("thinning for the picture", began, events);

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
    std::printf("  %zu samples, %zu and %zu refused, smallest cap %s\n", picture.charts[0].samples.size(),
                served.refused, refused.refused, smallest ? policy::format_human(*smallest).c_str() : "none");
    return 0;
}
