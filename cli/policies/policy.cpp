// `curb policy`, which has commands of its own, and `curb policy schema`.
#include "command.hpp"
#include "config/schema.hpp"
#include "terminal.hpp"

namespace curb::cli {

extern const Command kPolicy{
    .name = "policy",
    .line = "Work with policy files",
    .help = R"(
docs/POLICY.md and curb-policy(5) describe every field; curb policy schema prints the same for editors.

Examples:
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why)",
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
