#include "policies/policy_advice.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

using config::Document;
using policy::quote;

// Returns why the pattern of a rule looks like a mistake. Empty if it does not.
std::string doubt_of_pattern(std::string_view pattern) {
    bool in_set = false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] == '\\') {
            if (++i == pattern.size()) return "ends with a '\\' that stands before nothing";
            continue;
        }
        if (pattern[i] == '[' && !in_set) {
            in_set = true;
            // A ']' right behind the '[' is a member of the set.
            if (i + 1 < pattern.size() && pattern[i + 1] == '!') ++i;
            if (i + 1 < pattern.size() && pattern[i + 1] == ']') ++i;
        } else if (pattern[i] == ']') {
            in_set = false;
        }
    }
    if (in_set) return "has a '[' that is never closed, so it stands for itself";
    if (pattern.starts_with('^') || pattern.ends_with('$') || pattern.find(".*") != std::string_view::npos)
        return R"(looks like a regular expression; patterns are globs, as in "python*")";
    return {};
}

class Advice {
  public:
    explicit Advice(const Document &document) : document_(document) {}

    config::Diagnostics all() && {
        about_layer(document_.file.base, "");
        for (std::size_t i = 0; i < document_.file.rules.size(); ++i) {
            const policy::Rule &rule = document_.file.rules[i];
            const std::string at = "/rules/" + std::to_string(i);
            about_match(rule.match, at + "/match");
            about_layer(rule.over, at);
        }
        std::sort(out_.begin(), out_.end(),
                  [](const auto &a, const auto &b) { return std::tie(a.line, a.column) < std::tie(b.line, b.column); });
        return std::move(out_);
    }

  private:
    void about_layer(const policy::Layer &layer, const std::string &at) {
        for (const policy::GpuRule &one : layer.gpu) {
            const std::string gpu = at + "/gpu/" + policy::pointer_token(policy::gpu_key_text(one.key));
            if (one.policy.cap && one.policy.cap->amount == 0)
                say(gpu + "/cap", "a cap of nothing refuses every allocation; leave it out for no cap");
            const auto &every = one.policy.growth.every;
            if (every && every->count() > 0 && !waits(at, gpu))
                say(gpu + "/growth/every",
                    "without \"wait\" a request that comes between two steps is refused; add \"wait\": how long it may "
                    "wait for the next one (\"0s\": not at all)");
        }
        about_turn(layer.suspend, at + "/suspend/turn");
        about_path(layer.log.file, at + "/log/file");
        about_path(layer.trace.file, at + "/trace/file");
        if (layer.trace.stacks && !document_.places.contains(at + "/trace/file") &&
            !document_.places.contains("/trace/file"))
            say(at + "/trace/stacks",
                "without \"file\" there is no trace that could have them; add one, or use --trace");
    }
    void about_turn(const policy::SuspendPolicy &suspend, const std::string &at) {
        constexpr policy::Duration kShort = std::chrono::seconds(10);
        if (suspend.turn && suspend.light == false)
            say(at, "with \"light\": false there are no turns: curb moves nothing itself");
        else if (suspend.turn && *suspend.turn < kShort)
            say(at,
                "so short a turn goes by in moves, which take 0.06 s for each GiB (one H200); curb makes turns ten "
                "times as long as their moves took; from \"30s\" on they are of use to large programs");
    }
    // True if this growth has a "wait", or one that it is merged with.
    [[nodiscard]] bool waits(const std::string &at, const std::string &gpu) const {
        const std::string base = gpu.substr(at.size());
        for (const std::string &place : {gpu, at + "/gpu/*", base, std::string("/gpu/*")})
            if (document_.places.contains(place + "/growth/wait")) return true;
        return false;
    }
    void about_path(const std::optional<std::string> &path, const std::string &at) {
        if (path && path->starts_with('~'))
            say(at, quote(*path, '"') + " names a file in a folder '~': no shell reads it; write the whole path");
    }
    void about_match(const policy::Match &match, const std::string &at) {
        about_pattern(match.exe, at + "/exe");
        about_pattern(match.args, at + "/args");
        about_pattern(match.user, at + "/user");
        if (!match.env) return;
        for (const auto &[name, pattern] : *match.env) about_pattern(pattern, at + "/env", name + ": ");
    }
    void about_pattern(const std::optional<std::string> &pattern, const std::string &at, const std::string &of = {}) {
        if (!pattern) return;
        if (const std::string doubt = doubt_of_pattern(*pattern); !doubt.empty())
            say(at, of + quote(*pattern, '"') + " " + doubt);
    }
    void say(const std::string &at, std::string message) {
        const auto place = document_.places.find(at);
        if (place == document_.places.end()) return;
        out_.push_back({place->second.file, place->second.line, place->second.column, at, std::move(message)});
    }

    const Document &document_;
    config::Diagnostics out_;
};

}  // namespace

config::Diagnostics advice(const Document &document) { return Advice(document).all(); }

}  // namespace curb::cli
