// `curb policy` and its commands: check (is a file valid), show (every field with its value and source), explain (which
// rule a command gets and why), schema.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "command/command.hpp"
#include "config/schema.hpp"
#include "policies/policy_advice.hpp"
#include "policies/policy_rows.hpp"
#include "policies/policy_source.hpp"
#include "policies/subject.hpp"
#include "policy/steer.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

// Returns [{"file":"job.json","line":4,"column":14,"pointer":"/gpu/*/cap","message":"…"}].
std::string diagnostics_json(const config::Diagnostics &diagnostics) {
    return json::list(diagnostics, [](const config::Diagnostic &one) {
        return json::object({{"file", json::text(one.file)},
                             {"line", one.line},
                             {"column", one.column},
                             {"pointer", json::text(one.pointer)},
                             {"message", json::text(one.message)}});
    });
}

// Returns 0 if there are no errors, 1 if the policy is invalid, 2 if it could not be read.
int exit_status(const config::Diagnostics &diagnostics) {
    if (diagnostics.empty()) return 0;
    return std::any_of(diagnostics.begin(), diagnostics.end(), [](const auto &one) { return one.unread; }) ? 2 : 1;
}

// Reads standard input as config::read_file reads files.
policy::Result<std::string, config::Diagnostic> read_standard_input() {
    const auto fault = [](std::string why) {
        return config::Diagnostic{kStandardInput, 0, 0, {}, std::move(why), true};
    };
    std::string text;
    std::array<char, std::size_t{16} << 10> block;
    while (text.size() <= config::kLargest) {
        const ssize_t got = ::read(STDIN_FILENO, block.data(), block.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fault(std::string("it cannot be read: ") + std::strerror(errno));
        if (got == 0) return text;
        text.append(block.data(), static_cast<std::size_t>(got));
    }
    return fault("it is larger than 1 MiB, which no policy is");
}

void print_diagnostics(const config::Diagnostics &diagnostics, const char *kind = "") {
    for (config::Diagnostic one : diagnostics) {
        one.message.insert(0, kind);
        print_error(one.text());
    }
}

// ---- check ----

struct CheckOptions {
    std::vector<std::string> files;
    bool json = false;

    void declare(Options &takes) {
        takes.json(json);
        takes.arguments("FILE", files, "Policy file; -: standard input");
    }
};

int policy_check(const CheckOptions &options) {
    int status = 0;
    for (const std::string &file : options.files) {
        config::Diagnostics wrong, warnings;
        const auto text = file == "-" ? read_standard_input() : config::read_file(file);
        const auto document = text ? config::parse(*text, file == "-" ? kStandardInput : file)
                                   : policy::Result<config::Document, config::Diagnostics>({text.error()});
        if (document)
            warnings = advice(*document);
        else
            wrong = document.error();
        if (options.json) {
            print_line(json::object({{"file", json::text(file)},
                                     {"valid", wrong.empty()},
                                     {"read", exit_status(wrong) != 2},
                                     {"diagnostics", diagnostics_json(wrong)},
                                     {"warnings", diagnostics_json(warnings)}}));
        } else {
            if (wrong.empty()) print_text(file + ": valid\n");
            print_diagnostics(wrong);
            print_diagnostics(warnings, "warning: ");
        }
        status = std::max(status, exit_status(wrong));
    }
    return status;
}

// ---- show and explain ----

using Lines = std::vector<std::vector<std::string>>;

// Returns the source of the policy: `file`, by its typed name, or if it is empty that of this environment.
config::Source source_of(const std::string &file) {
    config::Source source = config::locate([&](const char *name) -> const char * {
        if (!file.empty() && std::strcmp(name, "CURB_POLICY") == 0) return file.c_str();
        return std::getenv(name);
    });
    if (!file.empty()) source.file = file == "-" ? kStandardInput : file;
    return source;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

std::string variables_json(const Variables &variables) {
    return json::list(variables, [](const auto &one) {
        return json::object({{"name", json::text(one.first)}, {"value", json::text(one.second)}});
    });
}

// Returns the variables that are set and are part of the policy.
Variables variables_of(const config::Source &source) {
    Variables out{{"CURB_CAP", source.cap}, {"CURB_JOB_CAP", source.job_cap}, {"CURB_SIGNAL", source.signal}};
    out.insert(out.end(), source.handed_in.begin(), source.handed_in.end());
    for (const auto &[flag, said] : source.flags)
        out.emplace_back(policy::flags()[static_cast<std::size_t>(flag)].variable, said);
    std::erase_if(out, [](const auto &one) { return one.second.empty(); });
    return out;
}

// Returns the source of each part of the policy, as lines of cells.
Lines places_text(const config::Source &source, bool has_ceiling) {
    Lines out{{"policy", source.file}};
    if (source.file.empty())
        out[0][1] =
            !source.foreign.empty()
                ? "none: " + source.foreign + " belongs to another user; CURB_POLICY can name it"
                : "none: CURB_POLICY is not set, and there is no curb/policy.json in $XDG_CONFIG_HOME or ~/.config";
    for (const auto &[name, value] : variables_of(source)) out.push_back({name, value});
    out.push_back({"ceiling", has_ceiling ? source.ceiling : "none: there is no " + source.ceiling});
    return out;
}

json::Members places_json(const config::Source &source, bool has_ceiling) {
    return {{"policy", json::text_or_null(source.file)},
            {"cap", json::text_or_null(source.cap)},
            {"environment", variables_json(variables_of(source))},
            {"ceiling", json::text_or_null(has_ceiling ? source.ceiling : "")}};
}

struct ShowOptions {
    std::string file;  // empty: the policy that this environment names
    bool json = false;

    void declare(Options &takes) {
        takes.json(json);
        takes.argument("FILE", file, "Policy file; -: standard input");
    }
};

// Returns the rules of one file, with their settings.
std::string rules_text(const config::Document &document, const std::string &title) {
    const policy::File &file = document.file;
    if (file.rules.empty()) return {};
    std::string out = fmt::format("\n{}: the first that matches a process is laid over the rest\n", title);
    for (const policy::Rule &rule : file.rules)
        out += fmt::format("  {}: {}\n{}", policy::rule_name(file, rule), text(rule.match), text(document, rule));
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
    const config::Source source = source_of(options.file);
    const auto reading = read_policy(source, options.json, status);
    if (!reading) return status;
    const std::vector<Row> all = rows(*reading, {}, source);
    const bool has_ceiling = reading->ceiling.has_value();
    const config::Document ceiling = reading->ceiling.value_or(config::Document());
    if (options.json) {
        auto members = places_json(source, has_ceiling);
        members.emplace_back("settings", json_text(all));
        members.emplace_back("rules", rules_json(reading->own));
        members.emplace_back("ceiling_rules", rules_json(ceiling));
        print_line(json::object(members));
    } else {
        print_text(aligned(places_text(source, has_ceiling)) + "\n" + text(all) +
                   rules_text(reading->own, "rules of " + source.file) + rules_text(ceiling, "rules of the ceiling"));
    }
    return 0;
}

struct ExplainOptions : ShowOptions {
    std::vector<std::string> command;

    void declare(Options &takes) {
        ShowOptions::declare(takes);
        takes.rest(command, Rest::behind_dashes);
    }
};

struct Judged {
    std::string rule;      // "rule 2 \"bert\""
    std::string mismatch;  // empty: it matches
    bool laid_over;
};

std::vector<Judged> judged(const config::Document &document, const policy::Subject &subject) {
    const policy::File &file = document.file;
    const policy::Rule *first = policy::first_match(file, subject);
    std::vector<Judged> out;
    for (const policy::Rule &rule : file.rules)
        out.push_back(
            {policy::rule_name(file, rule), policy::mismatch(rule.match, subject).value_or(""), &rule == first});
    return out;
}

std::string judged_text(const std::vector<Judged> &rules, const std::string &title) {
    if (rules.empty()) return {};
    Lines lines{{title}};
    for (const Judged &one : rules) {
        const std::string why = one.laid_over          ? "laid over the rest of the file"
                                : one.mismatch.empty() ? "but an earlier rule does too"
                                                       : one.mismatch;
        lines.push_back({"  " + one.rule, one.mismatch.empty() ? "yes" : "no", why});
    }
    return aligned(lines) + "\n";
}

std::string judged_json(const std::vector<Judged> &rules) {
    return json::list(rules, [](const Judged &one) {
        return json::object({{"rule", json::text(one.rule)},
                             {"matches", one.mismatch.empty()},
                             {"mismatch", json::text_or_null(one.mismatch)},
                             {"laid_over", one.laid_over}});
    });
}

std::string variables_text(const Variables &variables) {
    std::string out = "\nset before main, because unset now\n";
    for (const auto &[name, value] : variables) out += fmt::format("  {}={}\n", name, policy::one_line(value));
    return variables.empty() ? "" : out;
}

std::string program_json(const Program &program) {
    return json::object({{"file", json::text(program.file)},
                         {"arguments", json::list(program.arguments, json::text)},
                         {"scripts", json::list(program.scripts, json::text)},
                         {"fault", json::text_or_null(program.fault)}});
}

int policy_explain(const ExplainOptions &options) {
    if (options.command.empty()) {
        say::error("there is no command to explain");
        return failed("usage: curb policy explain [--json] [FILE] -- COMMAND [ARGUMENTS...]");
    }
    int status = 0;
    const config::Source source = source_of(options.file);
    const auto reading = read_policy(source, options.json, status);
    if (!reading) return status;
    const Environment environment = [](const char *name) { return std::getenv(name); };
    const Program program = program_of(options.command, environment);
    const config::WhoIs who = who_is(program, environment);
    const policy::Subject subject = who(true);
    const config::Outcome outcome = config::outcome(*reading, who);

    const bool has_ceiling = reading->ceiling.has_value();
    const std::vector<Judged> own = judged(reading->own, subject);
    const std::vector<Judged> ceiling = has_ceiling ? judged(*reading->ceiling, subject) : std::vector<Judged>();
    const std::vector<Row> all = rows(*reading, outcome, source);
    const Variables variables = policy::variables_to_set(outcome.policy, environment);
    if (options.json) {
        auto members = places_json(source, has_ceiling);
        members.emplace_back("program", program_json(program));
        members.emplace_back("rules", judged_json(own));
        members.emplace_back("ceiling_rules", judged_json(ceiling));
        members.emplace_back("settings", json_text(all));
        members.emplace_back("variables", variables_json(variables));
        print_line(json::object(members));
        return 0;
    }
    Lines heading = places_text(source, has_ceiling);
    heading.push_back({"program", program.fault.empty()
                                      ? program.file
                                      : program.fault + "; the rules are held against its name as typed"});
    if (!subject.args.empty()) heading.push_back({"arguments", policy::one_line(subject.args)});
    for (const std::string &script : program.scripts) heading.push_back({"script", script});
    print_text(aligned(heading) + "\n" + judged_text(own, "rules of " + source.file) +
               judged_text(ceiling, "rules of the ceiling") + text(all) + variables_text(variables) +
               "\nPrograms that the command starts in turn are judged for themselves.\n");
    return 0;
}

}  // namespace

std::optional<config::Reading> read_policy(const config::Source &source, bool as_json, int &status) {
    const bool is_piped = source.file == kStandardInput;
    const auto text = is_piped ? read_standard_input() : std::string();
    auto reading = !text      ? policy::Result<config::Reading, config::Diagnostics>(config::Diagnostics{text.error()})
                   : is_piped ? config::read(source, *text)
                              : config::read(source);
    if (reading) return std::move(reading).value();
    const config::Diagnostics &wrong = reading.error();
    status = std::max(1, exit_status(wrong));
    if (as_json)
        print_line(json::object({{"valid", false}, {"diagnostics", diagnostics_json(wrong)}}));
    else
        print_diagnostics(wrong);
    return std::nullopt;
}

extern const Command kPolicy{
    .name = "policy",
    .line = "Work with policy files",
    .help = R"(
curb-policy(5) and docs/POLICY.md (in share/doc/curb/) describe every field; curb policy schema prints the same for editors.

Examples:
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why)",
};

extern const Command kPolicyCheck{
    .group = "policy",
    .name = "check",
    .line = "Check policies, and print every error and its place",
    .help = R"(
Warnings name what is valid and probably a mistake, such as a pattern that looks like a regular expression. They do not
change the exit status.

Exit status 0: all are valid, 1: some are not, 2: some cannot be read.

Examples:
  curb policy check job.json
  curb policy check --json *.json             one answer a line
  generate-policy | curb policy check -)",
    .takes = takes<CheckOptions, policy_check>,
};

extern const Command kPolicyShow{
    .group = "policy",
    .name = "show",
    .line = "Show every field, its value and its source",
    .help = R"(
Each field has its value and where it comes from: "default", a place in a file, a variable (CURB_CAP). What the machine's ceiling
(/etc/curb/policy.json) says of the same field stands beside it; on a device the lower of two caps holds.
Without FILE: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json. Rules are listed, but none is applied: curb policy
explain shows which one a command gets. Exit status as of curb policy check.

Examples:
  curb policy show job.json
  CURB_CAP=8GiB curb policy show              what a program would get that is started here)",
    .takes = takes<ShowOptions, policy_show>,
};

extern const Command kPolicyExplain{
    .group = "policy",
    .name = "explain",
    .line = "Show which rule a command gets, and why",
    .usage = "curb policy explain [OPTIONS] [FILE] -- COMMAND...",
    .help = R"(
Does not run the command. Finds it as the kernel would: in PATH, through symbolic links, and the interpreter of
a script. Compares every rule with it, and prints the resulting policy as curb policy show does, with the
environment variables that would be set. Without FILE: as curb policy show. Exit status as of curb policy check.

Examples:
  curb policy explain job.json -- python train_bert.py --lr 1e-4
  SLURM_JOB_NAME=bert curb policy explain --json job.json -- ./train.sh)",
    .takes = takes<ExplainOptions, policy_explain>,
};

extern const Command kPolicySchema{
    .group = "policy",
    .name = "schema",
    .line = "Print the JSON Schema of policy files",
    .help = R"(
Editors that know JSON Schema complete and check policies by it while they are typed.

Examples:
  curb policy schema > policy.schema.json     for "$schema": "./policy.schema.json" in a policy beside it)",
    .takes = [](Options &) -> std::function<int()> {
        return [] {
            print(config::schema());
            return 0;
        };
    },
};

}  // namespace curb::cli
