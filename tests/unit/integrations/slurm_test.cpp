// The environment that the plugin makes of a Slurm task's variables. integrations/slurm/test tries the same in jobs.
#include "catch.hpp"
#include "share.hpp"

namespace curb::slurm {
namespace {

using Environment = std::map<std::string, std::string>;

policy::Result<Config, std::string> config(std::vector<std::string> words) {
    std::vector<char *> pointers;
    for (std::string &word : words) pointers.push_back(word.data());
    return read_config(pointers, "/lib/libcurb.so");
}
Variables variables(const Environment &environment) {
    return [&environment](const char *name) {
        const auto found = environment.find(name);
        return found == environment.end() ? std::nullopt : std::optional(found->second);
    };
}
// Returns the caps of a job of one step.
std::string caps(std::vector<std::string> words, const Environment &environment,
                 const std::optional<std::string> &memory = std::nullopt) {
    const Task task{"42", "0", "n1", 0, memory, memory, std::nullopt};
    const Caps out = caps_of(config(std::move(words)).value(), task, variables(environment));
    CHECK(out.step.empty());
    return out.job;
}
// Returns the environment of a task after the changes.
Environment started(Environment environment, std::uint64_t job_shards = 2, const std::string &job = "42") {
    const Task task{job, "0", "n1", job_shards, std::nullopt, std::nullopt, std::nullopt};
    for (const auto &[name, value] : changes(config({"shards-per-gpu=4"}).value(), task, variables(environment))) {
        environment.erase(name);
        if (value) environment[name] = *value;
    }
    return environment;
}

}  // namespace

TEST_CASE("plugstack.conf: the error for a wrong word shows a correct one") {
    CHECK(config({"shards-per-gpu=4", "lib=/a/b.so", "default=1GiB"}));
    CHECK(config({}).value().library == "/lib/libcurb.so");
    CHECK(config({"lib=/a/b.so"}).value().library == "/a/b.so");
    for (const char *wrong : {"lib=b.so", "lib=/a b.so", "lib=/a:b.so", "lib=", "lib", "shards-per-gpu=0",
                              "shards-per-gpu=-1", "shards-per-gpu=99999", "shards-per-gpu", "shard-size=25%",
                              "shard-size=0B", "shard-size=3", "default=x", "shards=4", "=", ""})
        CHECK_FALSE(config({wrong}));
    CHECK_FALSE(config({"shards-per-gpu=4", "shard-size=1GiB"}));
    CHECK(config({"shards-per-gpu=four"}).error() ==
          "'shards-per-gpu=four': write how many shards a GPU has, from 1 to 10000, as in shards-per-gpu=4");
}

TEST_CASE("Shards are a part of a GPU or an amount of memory, and never more than there is") {
    CHECK(caps({"shards-per-gpu=4"}, {{"SLURM_SHARDS_ON_NODE", "1"}}) == "25%");
    CHECK(caps({"shards-per-gpu=3"}, {{"SLURM_SHARDS_ON_NODE", "1"}}) == "33.33%");
    CHECK(caps({"shards-per-gpu=3"}, {{"SLURM_SHARDS_ON_NODE", "3"}}) == "100%");
    CHECK(caps({"shards-per-gpu=4"}, {{"SLURM_SHARDS_ON_NODE", "99999999999999999"}}) == "100%");
    CHECK(caps({"shard-size=3GiB"}, {{"SLURM_SHARDS_ON_NODE", "2"}}) == "6GiB");
    CHECK(caps({"shard-size=1TiB"}, {{"SLURM_SHARDS_ON_NODE", "99999999999999999"}}) == "18446744073709551615B");
    for (const char *none : {"", "0", "-1", "x", "1x", "99999999999999999999999"})
        CHECK(caps({"shards-per-gpu=4"}, {{"SLURM_SHARDS_ON_NODE", none}}).empty());
    CHECK(caps({}, {{"SLURM_SHARDS_ON_NODE", "1"}}).empty());
    CHECK(caps({"shards-per-gpu=4"}, {{"SLURM_SHARDS_ON_NODE", "1"}}, "6 GiB") == "25%,6GiB");
    CHECK(caps({"default=1GiB"}, {}) == "1GiB");
    CHECK(caps({"default=1GiB"}, {}, "2GiB") == "2GiB");
    CHECK(caps({"default=1GiB"}, {{"CUDA_VISIBLE_DEVICES", "0"}}).empty());
}

TEST_CASE("A step with less than its job has a cap of its own below the job's") {
    const auto both = [](std::uint64_t shards, std::uint64_t of_job, std::optional<std::string> job_memory,
                         std::optional<std::string> memory) {
        const Task task{"42", "0", "n1", of_job, std::move(job_memory), std::move(memory), std::nullopt};
        const Environment environment{{"SLURM_SHARDS_ON_NODE", std::to_string(shards)}};
        const Caps out = caps_of(config({"shards-per-gpu=4"}).value(), task, variables(environment));
        return out.job + " / " + out.step;
    };
    CHECK(both(1, 3, std::nullopt, std::nullopt) == "75% / 25%");
    CHECK(both(3, 3, std::nullopt, std::nullopt) == "75% / ");
    CHECK(both(1, 0, std::nullopt, std::nullopt) == "25% / ");  // the controller did not answer
    CHECK(both(1, 3, "6GiB", "6GiB") == "75%,6GiB / 25%");
    CHECK(both(1, 1, "6GiB", "2GiB") == "25%,6GiB / 2GiB");
    CHECK(both(1, 1, std::nullopt, "2GiB") == "25% / 2GiB");
    CHECK(both(0, 0, std::nullopt, "2GiB") == " / 2GiB");
    CHECK(both(0, 1, std::nullopt, std::nullopt) == "25% / ");  // --gres=none
}

TEST_CASE("The job's shards are read from Slurm's list of its gres on a node") {
    CHECK(shards_of("shard:2(IDX:0)") == 2);
    CHECK(shards_of("gpu:fake:1(IDX:0,1),shard:fake:3(IDX:0,1),disk:10") == 3);
    CHECK(shards_of("shard:a:1,shard:b:2(1/4,0/4)") == 3);
    for (const char *none : {"", "gpu:1", "shards:2", "myshard:2", "shard", "shard:x", "(", ")", ",,"})
        CHECK(shards_of(none) == 0);
}

TEST_CASE("A step replaces the job's variables of the batch script, and keeps the user's own") {
    const Environment batch = started({{"SLURM_SHARDS_ON_NODE", "2"}, {"LD_PRELOAD", "/own.so"}});
    CHECK(batch == Environment{{"SLURM_SHARDS_ON_NODE", "2"},
                               {"LD_PRELOAD", "/lib/libcurb.so:/own.so"},
                               {"CURB_JOB", "slurm-42@n1"},
                               {"CURB_JOB_CAP", "50%"},
                               {"CURB_SLURM_CAP", "50%"},
                               {"CURB_SIGNAL", "SIGURG"}});
    CHECK(started(batch) == batch);
    Environment part = batch;
    part["SLURM_SHARDS_ON_NODE"] = "1";
    part["CURB_CAP"] = "8GiB";
    part = started(part);
    CHECK(part["CURB_JOB"] == "slurm-42@n1");
    CHECK(part["CURB_JOB_CAP"] == "50%");
    CHECK(part["CURB_CAP"] == "8GiB,25%");
    CHECK(part["LD_PRELOAD"] == batch.at("LD_PRELOAD"));
    CHECK(started(part) == part);
    part["SLURM_SHARDS_ON_NODE"] = "2";  // a step within that step, with all shards of the job
    part = started(part);
    CHECK(part["CURB_CAP"] == "8GiB");
    CHECK(part.count("CURB_SLURM_STEP_CAP") == 0);
    Environment forged = batch;
    forged["CURB_JOB"] = "mine";
    forged["CURB_JOB_CAP"] = "100%";
    forged.erase("CURB_SLURM_CAP");
    forged = started(forged);
    CHECK(forged["CURB_JOB"] == "slurm-42@n1");
    CHECK(forged["CURB_JOB_CAP"] == "100%,50%");
    Environment own = batch;
    own["CURB_JOB_CAP"] = "50%,2GiB";  // as curb run --job-cap leaves it
    own["CURB_CAP"] = "1GiB";
    own["CURB_SIGNAL"] = "SIGUSR2";
    own["LD_PRELOAD"] = "/a.so /b.so";
    own = started(own);
    CHECK(own["CURB_JOB_CAP"] == "2GiB,50%");
    CHECK(own["CURB_CAP"] == "1GiB");
    CHECK(own["CURB_SIGNAL"] == "SIGUSR2");
    CHECK(own["LD_PRELOAD"] == "/lib/libcurb.so:/a.so:/b.so");
    // In a job without a cap a step's processes share the step's own.
    const Task alone{"42", "3", "n1", 0, std::nullopt, "2GiB", std::nullopt};
    const Changes of_step = changes(config({"shards-per-gpu=4"}).value(), alone, variables({}));
    CHECK(of_step.at("CURB_JOB") == "slurm-42@n1.3");
    CHECK(of_step.at("CURB_JOB_CAP") == "2GiB");
    CHECK(of_step.count("CURB_CAP") == 0);
    // A job that this one submits: with a whole GPU, none of curb's variables stay.
    Environment whole = batch;
    whole.erase("SLURM_SHARDS_ON_NODE");
    CHECK(started(whole, 0, "43") == Environment{{"LD_PRELOAD", "/own.so"}});
    CHECK(started(batch, 2, "43").at("CURB_JOB") == "slurm-43@n1");
    CHECK(started({{"PATH", "/bin"}}, 0) == Environment{{"PATH", "/bin"}});
}

TEST_CASE("The error for a wrong option shows a correct one") {
    CHECK_FALSE(fault_of_memory("6GiB"));
    CHECK(*fault_of_memory("6") == "'6' has no unit; did you mean \"6GiB\"?");
    CHECK(fault_of_policy(""));
    CHECK(fault_of_policy("job.json")->ends_with("/job.json"));
    CHECK(fault_of_policy("/no/such/job.json"));
}

}  // namespace curb::slurm
