#include "policy_source.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "json.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

constexpr const char *kStandardInput = "<stdin>";

// Messages name the file as it was typed.
config::Source source_of(const std::string &file) {
    config::Source source = config::locate([&](const char *name) -> const char * {
        if (!file.empty() && std::strcmp(name, "CURB_POLICY") == 0) return file.c_str();
        return std::getenv(name);
    });
    if (!file.empty()) source.file = file == "-" ? kStandardInput : file;
    return source;
}

policy::Result<config::Reading, config::Diagnostics> read_all(const config::Source &source) {
    if (source.file != kStandardInput) return config::read(source);
    const auto text = read_standard_input();
    if (!text) return config::Diagnostics{text.error()};
    return config::read(source, *text);
}

}  // namespace

policy::Result<std::string, config::Diagnostic> read_standard_input() {
    std::string text(config::kLargest + 1, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::cin.gcount()));
    if (text.size() <= config::kLargest) return text;
    return config::Diagnostic{kStandardInput, 0, 0, {}, "it is larger than 1 MiB, which no policy is", true};
}

int exit_status(const config::Diagnostics &diagnostics) {
    if (diagnostics.empty()) return 0;
    return std::any_of(diagnostics.begin(), diagnostics.end(), [](const auto &one) { return one.unread; }) ? 2 : 1;
}

std::string diagnostics_json(const config::Diagnostics &diagnostics) {
    return json::list(diagnostics, [](const config::Diagnostic &one) {
        return json::object({{"file", json::text(one.file)},
                             {"line", one.line},
                             {"column", one.column},
                             {"pointer", json::text(one.pointer)},
                             {"message", json::text(one.message)}});
    });
}

std::optional<PolicySource> read_policy(const std::string &file, bool as_json, int &status) {
    const config::Source source = source_of(file);
    auto reading = read_all(source);
    if (reading) return PolicySource{source, std::move(reading).value()};
    status = std::max(1, exit_status(reading.error()));
    if (as_json) {
        print(json::object({{"valid", false}, {"diagnostics", diagnostics_json(reading.error())}}) + "\n");
    } else {
        for (const config::Diagnostic &diagnostic : reading.error())
            std::fprintf(stderr, "%s\n", diagnostic.text().c_str());
    }
    return std::nullopt;
}

std::vector<std::vector<std::string>> places_text(const PolicySource &policy) {
    const config::Source &source = policy.source;
    std::vector<std::vector<std::string>> out;
    out.push_back({"policy", !source.file.empty() ? source.file
                             : !source.foreign.empty()
                                 ? "none: " + source.foreign + " belongs to another user; CURB_POLICY can name it"
                                 : "none: CURB_POLICY is not set, and there is no curb/policy.json in "
                                   "$XDG_CONFIG_HOME or ~/.config"});
    if (!source.cap.empty()) out.push_back({"CURB_CAP", source.cap});
    out.push_back({"ceiling", policy.reading.ceiling ? source.ceiling : "none: there is no " + source.ceiling});
    return out;
}

json::Members places_json(const PolicySource &policy) {
    return {{"policy", json::text_or_null(policy.source.file)},
            {"cap", json::text_or_null(policy.source.cap)},
            {"ceiling", json::text_or_null(policy.reading.ceiling ? policy.source.ceiling : "")}};
}

}  // namespace curb::cli
