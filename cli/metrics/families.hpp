// The output of `curb metrics`: the families of metrics.def, filled from a view of the machine, and their text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "view.hpp"

namespace curb::cli {

enum class MetricType : std::uint8_t { gauge, counter };

struct Metric {
    const char *name;
    MetricType type;
    const char *labels;  // joined by blanks
    const char *help;
};

struct Sample {
    std::vector<std::pair<std::string, std::string>> labels;  // those that are known, in the table's order
    std::uint64_t value = 0;
    friend bool operator==(const Sample &, const Sample &) = default;
};

struct Family {
    Metric metric;
    std::vector<Sample> samples;  // none: nothing is known, which is not 0
};

// All families, in the order of the table. The values of labels are valid UTF-8 on one line.
std::vector<Family> families_of(const View &view, const std::string &version);

// Prometheus's text format 0.0.4, which Prometheus and node_exporter's textfile collector read.
std::string text_of(const std::vector<Family> &families);

}  // namespace curb::cli
