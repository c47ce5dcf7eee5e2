// Measures the cost of driver calls. The process stays alive, so that several of them, under several preloads, take
// samples in turns: each is warm, and a drifting clock affects all.
//
//   probe NAME [WORD...]       prints {"event": "ready"}, and for each line "sample COUNT" on stdin {"event": "sample",
//                              "ns": of one operation}, with "direct_ns" of one by the driver's own functions if it
//                              compares the two, or the reason in "no_direct"; ends at the end of stdin
//   probe --direct             prints each function with the address that programs find, and that of the driver's own
//
// Status 3: the probe cannot run here. The last line of stderr has the reason.

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "driver.hpp"
#include "probe.hpp"

namespace {

using namespace bench;

std::vector<Probe> probes() {
    std::vector<Probe> all;
    for (const auto &some : {call_probes(), crowd_probes(), policy_probes(), start_probes()})
        all.insert(all.end(), some.begin(), some.end());
    return all;
}

void list_functions() {
    if (!direct().missing.empty()) throw Cannot(direct().missing);
#define BENCH_LIST(name)                                                            \
    std::printf("%s %p %p\n", #name, reinterpret_cast<const void *>(driver().name), \
                reinterpret_cast<const void *>(direct().functions.name));
    BENCH_FUNCTIONS(BENCH_LIST)
#undef BENCH_LIST
}

void serve(const Sample &sample) {
    std::puts(R"({"event": "ready"})");
    std::fflush(stdout);
    std::array<char, 64> line{};
    while (std::fgets(line.data(), line.size(), stdin)) {
        long count = 0;
        if (std::sscanf(line.data(), "sample %ld", &count) != 1 || count < 1)
            throw Cannot(std::string("there is no command ") + line.data());
        const Times times = sample(count);
        std::printf(R"({"event": "sample", "ns": %.3f)", times.ns);
        if (times.direct_ns) std::printf(R"(, "direct_ns": %.3f)", *times.direct_ns);
        if (!times.no_direct.empty()) std::printf(R"(, "no_direct": "%s")", times.no_direct.c_str());
        std::puts("}");
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char **argv) try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 1 && words[0] == "--direct") {
        list_functions();
        return 0;
    }
    for (const Probe &probe : probes()) {
        if (words.empty() || words[0] != probe.name || words.size() - 1 < probe.words) continue;
        serve(probe.make(Words(words).subspan(1)));
        return 0;
    }
    std::fprintf(stderr, "usage: probe --direct | NAME [WORD...]\n");
    return 2;
} catch (const std::exception &why) {
    std::fprintf(stderr, "%s\n", why.what());
    return 3;
}
