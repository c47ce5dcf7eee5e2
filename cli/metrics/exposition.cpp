// The text of families: Prometheus's text format 0.0.4, which Prometheus and node_exporter's textfile collector read.
#include "families.hpp"

namespace curb::cli {
namespace {

std::string escaped(const std::string &text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n')
            out += "\\n";
        else
            out += c;
    }
    return out;
}

void append_sample(std::string &out, const char *name, const Sample &sample) {
    out += name;
    const char *separator = "{";
    for (const auto &[label, value] : sample.labels) {
        out.append(separator).append(label).append("=\"").append(escaped(value)).append("\"");
        separator = ",";
    }
    out.append(sample.labels.empty() ? " " : "} ").append(std::to_string(sample.value)).append("\n");
}

}  // namespace

std::string text_of(const std::vector<Family> &families) {
    std::string out;
    for (const Family &family : families) {
        const Metric &metric = family.metric;
        const char *type = metric.type == MetricType::counter ? "counter" : "gauge";
        out.append("# HELP ").append(metric.name).append(" ").append(metric.help).append("\n");
        out.append("# TYPE ").append(metric.name).append(" ").append(type).append("\n");
        for (const Sample &sample : family.samples) append_sample(out, metric.name, sample);
    }
    return out;
}

}  // namespace curb::cli
