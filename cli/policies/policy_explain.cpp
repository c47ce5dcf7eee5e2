// `curb policy explain`: which rule a command would get and why, what comes of it, and what would be set for it.
#include <cstdlib>

#include "command.hpp"
#include "json.hpp"
#include "policy/steer.hpp"
#include "policy/words.hpp"
#include "policy_rows.hpp"
#include "policy_source.hpp"
#include "subject.hpp"
#include "terminal.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

struct ExplainOptions {
    std::string file;  // empty: the policy that this environment names
    bool json = false;
    std::vector<std::string> command;

    void declare(Options &takes) {
        takes.json(json);
        takes.argument("FILE", file, "Policy file; -: standard input", Options::Need::optional);
        takes.rest(command, Rest::behind_dashes);
    }
};

struct Judged {
    std::string rule;      // "rule 2 \"bert\""
    std::string mismatch;  // empty: it matches
    bool laid_over;
};

std::vector<Judged> judged(const policy::File &file, const policy::Subject &subject) {
    const policy::Rule *first = policy::first_match(file, subject);
    std::vector<Judged> out;
    for (const policy::Rule &rule : file.rules)
        out.push_back(
            {policy::rule_name(file, rule), policy::mismatch(rule.match, subject).value_or(""), &rule == first});
    return out;
}

std::string rules_text(const std::vector<Judged> &rules, const std::string &title) {
    if (rules.empty()) return {};
    std::vector<std::vector<std::string>> lines{{title}};
    for (const Judged &one : rules) {
        const std::string why = one.laid_over          ? "laid over the rest of the file"
                                : one.mismatch.empty() ? "but an earlier rule does too"
                                                       : one.mismatch;
        lines.push_back({"  " + one.rule, one.mismatch.empty() ? "yes" : "no", why});
    }
    return aligned(lines) + "\n";
}

std::string rules_json(const std::vector<Judged> &rules) {
    return json::list(rules, [](const Judged &one) {
        return json::object({{"rule", json::text(one.rule)},
                             {"matches", one.mismatch.empty()},
                             {"mismatch", json::text_or_null(one.mismatch)},
                             {"laid_over", one.laid_over}});
    });
}

using Variables = std::vector<std::pair<std::string, std::string>>;

std::string variables_text(const Variables &variables) {
    std::string out = "\nset before main, because unset now\n";
    for (const auto &[name, value] : variables) out += "  " + name + "=" + policy::one_line(value) + "\n";
    return variables.empty() ? "" : out;
}

std::string variables_json(const Variables &variables) {
    return json::list(variables, [](const auto &one) {
        return json::object({{"name", json::text(one.first)}, {"value", json::text(one.second)}});
    });
}

std::string heading(const PolicySource &policy, const Program &program, const std::string &args) {
    std::vector<std::vector<std::string>> lines = places_text(policy);
    if (program.fault.empty()) {
        lines.push_back({"program", program.file});
    } else {
        lines.push_back({"program", program.fault + "; the rules are held against its name as typed"});
    }
    if (!args.empty()) lines.push_back({"arguments", policy::one_line(args)});
    for (const std::string &script : program.scripts) lines.push_back({"script", script});
    return aligned(lines);
}

std::string program_json(const Program &program) {
    return json::object({{"file", json::text(program.file)},
                         {"arguments", json::list(program.arguments, json::text)},
                         {"scripts", json::list(program.scripts, json::text)},
                         {"fault", json::text_or_null(program.fault)}});
}

int policy_explain(const ExplainOptions &options) {
    if (options.command.empty()) {
        complain("policy explain: there is no command to explain");
        complain("usage: curb policy explain [--json] [FILE] -- COMMAND [ARGUMENTS...]");
        return kFailure;
    }
    int status = 0;
    const auto policy = read_policy(options.file, options.json, status);
    if (!policy) return status;
    const Environment environment = [](const char *name) { return std::getenv(name); };
    const Program program = program_of(options.command, environment);
    const config::WhoIs who = who_is(program, environment);
    const policy::Subject subject = who(true);
    const config::Reading &reading = policy->reading;
    const config::Outcome outcome = config::outcome(reading, who);

    const std::vector<Judged> own = judged(reading.own.file, subject);
    const std::vector<Judged> ceiling =
        reading.ceiling ? judged(reading.ceiling->file, subject) : std::vector<Judged>();
    const std::vector<Row> all = rows(reading, outcome, policy->source.cap);
    const Variables variables = policy::variables_to_set(outcome.policy, environment);
    if (options.json) {
        auto members = places_json(*policy);
        members.emplace_back("program", program_json(program));
        members.emplace_back("rules", rules_json(own));
        members.emplace_back("ceiling_rules", rules_json(ceiling));
        members.emplace_back("settings", json_text(all));
        members.emplace_back("variables", variables_json(variables));
        print(json::object(members) + "\n");
    } else {
        print(heading(*policy, program, subject.args) + "\n" + rules_text(own, "rules of " + policy->source.file) +
              rules_text(ceiling, "rules of the ceiling") + text(all) + variables_text(variables) +
              "\nPrograms that the command starts in turn are judged for themselves.\n");
    }
    return 0;
}

}  // namespace

extern const Command kPolicyExplain{
    .group = "policy",
    .name = "explain",
    .line = "Say which rule a command would get, and why: curb policy explain [OPTIONS] [FILE] -- COMMAND...",
    .help = R"(
Does not run the command. Finds it as the kernel would: in PATH, through symbolic links, of a script the
interpreter. Compares every rule with it, and prints the resulting policy as curb policy show does, with the
environment variables that would be set. Without FILE: as curb policy show. Exit status as of curb policy check.

Examples:
  curb policy explain job.json -- python train_bert.py --lr 1e-4
  SLURM_JOB_NAME=bert curb policy explain --json job.json -- ./train.sh)",
    .takes = takes<ExplainOptions, policy_explain>,
};

}  // namespace curb::cli
