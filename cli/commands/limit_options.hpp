// The options that limit a program, shared by `curb run`, `curb kernelspec install` and `curb replay`.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "command/command.hpp"
#include "policy/flags.hpp"
#include "policy/policy.hpp"
#include "terminal/messages.hpp"

namespace curb::cli {

struct LimitOptions {
    std::vector<std::string> caps, job_caps;
    std::array<std::optional<std::string>, policy::kFlags> flags;  // by policy::Flag
    bool steer = false;
    std::optional<std::string> policy;

    enum class Flags { all, of_devices };  // of_devices: those that curb replay can apply to a recorded run
    void declare(Options &takes, Flags which = Flags::all) {
        takes.options("-c,--cap", caps, "[KEY=]SIZE",
                      "The most GPU memory on each device, or on the one that KEY names: 8GiB, 75%, cuda:1=4GiB");
        takes.options("--job-cap", job_caps, "[KEY=]SIZE", "The same for all processes that it starts, together");
        for (const policy::FlagRow &row : policy::flags()) {
            if (which == Flags::of_devices && row.part != policy::FlagPart::gpu) continue;
            if (row.flag == policy::Flag::steer)
                takes.flag(row.option, steer, row.doc);
            else
                takes.option(row.option, flags[static_cast<std::size_t>(row.flag)], row.shape, row.doc);
        }
        takes.option("-p,--policy", policy, "FILE", "Policy file; the options above are laid over it");
    }

    // Returns what is wrong with the first option that cannot be read: "--cap: '8Gib' is not a size; …". nullopt: none.
    // Warns of a cap of nothing, as curb policy check does.
    [[nodiscard]] std::optional<std::string> fault() const {
        policy::Flags said;
        for (const policy::FlagRow &row : policy::flags())
            if (const auto &text = flags[static_cast<std::size_t>(row.flag)])
                if (const auto fault = policy::read_flag(row.flag, *text, said)) return row.option + (": " + *fault);
        for (const auto &[option, all] : {std::pair("--cap", &caps), std::pair("--job-cap", &job_caps)})
            for (const std::string &text : *all) {
                const auto parsed = policy::parse_caps(text);
                if (!parsed) return option + (": " + parsed.error());
                for (const policy::CapFor &cap : *parsed) {
                    if (cap.size.amount == 0)
                        say::warning(option + (" " + text +
                                               ": a cap of nothing refuses every allocation; leave it out for no cap"));
                    if (all != &caps) continue;
                    policy::GpuRule rule{cap.key, said.gpu};
                    rule.policy.cap = cap.size;
                    if (const auto wrong = policy::conflicts(std::span(&rule, 1)); !wrong.empty())
                        return "--growth: " + wrong.front().message;
                }
            }
        if (policy && policy->empty()) return "--policy: the path is empty; name a file";
        return std::nullopt;
    }

    // Returns the value of an option in flags.def. The path of its file is absolute: the program may leave the present
    // folder before it opens the file, or start in another one.
    [[nodiscard]] std::optional<std::string> value_of(policy::Flag flag) const {
        std::optional<std::string> out = flags[static_cast<std::size_t>(flag)];
        if (!out || (flag != policy::Flag::trace && flag != policy::Flag::log)) return out;
        const std::size_t file = flag == policy::Flag::log ? out->find(':') + 1 : 0;
        const bool names_file = file < out->size() && (flag == policy::Flag::trace || file != 0);
        return names_file ? out->substr(0, file) + std::filesystem::absolute(out->substr(file)).native() : out;
    }

    // Returns the options but --policy as words of a command line.
    [[nodiscard]] std::vector<std::string> limit_words() const {
        std::vector<std::string> out;
        const auto add = [&](const std::string &option, const std::string &value) {
            out.push_back(option);
            out.push_back(value);
        };
        for (const std::string &cap : caps) add("--cap", cap);
        for (const std::string &cap : job_caps) add("--job-cap", cap);
        for (const policy::FlagRow &row : policy::flags())
            if (const auto value = value_of(row.flag)) add(row.option, *value);
        if (steer) out.emplace_back("--steer");
        return out;
    }

    // Returns all options, with the policy's absolute path: the line runs in another folder.
    [[nodiscard]] std::vector<std::string> words() const {
        std::vector<std::string> out = limit_words();
        if (!policy) return out;
        out.emplace_back("--policy");
        out.push_back(policy->empty() ? "" : std::filesystem::absolute(*policy).native());
        return out;
    }
};

// The options that start a program, shared by `curb run` and `curb kernelspec install`.
struct StartOptions : LimitOptions {
    bool strict = false, sim = false, quiet = false;

    void declare(Options &takes) {
        LimitOptions::declare(takes);
        takes.flag("--strict", strict, "Fail if the program would run without curb, instead of warning");
        takes.flag("--sim", sim, "Use the simulated driver: no GPU is needed or touched");
        takes.flag("--quiet", quiet, "Print errors only; curb's messages in the program are those of --log");
    }
    [[nodiscard]] std::vector<std::string> words() const {
        std::vector<std::string> out = LimitOptions::words();
        for (const auto &[is_set, option] : {std::pair(strict, "--strict"), {sim, "--sim"}, {quiet, "--quiet"}})
            if (is_set) out.emplace_back(option);
        return out;
    }
};

}  // namespace curb::cli
