#include "share.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "config/load.hpp"
#include "policy/values/words.hpp"

namespace curb::slurm {
namespace {

using policy::Size;
using List = std::vector<std::string>;

List split(std::string_view text, std::string_view separators) {
    List out;
    while (!text.empty()) {
        const std::size_t end = text.find_first_of(separators);
        if (end != 0) out.emplace_back(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return out;
}

// An empty list unsets its variable.
std::optional<std::string> or_unset(std::string text) {
    return text.empty() ? std::nullopt : std::optional(std::move(text));
}

// Returns the elements of `all` that are not in `without`.
List without(List all, const List &without) {
    std::erase_if(
        all, [&](const std::string &one) { return std::find(without.begin(), without.end(), one) != without.end(); });
    return all;
}

// Returns "33.33%" for one shard of three. At most 100%.
Size part_of_a_gpu(std::uint64_t shards, std::uint64_t of) {
    constexpr std::uint64_t kWhole = 10'000;
    return {Size::Unit::basis_points, shards >= of ? kWhole : shards * kWhole / of};
}

constexpr const char *kKeys = "lib=FILE, shards-per-gpu=NUMBER, shard-size=SIZE and default=SIZE";

}  // namespace

policy::Result<Config, std::string> read_config(std::span<char *const> words, std::string library) {
    Config out;
    out.library = std::move(library);
    for (const std::string_view word : words) {
        const std::size_t sign = word.find('=');
        const std::string_view key = word.substr(0, sign);
        const std::string_view value = sign == std::string_view::npos ? "" : word.substr(sign + 1);
        const auto wrong = [&](const std::string &why) { return policy::quote(word) + ": " + why; };
        if (key == "lib") {
            if (!value.starts_with('/') || value.find_first_of(": ") != std::string_view::npos)
                return wrong("write the absolute path of libcurb.so, without colon and blank");
            out.library = value;
        } else if (key == "shards-per-gpu") {
            const auto number = policy::whole_number<std::uint64_t>(value);
            if (!number || *number == 0 || *number > 10'000)
                return wrong("write how many shards a GPU has, from 1 to 10000, as in shards-per-gpu=4");
            out.shards_per_gpu = *number;
        } else if (key == "shard-size" || key == "default") {
            const auto size = policy::parse_size(value);
            if (!size) return wrong(size.error());
            if (key == "default") {
                out.without_shards = *size;
            } else if (size->unit != Size::Unit::bytes || size->amount == 0) {
                return wrong("write the memory of one shard, as in shard-size=10GiB");
            } else {
                out.shard_size = *size;
            }
        } else {
            return wrong(std::string("there is no such setting; there are ") + kKeys);
        }
    }
    if (out.shards_per_gpu != 0 && out.shard_size)
        return std::string("shards-per-gpu and shard-size both say how large a shard is; keep one of them");
    return out;
}

std::optional<std::string> fault_of_memory(std::string_view size) {
    const auto parsed = policy::parse_size(size);
    return parsed ? std::nullopt : std::optional(parsed.error());
}

std::optional<std::string> fault_of_policy(const std::string &file) {
    if (file.empty()) return "the path is empty; name a file";
    if (!file.starts_with('/')) {
        std::error_code failed;
        const auto absolute = std::filesystem::absolute(file, failed);
        return policy::quote(file) + " is relative, and a node may have another directory there; write " +
               (failed ? "an absolute path" : absolute.lexically_normal().native());
    }
    const auto text = config::read_file(file);
    if (!text) return text.error().text();
    const auto document = config::parse(*text, file);
    if (document) return std::nullopt;
    return policy::joined(document.error(), "\n", [](const config::Diagnostic &one) { return one.text(); });
}

std::uint64_t shards_of(std::string_view gres) {
    std::uint64_t out = 0;
    for (const std::string &entry : split(gres, ",")) {  // the list within "(IDX:0,1)" too, which is no harm
        const std::string_view text = std::string_view(entry).substr(0, entry.find('('));
        const std::size_t last = text.rfind(':');
        if (last != std::string_view::npos && text.substr(0, text.find(':')) == "shard")
            out += policy::whole_number<std::uint64_t>(text.substr(last + 1)).value_or(0);
    }
    return out;
}

Caps caps_of(const Config &config, const Task &task, const Variables &variable) {
    List job, step;
    const auto size_of = [&](std::uint64_t shards) {
        if (!config.shard_size) return policy::format(part_of_a_gpu(shards, config.shards_per_gpu));
        const std::uint64_t size = config.shard_size->amount;
        return policy::format(Size{Size::Unit::bytes, shards > UINT64_MAX / size ? UINT64_MAX : shards * size});
    };
    const auto add_memory = [](const std::optional<std::string> &memory, List &list) {
        if (!memory) return;
        if (const auto size = policy::parse_size(*memory)) list.push_back(policy::format(*size));
    };
    const auto shards = policy::whole_number<std::uint64_t>(variable("SLURM_SHARDS_ON_NODE").value_or("")).value_or(0);
    const std::uint64_t of_job = std::max(shards, task.job_shards);
    if (of_job != 0 && (config.shard_size || config.shards_per_gpu != 0)) {
        job.push_back(size_of(of_job));
        // A step of srun --gres=none has no shards. It may see the GPUs nevertheless, so the job's cap holds.
        if (shards != 0 && shards < of_job) step.push_back(size_of(shards));
    }
    add_memory(task.job_memory, job);
    if (task.memory != task.job_memory) add_memory(task.memory, step);
    // slurmd unsets CUDA_VISIBLE_DEVICES in a step that it gives no GPU. A GPU without shards belongs to the job alone.
    if (job.empty() && config.without_shards && !variable("CUDA_VISIBLE_DEVICES"))
        job.push_back(policy::format(*config.without_shards));
    return {policy::joined(job, ","), policy::joined(step, ",")};
}

Changes changes(const Config &config, const Task &task, const Variables &variable) {
    Changes out;
    const Caps caps = caps_of(config, task, variable);
    const bool under_curb = runs_under_curb(caps, task);
    const auto old = [&](const char *name) { return variable(name).value_or(""); };

    // Only `mark` distinguishes the caps that an outer step has set from the user's own. Appended to the user's caps:
    // the lowest of a list holds, so a user can ask for less and not for more.
    const auto set_caps = [&](const char *name, const char *mark, const std::string &ours) {
        List all = without(split(old(name), ","), split(old(mark), ","));
        if (!ours.empty()) all.push_back(ours);
        out[name] = or_unset(policy::joined(all, ","));
        out[mark] = or_unset(ours);
    };
    const bool step_alone = caps.job.empty() && !caps.step.empty();
    set_caps("CURB_JOB_CAP", "CURB_SLURM_CAP", step_alone ? caps.step : caps.job);
    set_caps("CURB_CAP", "CURB_SLURM_STEP_CAP", step_alone ? "" : caps.step);

    // Named by the job and not by the step, so that steps which run at the same time share the job's memory. In a job
    // without a cap each step has its own.
    const std::string outer = old("CURB_JOB");
    if (under_curb)
        out["CURB_JOB"] = "slurm-" + task.job + "@" + task.node + (step_alone ? "." + task.step : "");
    else if (outer.starts_with("slurm-"))
        out["CURB_JOB"] = std::nullopt;

    List preloads = without(split(old("LD_PRELOAD"), ": "), {config.library});
    if (under_curb) preloads.insert(preloads.begin(), config.library);
    out["LD_PRELOAD"] = or_unset(policy::joined(preloads, ":"));

    if (task.policy) out["CURB_POLICY"] = *task.policy;
    // SIGUSR1 ends shells, launchers and workers in a job, and Slurm sends it to all processes of a step.
    constexpr const char *kSignal = "SIGURG";
    if (under_curb && !variable("CURB_SIGNAL")) out["CURB_SIGNAL"] = kSignal;
    if (!under_curb && outer.starts_with("slurm-") && old("CURB_SIGNAL") == kSignal) out["CURB_SIGNAL"] = std::nullopt;
    std::erase_if(out, [&](const auto &change) { return change.second == variable(change.first.c_str()); });
    return out;
}

}  // namespace curb::slurm
