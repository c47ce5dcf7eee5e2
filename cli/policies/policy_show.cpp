// `curb policy show`: every field of a policy with its value and where that comes from, and the rules that may change
// it.
#include "commands.hpp"
#include "json.hpp"
#include "policy_rows.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

// The rules of one file with what each would lay over the rest of it.
std::string rules_text(const config::Document &document, const std::string &title) {
    const policy::File &file = document.file;
    if (file.rules.empty()) return {};
    std::string out = "\n" + title + ": the first that matches a process is laid over the rest\n";
    for (const policy::Rule &rule : file.rules) {
        out += "  " + policy::rule_name(file, rule) + ": " + text(rule.match) + "\n";
        out += text(document, rule);
    }
    return out;
}

std::string rules_json(const config::Document &document) {
    return json::list(document.file.rules, [&](const policy::Rule &rule) {
        return json::object({{"rule", json::text(policy::rule_name(document.file, rule))},
                             {"match", json_text(rule.match)},
                             {"settings", json_text(document, rule)}});
    });
}

}  // namespace

int policy_show(const ShowOptions &options) {
    int status = 0;
    const auto policy = read_policy(options.file, options.json, status);
    if (!policy) return status;
    const config::Reading &reading = policy->reading;
    const std::vector<Row> all = rows(reading, {}, policy->source.cap);
    const config::Document none;
    const config::Document &ceiling = reading.ceiling ? *reading.ceiling : none;
    if (options.json) {
        auto members = places_json(*policy);
        members.emplace_back("settings", json_text(all));
        members.emplace_back("rules", rules_json(reading.own));
        members.emplace_back("ceiling_rules", rules_json(ceiling));
        print(json::object(members) + "\n");
    } else {
        print(aligned(places_text(*policy)) + "\n" + text(all) +
              rules_text(reading.own, "rules of " + policy->source.file) + rules_text(ceiling, "rules of the ceiling"));
    }
    return 0;
}

}  // namespace curb::cli
