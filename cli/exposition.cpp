// The texts of families. OpenMetrics 1.0 (openmetrics.io) names a family without its samples' suffix, and ends with
// # EOF; the format before it (Prometheus's 0.0.4) names what the samples are called, and knows neither units nor info.
#include "families.hpp"
#include "json.hpp"

namespace curb::cli {
namespace {

const char *name_of(MetricType type) {
    constexpr const char *kNames[] = {"gauge", "counter", "info"};
    return kNames[static_cast<std::size_t>(type)];
}

std::string sample_name(const Metric &metric) {
    constexpr const char *kSuffixes[] = {"", "_total", "_info"};
    return metric.family + std::string(kSuffixes[static_cast<std::size_t>(metric.type)]);
}

// Both formats escape the same in labels.
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

void append_samples(std::string &out, const Family &family) {
    for (const Sample &sample : family.samples) {
        out += sample_name(family.metric);
        const char *separator = "{";
        for (const auto &[name, value] : sample.labels) {
            out.append(separator).append(name).append("=\"").append(escaped(value)).append("\"");
            separator = ",";
        }
        out.append(sample.labels.empty() ? " " : "} ").append(std::to_string(sample.value)).append("\n");
    }
}

void append_line(std::string &out, const char *what, const std::string &name, const char *text) {
    out.append("# ").append(what).append(" ").append(name).append(" ").append(text).append("\n");
}

std::string json_of(const Sample &sample) {
    json::Members labels;
    for (const auto &[name, value] : sample.labels) labels.emplace_back(name.c_str(), json::text(value));
    return json::object({{"labels", json::object(labels)}, {"value", std::to_string(sample.value)}});
}

std::string json_of(const Family &family) {
    const Metric &metric = family.metric;
    json::Members out{{"name", json::text(sample_name(metric))}, {"type", json::text(name_of(metric.type))}};
    if (*metric.unit) out.emplace_back("unit", json::text(metric.unit));
    out.emplace_back("help", json::text(metric.help));
    out.emplace_back("labels", json::list(label_names(metric), json::text));
    out.emplace_back("samples", json::list(family.samples, [](const Sample &one) { return json_of(one); }));
    return json::object(out);
}

}  // namespace

std::string openmetrics_text(const std::vector<Family> &families) {
    std::string out;
    for (const Family &family : families) {
        const Metric &metric = family.metric;
        append_line(out, "TYPE", metric.family, name_of(metric.type));
        if (*metric.unit) append_line(out, "UNIT", metric.family, metric.unit);
        append_line(out, "HELP", metric.family, metric.help);
        append_samples(out, family);
    }
    return out + "# EOF\n";
}

std::string classic_text(const std::vector<Family> &families) {
    std::string out;
    for (const Family &family : families) {
        const MetricType type = family.metric.type == MetricType::info ? MetricType::gauge : family.metric.type;
        append_line(out, "HELP", sample_name(family.metric), family.metric.help);
        append_line(out, "TYPE", sample_name(family.metric), name_of(type));
        append_samples(out, family);
    }
    return out;
}

std::string json_text(const std::vector<Family> &families) {
    return "[" + policy::joined(families, ",\n", [](const Family &one) { return json_of(one); }) + "]\n";
}

}  // namespace curb::cli
