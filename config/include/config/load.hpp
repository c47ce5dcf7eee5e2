// From where policies are and what they say to policy::Policy. Every function here is thread-safe; none throws.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"
#include "policy/result.hpp"
#include "policy/rules.hpp"

namespace curb::config {

// One thing to say about a policy, with its place. Lines and columns count from 1; 0: the file as a whole.
struct Diagnostic {
    std::string file;
    unsigned line = 0;
    unsigned column = 0;
    std::string pointer;     // JSON pointer of the value meant (RFC 6901); empty: the document
    std::string message;     // what is wrong and what would be right
    bool unread = false;     // the file could not be read at all, so nothing is known of what it says
    bool no_memory = false;  // for want of memory: there is nothing to mend, and it can be read once there is some

    // "job.json:4:14: /gpu/*/cap: '8Gib' is not a size; did you mean '8GiB'?"
    [[nodiscard]] std::string text() const;
};
using Diagnostics = std::vector<Diagnostic>;
// Whether memory was all that lacked. (An empty list: even for saying so.)
bool is_for_want_of_memory(const Diagnostics &diagnostics) noexcept;

// Where in a file something stands.
struct Place {
    std::string file;
    unsigned line = 0;
    unsigned column = 0;

    [[nodiscard]] std::string text() const;  // "job.json:4:14"
};

// A policy file, read.
struct Document {
    policy::File file;
    // JSON pointer of each field that the text sets -> the place of its value. Device keys stand there in their one
    // spelling (policy::gpu_key_text), rules by their index: "/gpu/cuda:0/cap", "/rules/0/gpu/*/growth/start".
    std::map<std::string, Place> places;
};

// Reads a whole policy file. All errors are found, not only the first. `file` only names it in the messages.
policy::Result<Document, Diagnostics> parse(std::string_view json, std::string_view file);

// The machine's ceiling. No variable names another: whoever could set that could lift it.
inline constexpr const char *kCeiling = "/etc/curb/policy.json";

// Where this process's policy comes from.
struct Source {
    std::string file;                // path of the user's policy file; empty: none
    std::string cap;                 // text of CURB_CAP; empty: not set
    std::string ceiling = kCeiling;  // path of the ceiling, which need not be there
    bool named = false;              // the user named it, so a policy that cannot be used refuses
    bool own = false;                // `file` was found in the user's place: it must belong to that user, or to root
    std::string foreign;             // another user's file in the user's place, which is not used; empty: none
    [[nodiscard]] bool none() const { return file.empty() && cap.empty(); }
    friend bool operator==(const Source &, const Source &) = default;
};

// Looks an environment variable up; null: unset.
using Variables = std::function<const char *(const char *)>;

// CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json (~/.config when unset) if there is one of this user or root;
// CURB_CAP is laid over either. Nothing is read from `environment` under AT_SECURE. Throws std::bad_alloc, alone of
// these.
Source locate(const Variables &environment);

// The path of the user's own file, whether it is there or not. False: there is no home for one, or no space in `path`.
// Allocates nothing.
bool users_file(const Variables &environment, std::span<char> path) noexcept;

// What all the places of a source say.
struct Reading {
    Document own;                           // the user's file; empty: there is none
    std::optional<Document> ceiling;        // none: the machine has none
    std::vector<policy::Size> narrowed_to;  // CURB_CAP: the lowest holds
};
// Reads them all. The ceiling must belong to root and be writable by nobody else, as its directory must; else it is an
// error like a wrong one. `text`: of the user's file, if the caller has read it already; one that must be the user's
// own is read again.
policy::Result<Reading, Diagnostics> read(const Source &source, std::optional<std::string_view> text = std::nullopt);

// Tells who the process is; called with whether its user's name is needed, which may have to be looked up.
using WhoIs = std::function<policy::Subject(bool with_user)>;
// The calling process, with the environment that it was started with. Reads /proc/self; the user's name by getpwuid_r.
// What cannot be found out is left empty. May throw std::bad_alloc.
policy::Subject this_process(bool with_user);

// What comes out for one process: its rule laid over the file, within the ceiling and its rule. May throw
// std::bad_alloc.
struct Outcome {
    policy::Policy policy;
    const policy::Rule *rule = nullptr;          // of reading.own, that was laid over; null: none
    const policy::Rule *ceiling_rule = nullptr;  // of reading.ceiling
};
Outcome outcome(const Reading &reading, const WhoIs &who);

// read() and outcome() at once. A source that is none() on a machine without a ceiling gives the default policy.
struct Loaded {
    policy::Policy policy;
    std::string rule;      // "rule 2 \"bert\""; empty: none was laid over
    bool ceiling = false;  // the machine's ceiling says something
};
policy::Result<Loaded, Diagnostics> load(const Source &source, const WhoIs &who,
                                         std::optional<std::string_view> text = std::nullopt);

// A policy is not larger.
inline constexpr std::size_t kLargest = std::size_t{1} << 20;

// The file's text, or why it cannot be read. At most kLargest bytes. `own`: see Source.
policy::Result<std::string, Diagnostic> read_file(const std::string &path, bool own = false);

}  // namespace curb::config
