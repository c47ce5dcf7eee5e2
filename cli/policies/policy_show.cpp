// `curb policy show`: prints every field of a policy with its value and source, and the rules that may change it.

#include "command.hpp"
#include "json.hpp"
#include "policy_rows.hpp"
#include "policy_source.hpp"
#include "terminal.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

struct ShowOptions {
    std::string file;  // empty: the policy that this environment names
    bool json = false;

    void declare(Options &takes) {
        takes.json(json);
        takes.argument("FILE", file, "Policy file; -: standard input", Options::Need::optional);
    }
};

// Returns the rules of one file with the settings of each.
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

}  // namespace

extern const Command kPolicyShow{
    .group = "policy",
    .name = "show",
    .line = "Show every field, its value and its source",
    .help = R"(
Each field has its value and where it comes from: "default", a place in a file, CURB_CAP. What the machine's ceiling
(/etc/curb/policy.json) says of the same field stands beside it; on a device the lower of two caps holds.
Without FILE: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json. Rules are listed, but none is applied: which one a
command gets, curb policy explain says. Exit status as of curb policy check.

Examples:
  curb policy show job.json
  CURB_CAP=8GiB curb policy show              what a program would get that is started here)",
    .takes = takes<ShowOptions, policy_show>,
};

}  // namespace curb::cli
