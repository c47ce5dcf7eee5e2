// The options that limit a program, shared by `curb run` and `curb kernelspec install`.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command.hpp"
#include "policy/flags.hpp"

namespace curb::cli {

struct LimitOptions {
    std::vector<std::string> caps, job_caps;
    std::array<std::optional<std::string>, policy::kFlags> flags;  // by policy::Flag
    bool steer = false;
    std::optional<std::string> policy;

    void declare(Options &takes) {
        takes.options("--cap", caps, "[KEY=]SIZE",
                      "The most GPU memory on each device, or on the one that KEY names: 8GiB, 75%, cuda:1=4GiB");
        takes.options("--job-cap", job_caps, "[KEY=]SIZE", "The same for all processes that it starts, together");
        for (const policy::FlagRow &row : policy::flags()) {
            if (row.flag == policy::Flag::steer)
                takes.flag(row.option, steer, row.doc);
            else
                takes.option(row.option, flags[static_cast<std::size_t>(row.flag)], row.shape, row.doc);
        }
        takes.option("--policy", policy, "FILE", "Policy file; the options above are laid over it");
    }

    // Returns the options as words of a command line, with the policy's absolute path: the line runs in another folder.
    [[nodiscard]] std::vector<std::string> words() const {
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
        if (policy) add("--policy", policy->empty() ? "" : std::filesystem::absolute(*policy).native());
        return out;
    }
};

}  // namespace curb::cli
