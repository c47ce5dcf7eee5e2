// The refusals of suspend and resume. Each row changes one fact of a process that could be suspended.
#include "suspend/guards.hpp"

#include <functional>

#include "catch.hpp"
#include "policies.hpp"
#include "temp_dir.hpp"

using namespace curb::cli;
using curb::control::host_room;
using curb::control::HostRoom;
using curb::control::processor_quota;
using curb::policy::Bytes;
using curb::policy::GiB;
using curb::policy::MiB;
using curb::policy::size;

namespace {

constexpr int kPid = 4711;
using Gpus = std::vector<GpuState>;

GpuState gpu(Bytes held, Bytes free) {
    GpuState gpu;
    gpu.uuid = "GPU-1";
    gpu.total = 80 * GiB;
    gpu.free = free;
    gpu.users = {{kPid, "4711 (python3)", held}, {99, "99 (other)", 3 * GiB}};
    return gpu;
}

DriverFacts driver(CUprocessState state) {
    DriverFacts facts;
    facts.cuda = 13000;
    facts.version = "580.159.04";
    facts.has_checkpoint = true;
    facts.state = state;
    return facts;
}

Target target() {
    Target target;
    target.process = {kPid, 77, 1000, 1000};
    target.name = "python3";
    target.environment.emplace();
    return target;
}

SuspendFacts suspendable() {
    SuspendFacts facts;
    facts.user = 1000;
    facts.target = target();
    facts.driver = driver(CU_PROCESS_STATE_RUNNING);
    facts.gpus = Gpus{gpu(8 * GiB, 60 * GiB)};
    facts.books = Books{0, ""};
    facts.host = HostRoom{100 * GiB, "this machine", 128 * GiB};
    return facts;
}

ResumeFacts resumable() {
    ResumeFacts facts;
    facts.user = 1000;
    facts.target = target();
    facts.driver = driver(CU_PROCESS_STATE_CHECKPOINTED);
    facts.gpus = Gpus{gpu(4 * MiB, 60 * GiB)};
    facts.needs = std::vector<Need>{{"GPU-1", 8 * GiB}};
    return facts;
}

GpuState &first(SuspendFacts &facts) { return facts.gpus->value().front(); }

struct Row {
    std::function<void(SuspendFacts &)> change;
    const char *said;
    bool forced = false;  // --force overrides it
};

const std::map<std::string, std::string> kRank{{"WORLD_SIZE", "8"}, {"RANK", "3"}};
const std::vector<Row> kRows{
    {[](auto &f) { f.target.process.start = 0; }, "there is no such process"},
    {[](auto &f) { f.target.thread_of = 4700; }, "name the process: 4700"},
    {[](auto &f) { f.user = 1001; }, "belongs to user 1000"},
    {[](auto &f) { f.target.environment.reset(); }, "environment cannot be read"},
    {[](auto &f) { f.driver->fault = "there is no CUDA driver; run it elsewhere"; },
     "there is no CUDA driver; run it elsewhere"},
    {[](auto &f) { f.driver->cuda = 12060; }, "570 or newer"},
    {[](auto &f) { f.driver->has_checkpoint = false; }, "driver 580.159.04 cannot"},
    {[](auto &f) { f.driver->state.reset(); }, "does not know it"},
    {[](auto &f) { f.driver->state = CU_PROCESS_STATE_CHECKPOINTED; }, "curb resume 4711 brings"},
    {[](auto &f) { f.driver->state = CU_PROCESS_STATE_LOCKED; }, "curb resume 4711 unlocks"},
    {[](auto &f) { f.driver->state = CU_PROCESS_STATE_FAILED; }, "has given it up"},
    {[](auto &f) { f.gpus.emplace(std::string("no NVML")); }, "NVML does not report who"},
    {[](auto &f) { first(f).users.erase(first(f).users.begin()); }, "lists no GPU memory"},
    {[](auto &f) { first(f).users[0].held.reset(); }, "how much it holds of GPU 0 (GPU-1)"},
    {[](auto &f) { first(f).mig = true; }, "GPU 0 (GPU-1) is divided (MIG)"},
    {[](auto &f) { (*f.target.environment)["CUDA_VISIBLE_DEVICES"] = "MIG-31"; }, "(MIG)"},
    {[](auto &f) { first(f).mps_clients = {kPid}; }, "through MPS"},
    {[](auto &f) { f.target.environment = kRank; }, "WORLD_SIZE=8", true},
    {[](auto &f) {
         f.target.environment = kRank;
         f.target.has_nccl = true;
     },
     "--force does not help"},
    {[](auto &f) { f.companion = 4712; }, "works together with 4712", true},
    {[](auto &f) { f.books->managed = 64 * MiB; }, "64 MiB of managed memory"},
    {[](auto &f) {
         f.books = Books{std::nullopt, "it is not under curb"};
     },
     "it is not under curb", true},
    {[](auto &f) {
         f.host = HostRoom{8 * GiB, "the cgroup /job/7", 8 * GiB};
     },
     "the cgroup /job/7 has room for 8 GiB"},
    {[](auto &f) {
         f.is_nap = true;
         f.most_host = {size("50%"), size("7GiB")};
     },
     "suspend.host_memory is 7 GiB"},
    {[](auto &f) {
         f.is_nap = true;
         f.most_host = {size("5%"), size("7GiB")};
     },
     "suspend.host_memory is 6.4 GiB"},
    {[](auto &f) {
         f.is_nap = true;
         f.host = HostRoom{20 * GiB, "this machine", 128 * GiB};
     },
     "less than a tenth"},
};

}  // namespace

TEST_CASE("A process that can be suspended is not refused for unknown facts or for those of other processes") {
    CHECK_FALSE(why_not_suspend(suspendable()));
    SuspendFacts facts = suspendable();
    facts.user = 0;
    GpuState other = gpu(0, GiB);
    other.users.erase(other.users.begin());
    other.mig = true;
    other.mps_clients = {99};
    facts.gpus->value().push_back(other);
    CHECK_FALSE(why_not_suspend(facts));
    SuspendFacts unknown;
    unknown.user = 1000;
    unknown.target = target();
    CHECK_FALSE(why_not_suspend(unknown));
}

TEST_CASE("A process that cannot be suspended is refused; --force overrides guesses only") {
    for (const Row &row : kRows) {
        CAPTURE(row.said);
        SuspendFacts facts = suspendable();
        row.change(facts);
        const auto refusal = why_not_suspend(facts);
        REQUIRE(refusal);
        CHECK_THAT(refusal->text(), contains(row.said));
        CHECK_FALSE(refusal->what.empty());
        CHECK_FALSE(refusal->why.empty());
        CHECK_FALSE(refusal->remedy.empty());
        facts.force = true;
        CHECK(why_not_suspend(facts).has_value() == !row.forced);
    }
}

TEST_CASE("A suspend leaves host memory free: a sixteenth of the moved bytes, at least 256 MiB") {
    SuspendFacts facts = suspendable();
    facts.host->available = 8 * GiB + 512 * MiB;
    CHECK_FALSE(why_not_suspend(facts));
    facts.host->available -= 1;
    CHECK(why_not_suspend(facts));
    first(facts).users[0].held = GiB;
    facts.host->available = GiB + 256 * MiB;
    CHECK_FALSE(why_not_suspend(facts));
    facts.host->available -= 1;
    CHECK(why_not_suspend(facts));
}

TEST_CASE("A process is resumed only if each GPU has room for it") {
    ResumeFacts facts = resumable();
    CHECK_FALSE(why_not_resume(facts));
    facts.gpus->value().front().free = 8 * GiB;
    CHECK_FALSE(why_not_resume(facts));
    facts.gpus->value().front().free = 8 * GiB - MiB;
    REQUIRE(why_not_resume(facts));
    CHECK_THAT(why_not_resume(facts)->text(), contains("1 MiB are missing") && contains("99 (other) 3 GiB"));
    CHECK_THAT(why_not_resume(facts)->text(), !contains("4711 (python3) 4 MiB"));
    CHECK(only_room_is_lacking(facts));
    facts.gpus->value().front().free = 60 * GiB;
    facts.needs->push_back({"GPU-2", GiB});
    REQUIRE(why_not_resume(facts));
    CHECK_THAT(why_not_resume(facts)->text(), contains("GPU-2") && contains("not there any more"));
}

TEST_CASE("A process that is not suspended is not resumed, and a locked one needs no memory") {
    ResumeFacts facts = resumable();
    facts.driver->state = CU_PROCESS_STATE_RUNNING;
    CHECK_THAT(why_not_resume(facts)->text(), contains("it is not suspended"));
    CHECK_FALSE(only_room_is_lacking(facts));
    facts.driver->state = CU_PROCESS_STATE_FAILED;
    CHECK_THAT(why_not_resume(facts)->text(), contains("has given it up"));
    facts.driver->state = CU_PROCESS_STATE_LOCKED;
    facts.gpus->value().front().free = 0;
    CHECK_FALSE(why_not_resume(facts));
    facts = resumable();
    facts.needs->clear();
    CHECK_THAT(why_not_resume(facts)->text(), contains("--bytes SIZE"));
    CHECK_FALSE(only_room_is_lacking(facts));
    facts = resumable();
    facts.user = 1001;
    CHECK_THAT(why_not_resume(facts)->text(), contains("belongs to user"));
}

TEST_CASE("A process needs the memory that it held, and a margin of at most the memory that was free") {
    CHECK(room_for(8 * GiB, 60 * GiB, 4 * MiB) == 8 * GiB + 60 * MiB);
    CHECK(room_for(8 * GiB, 10 * MiB, 4 * MiB) == 8 * GiB + 6 * MiB);
    CHECK(room_for(8 * GiB, 0, 0) == 8 * GiB);
    CHECK(room_for(MiB, 0, 4 * MiB) == 0);
    CHECK(room_for(~Bytes{0}, ~Bytes{0}, 0) == ~Bytes{0});  // as typed: --bytes 18446744073709551615B
}

TEST_CASE("A launcher's variables show that a process is one rank of several") {
    struct Case {
        std::map<std::string, std::string> environment;
        const char *variable;  // "": it is alone
    };
    for (const Case &one :
         std::vector<Case>{{{}, ""},
                           {{{"WORLD_SIZE", "8"}, {"RANK", "3"}}, "WORLD_SIZE"},
                           {{{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, "WORLD_SIZE"},
                           {{{"WORLD_SIZE", "1"}, {"RANK", "0"}}, ""},
                           {{{"WORLD_SIZE", "many"}, {"RANK", "0"}}, ""},
                           {{{"WORLD_SIZE", "8"}}, ""},
                           {{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE"},
                           {{{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}, "PMI_SIZE"},
                           {{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}, "SLURM_NTASKS"},
                           {{{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}, ""}}) {
        CAPTURE(one.variable, one.environment.size());
        const auto ranks = ranks_of(one.environment);
        CHECK((ranks ? ranks->variable : "") == one.variable);
    }
}

TEST_CASE("The free host memory is the least of the machine's and its cgroups'") {
    const TempDir dir;
    const auto proc = (dir / "proc").string(), groups = (dir / "cgroup").string();
    dir.write("proc/meminfo", "MemTotal: 2097152 kB\nMemFree: 10 kB\nMemAvailable:  1048576 kB\n");
    dir.write("proc/7/cgroup", "0::/job/7\n");
    CHECK(host_room(7, proc, groups) == HostRoom{GiB, "this machine", 2 * GiB});
    CHECK_FALSE(host_room(7, (dir / "nowhere").string(), groups));
    dir.write("cgroup/job/7/memory.max", "max\n");
    dir.write("cgroup/job/7/memory.current", "1048576\n");
    CHECK(host_room(7, proc, groups) == HostRoom{GiB, "this machine", 2 * GiB});
    // A limit of the parent group, less the used memory that the kernel cannot reclaim.
    dir.write("cgroup/job/memory.max", std::to_string(512 * MiB) + "\n");
    dir.write("cgroup/job/memory.current", std::to_string(256 * MiB) + "\n");
    dir.write("cgroup/job/memory.stat",
              "anon 1\nfile 2\ninactive_file " + std::to_string(56 * MiB) + "\nactive_file 9\n");
    CHECK(host_room(7, proc, groups) == HostRoom{312 * MiB, "the cgroup /job", 512 * MiB});
    dir.write("proc/8/cgroup", "5:cpu,memory:/old\n0::/elsewhere\n");
    dir.write("cgroup/memory/old/memory.limit_in_bytes", std::to_string(64 * MiB));
    dir.write("cgroup/memory/old/memory.usage_in_bytes", std::to_string(60 * MiB));
    CHECK(host_room(8, proc, groups) == HostRoom{4 * MiB, "the cgroup /old", 64 * MiB});
}

TEST_CASE("The processors' time of a process is the least that its cgroups allow") {
    const TempDir dir;
    const auto proc = (dir / "proc").string(), groups = (dir / "cgroup").string();
    dir.write("proc/7/cgroup", "0::/job/7\n");
    CHECK_FALSE(processor_quota(7, proc, groups));
    dir.write("cgroup/job/7/cpu.max", "max 100000\n");
    CHECK_FALSE(processor_quota(7, proc, groups));
    dir.write("cgroup/job/cpu.max", "150000 100000\n");
    CHECK(processor_quota(7, proc, groups) == 1.5);
    dir.write("cgroup/job/7/cpu.max", "50000 100000\n");
    CHECK(processor_quota(7, proc, groups) == 0.5);
    dir.write("proc/8/cgroup", "5:cpu,cpuacct:/old\n0::/elsewhere\n");
    dir.write("cgroup/cpu/old/cpu.cfs_quota_us", "-1\n");
    dir.write("cgroup/cpu/old/cpu.cfs_period_us", "100000\n");
    CHECK_FALSE(processor_quota(8, proc, groups));
    dir.write("cgroup/cpu/old/cpu.cfs_quota_us", "400000\n");
    CHECK(processor_quota(8, proc, groups) == 4);
}
