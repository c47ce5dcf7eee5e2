// From where a policy is and what it says to policy::Policy. Every function here is thread-safe; none throws.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"
#include "policy/result.hpp"

namespace curb::config {

// One thing wrong with a policy, with its place. Lines and columns count from 1; 0: the file as a whole.
struct Diagnostic {
    std::string file;
    unsigned line = 0;
    unsigned column = 0;
    std::string pointer;  // JSON pointer of the value meant (RFC 6901); empty: the document
    std::string message;  // what is wrong and what would be right

    // "job.json:4:14: /gpu/*/cap: '8Gib' is not a size; did you mean '8GiB'?"
    [[nodiscard]] std::string text() const;
};
using Diagnostics = std::vector<Diagnostic>;

// Reads a whole policy file. All errors are found, not only the first. `file` only names it in the messages.
policy::Result<policy::Policy, Diagnostics> parse(std::string_view json, std::string_view file);

// Where this process's policy comes from.
struct Source {
    std::string file;    // path of the policy file; empty: none
    std::string cap;     // text of CURB_CAP; empty: not set
    bool named = false;  // the user named it, so a policy that cannot be used refuses
    [[nodiscard]] bool none() const { return file.empty() && cap.empty(); }
    friend bool operator==(const Source &, const Source &) = default;
};

// CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json (~/.config when unset) if there is one; CURB_CAP is laid over
// either. `environment` looks one variable up (null: unset); nothing is read from it under AT_SECURE.
Source locate(const std::function<const char *(const char *)> &environment);

// Reads the file of `source`, lays CURB_CAP over it. A source that is none() gives the default policy: no caps.
policy::Result<policy::Policy, Diagnostics> load(const Source &source);

// The file's text, or why it cannot be read. At most 1 MiB: a policy is not larger.
policy::Result<std::string, Diagnostic> read_file(const std::string &path);

}  // namespace curb::config
