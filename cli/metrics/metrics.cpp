// `curb metrics`: what `curb ps` shows, as figures for Prometheus.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "commands.hpp"
#include "families.hpp"
#include "replace_file.hpp"
#include "view.hpp"

namespace curb::cli {
namespace {

constexpr auto kMetricsPatience = std::chrono::seconds(1);  // far below Prometheus's own, 10 s

int written(const std::string &text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
    if (errno != EPIPE) complain(std::string("metrics: standard output cannot be written: ") + std::strerror(errno));
    return 1;
}

}  // namespace

int metrics(const MetricsOptions &options) {
    const auto families = families_of(look_around(kMetricsPatience), CURB_VERSION);
    if (!options.textfile) return written(text_of(families));
    const auto wrong = replace_file(*options.textfile, text_of(families));
    if (wrong) complain("metrics: " + *wrong);
    return wrong ? 1 : 0;
}

}  // namespace curb::cli
