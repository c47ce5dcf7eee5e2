// Finds policy files and reads them into policy::Policy. Thread-safe. No function throws, unless it says so.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/flags.hpp"
#include "policy/policy.hpp"
#include "policy/rules.hpp"
#include "policy/values/result.hpp"

namespace curb::config {

// A message about a policy, with its place. Lines and columns count from 1; 0: the file as a whole.
struct Diagnostic {
    std::string file;
    unsigned line = 0;
    unsigned column = 0;
    std::string pointer;     // JSON pointer of the value (RFC 6901); empty: the document
    std::string message;     // what is wrong, and the remedy
    bool unread = false;     // the file could not be read at all
    bool no_memory = false;  // there was too little memory to read it: the file itself may be valid

    // "job.json:4:14: /gpu/*/cap: '8Gib' is not a size; did you mean '8GiB'?"
    [[nodiscard]] std::string text() const;
};
using Diagnostics = std::vector<Diagnostic>;
// True if there was too little memory to read the policy. True for an empty list: there was too little even for
// the message.
bool is_for_want_of_memory(const Diagnostics &diagnostics) noexcept;

// A place in a file.
struct Place {
    std::string file;
    unsigned line = 0;
    unsigned column = 0;

    [[nodiscard]] std::string text() const;  // "job.json:4:14"
};

// A policy file that was read.
struct Document {
    policy::File file;
    // The place of each value, by the JSON pointer of its field. Device keys have one spelling (policy::gpu_key_text),
    // rules their index: "/gpu/cuda:0/cap", "/rules/0/gpu/*/growth/start".
    std::map<std::string, Place> places;
};

// Reads the text of a policy file. Returns all errors, not only the first. `file`: its name in messages.
policy::Result<Document, Diagnostics> parse(std::string_view json, std::string_view file);

// The path of the machine's ceiling. No variable names another one: a user who sets it could lift the ceiling.
inline constexpr const char *kCeiling = "/etc/curb/policy.json";

// The sources of this process's policy.
struct Source {
    std::string file;     // path of the user's policy file; empty: none
    std::string cap;      // text of CURB_CAP; empty: not set
    std::string job_cap;  // text of CURB_JOB_CAP; empty: not set
    std::string job;      // CURB_JOB: the name of the tree; empty: not set
    std::string slurm;    // SLURM_JOB_ID; empty: not set
    // The text of each flag that is set, in the order of policy/flags.def. Not that of an unset or empty variable.
    std::vector<std::pair<policy::Flag, std::string>> flags{};
    std::string signal;  // text of CURB_SIGNAL; empty: not set
    // The variables of other systems that are set, with their texts (policy/handed_in.hpp).
    std::vector<std::pair<std::string, std::string>> handed_in{};
    std::string ceiling = kCeiling;  // path of the ceiling; the file may be missing
    bool named = false;              // the user named the policy: if it is invalid, curb refuses every request
    bool own = false;                // `file` is the default file: it must belong to the user or to root
    std::string foreign;             // the default file, if it is another user's and so not used; else empty
    [[nodiscard]] bool none() const {
        return file.empty() && cap.empty() && job_cap.empty() && flags.empty() && signal.empty() && handed_in.empty();
    }
    friend bool operator==(const Source &, const Source &) = default;
};

// Returns the value of an environment variable. null if it is unset.
using Variables = std::function<const char *(const char *)>;

// Returns the sources of this process. Source::file is CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json (~/.config
// if that is unset) if the file belongs to this user or to root. The other members come from the variables that Source
// names. Under AT_SECURE it reads no variable. May throw std::bad_alloc.
Source locate(const Variables &environment);

// Writes the path of the user's default file, from the values of XDG_CONFIG_HOME and HOME (null if unset), to `path`.
// The file may be missing. Returns false if the user has no home, or if `path` is too short. Allocates nothing.
[[gnu::cold]] bool users_file(const char *config_home, const char *home, std::span<char> path) noexcept;

// The documents of a source.
struct Reading {
    Document own;                      // the user's file; empty if there is none
    std::optional<Document> ceiling;   // nullopt: the machine has none
    std::string ceiling_text;          // of `ceiling`
    bool is_ceiling_gone = false;      // `ceiling` is the last one, whose file is gone
    policy::Narrowing narrowed_to;     // CURB_CAP, CURB_JOB_CAP, and what other systems hand in
    std::optional<int> signal;         // CURB_SIGNAL: where no file names one
    std::vector<std::string> ignored;  // variables of other systems that cannot be read, and why
    policy::Flags flags;               // over the user's file and its rules
};
// Reads all sources. The ceiling and its directory must belong to root and be writable by root alone; else that is an
// error. `text`: the user's file, if the caller has read it already. A default file is read again, to check its
// owner. `last_ceiling`: the text of the ceiling in force, which stays if its file is gone; empty: there is none.
policy::Result<Reading, Diagnostics> read(const Source &source, std::optional<std::string_view> text = std::nullopt,
                                          std::string_view last_ceiling = {});

// Returns the process as rules see it. `with_user`: with the user's name, which may need a directory service.
using WhoIs = std::function<policy::Subject(bool with_user)>;
// Returns the calling process, with the environment at its start. Reads /proc/self, and the user's name by getpwuid_r.
// Leaves empty what cannot be read. May throw std::bad_alloc.
policy::Subject this_process(bool with_user);

// The policy of one process: the file, overridden by the first matching rule and then by the flags, and limited
// by the ceiling.
// May throw std::bad_alloc.
struct Outcome {
    policy::Policy policy;
    const policy::Rule *rule = nullptr;          // of reading.own; null: none matches
    const policy::Rule *ceiling_rule = nullptr;  // of reading.ceiling; null: none matches
};
Outcome outcome(const Reading &reading, const WhoIs &who);

// Returns the name of this process's job: "tree 4711-123456", "slurm 42", "cgroup /user.slice/…", "user 1000". A
// process outside such a job is a job of its own, with a tree's name. Reads /proc/self. May throw
// std::bad_alloc.
std::string job_name(policy::JobOf of, const Source &source);
// Returns the user of the process that began this process's tree, if that runs and is another user's: a job ends at the
// user. May throw std::bad_alloc.
std::optional<unsigned> other_user_of_tree(const Source &source);
// Returns the name of a tree that this process begins, for CURB_JOB. May throw std::bad_alloc.
std::string new_tree();

// Does read() and outcome(). Without any source and ceiling, returns the default policy.
struct Loaded {
    policy::Policy policy;
    std::string rule;                    // "rule 2 \"bert\""; empty: none matches
    bool ceiling = false;                // the machine's ceiling sets something
    std::string ceiling_text{};          // as in Reading
    bool is_ceiling_gone = false;        // as in Reading
    std::vector<std::string> ignored{};  // as in Reading
};
policy::Result<Loaded, Diagnostics> load(const Source &source, const WhoIs &who,
                                         std::optional<std::string_view> text = std::nullopt,
                                         std::string_view last_ceiling = {});

// The largest policy file, in bytes.
inline constexpr std::size_t kLargest = std::size_t{1} << 20;

// Returns the text of the file, at most kLargest bytes, or why it cannot be read. `own`: see Source.
policy::Result<std::string, Diagnostic> read_file(const std::string &path, bool own = false);

}  // namespace curb::config
