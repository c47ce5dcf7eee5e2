// The output of `curb metrics`: the metrics of metrics.def, filled from a View, and their text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "machine/view.hpp"

namespace curb::cli {

enum class MetricType : std::uint8_t { gauge, counter };

struct Metric {
    const char *name;
    MetricType type;
    const char *labels;  // joined by blanks
    const char *help;
};

struct Sample {
    std::vector<std::pair<std::string, std::string>> labels;  // in the table's order, without unknown ones
    double value = 0;                                         // whole numbers below 2^53, such as bytes, are exact
    friend bool operator==(const Sample &, const Sample &) = default;
};

struct Family {
    Metric metric;
    std::vector<Sample> samples;  // none: not known, which is not 0
};

// Returns all families, in the order of the table. Label values are valid UTF-8 on one line.
std::vector<Family> families_of(const View &view, const std::string &version);

// Returns Prometheus's text format 0.0.4, which Prometheus and node_exporter's textfile collector read.
std::string text_of(const std::vector<Family> &families);

}  // namespace curb::cli
