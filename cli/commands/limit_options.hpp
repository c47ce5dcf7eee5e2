// The options that limit a program, shared by `curb run`, `curb kernelspec install` and `curb replay`.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command/command.hpp"
#include "policy/flags.hpp"

namespace curb::cli {

struct LimitOptions {
    std::vector<std::string> caps, job_caps;
    std::array<std::optional<std::string>, policy::kFlags> flags;  // by policy::Flag
    bool steer = false;
    std::optional<std::string> policy;

    enum class Flags { all, of_devices };  // of_devices: those that curb replay can apply to a recorded run
    void declare(Options &takes, Flags which = Flags::all) {
        takes.options("--cap", caps, "[KEY=]SIZE",
                      "The most GPU memory on each device, or on the one that KEY names: 8GiB, 75%, cuda:1=4GiB");
        takes.options("--job-cap", job_caps, "[KEY=]SIZE", "The same for all processes that it starts, together");
        for (const policy::FlagRow &row : policy::flags()) {
            if (which == Flags::of_devices && row.part != policy::FlagPart::gpu) continue;
            if (row.flag == policy::Flag::steer)
                takes.flag(row.option, steer, row.doc);
            else
                takes.option(row.option, flags[static_cast<std::size_t>(row.flag)], row.shape, row.doc);
        }
        takes.option("--policy", policy, "FILE", "Policy file; the options above are laid over it");
    }

    // Returns what is wrong with the first option that cannot be read: "--cap: '8Gib' is not a size; …". nullopt: none.
    [[nodiscard]] std::optional<std::string> fault() const {
        for (const auto &[option, all] : {std::pair("--cap", &caps), std::pair("--job-cap", &job_caps)})
            for (const std::string &cap : *all)
                if (const auto parsed = policy::parse_caps(cap); !parsed) return option + (": " + parsed.error());
        policy::Flags said;
        for (const policy::FlagRow &row : policy::flags())
            if (const auto &text = flags[static_cast<std::size_t>(row.flag)])
                if (const auto fault = policy::read_flag(row.flag, *text, said)) return row.option + (": " + *fault);
        if (policy && policy->empty()) return "--policy: the path is empty; name a file";
        return std::nullopt;
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
            if (const auto &value = flags[static_cast<std::size_t>(row.flag)]) add(row.option, *value);
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

}  // namespace curb::cli
