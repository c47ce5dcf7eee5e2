// The findings of curb doctor. Each row changes one fact of a healthy machine or process.
#include <elf.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "catch.hpp"
#include "doctor/doctor.hpp"
#include "machine/within.hpp"
#include "temp_dir.hpp"
#include "views.hpp"

using namespace curb::cli;
using curb::policy::GiB;

namespace {

const Elf kOurs{64, EM_X86_64, "/lib64/ld-linux-x86-64.so.2", {}};
constexpr int kPid = 4711;

// A capped process on a GPU.
View view() {
    View out;
    ViewGpu one = views::gpu(0, 2 * GiB);
    out.processes = {views::process(kPid, "alice", "python3")};
    views::give_books(out.processes[0], one, 2 * GiB);
    one.uses = {{0, 0, 2 * GiB}};
    out.gpus = {std::move(one)};
    return out;
}

MachineCondition machine() {
    MachineCondition out;
    out.driver.cuda = 13000;
    out.driver.has_checkpoint = true;
    out.driver.version = out.driver.kernel = "580.159.04";
    out.driver.has_device_files = true;
    out.nvml = std::vector<GpuState>(1);
    out.library.path = "/usr/lib/curb/libcurb.so";
    out.library.elf = Elf{64, EM_X86_64, {}, {}};
    out.library.command = kOurs;
    out.library.mode = 0644;
    out.library.folder_mode = 0755;
    out.runtime.folder = "/run/user/1000/curb";
    out.runtime.xdg = "/run/user/1000";
    out.view = view();
    return out;
}

ProcessCondition process() {
    ProcessCondition out;
    out.pid = kPid;
    out.user = out.owner = out.acts_as = 1000;
    out.owner_name = "alice";
    out.there = out.readable = true;
    out.name = "process 4711 (python3)";
    out.program = out.library = kOurs;
    out.version = "0.1.0";
    out.listed = std::vector<int>{kPid};
    return out;
}
ProcessCondition capped() {
    ProcessCondition out = process();
    out.curb = {{"/usr/lib/curb/libcurb.so", 0x7f00'0000'0000, false}};
    out.driver = {{"/usr/lib/libcuda.so.580", 0x7f10'0000'0000, false}};
    curb::control::Status &status = out.status.emplace();
    status.version = "0.1.0";
    status.policy.file = "/home/alice/job.json";
    status.gpus.resize(1);
    status.gpus[0].contexts = 1;
    status.gpus[0].held = 2 * GiB;
    status.gpus[0].cap = 8 * GiB;
    return out;
}
ProcessCondition silent() {
    ProcessCondition out = capped();
    out.status.reset();
    out.silence = "process 4711 has not answered for 5 s: it may be stuck";
    return out;
}

std::string text_of(const Findings &findings) {
    std::string out;
    for (const Finding &one : findings)
        out += std::string(verdict_name(one.verdict)) + " " + one.check + ": " + one.text + " -> " + one.remedy + "\n";
    return out;
}
const Finding *found(const Findings &findings, Verdict verdict, const std::string &text) {
    const auto at = std::find_if(findings.begin(), findings.end(), [&](const Finding &one) {
        return one.verdict == verdict && one.text.find(text) != std::string::npos;
    });
    return at == findings.end() ? nullptr : &*at;
}
std::ptrdiff_t count_of_worse(const Findings &findings) {
    return std::count_if(findings.begin(), findings.end(),
                         [](const Finding &one) { return one.verdict != Verdict::ok; });
}

// Healthy facts. A call changes them and expects one finding, with this verdict, text and remedy. An empty remedy: the
// finding has none.
template <class Facts>
class Examined {
  public:
    explicit Examined(Facts in_order) : in_order_(std::move(in_order)) {}
    void operator()(Verdict verdict, const std::string &text, const std::string &remedy,
                    const std::function<void(Facts &)> &change = {}) const {
        Facts facts = in_order_;
        if (change) change(facts);
        const Findings findings = examine(facts);
        INFO(text << "\nin\n" << text_of(findings));
        const Finding *finding = found(findings, verdict, text);
        CHECK(has_problem(findings) == (verdict == Verdict::problem));
        CHECK(count_of_worse(findings) == (verdict == Verdict::ok ? 0 : 1));
        REQUIRE(finding != nullptr);
        CHECK(finding->remedy.empty() == remedy.empty());
        CHECK(finding->remedy.find(remedy) != std::string::npos);
    }

    // Returns the same with this change made before every call.
    [[nodiscard]] Examined after(const std::function<void(Facts &)> &change) const {
        Examined out = *this;
        change(out.in_order_);
        return out;
    }

  private:
    Facts in_order_;
};

using M = MachineCondition;
using P = ProcessCondition;
constexpr auto ok = Verdict::ok, note = Verdict::note, problem = Verdict::problem;

}  // namespace

TEST_CASE("a healthy machine has no findings but ok") {
    const Findings findings = examine(machine());
    INFO(text_of(findings));
    CHECK(count_of_worse(findings) == 0);
    CHECK(found(findings, ok, "580.159.04, CUDA 13.0") != nullptr);
    CHECK(found(findings, ok, "the one under curb answers") != nullptr);
}

TEST_CASE("each problem with the driver is reported with its remedy") {
    const auto init = [](int code) {
        return [=](M &m) {
            m.driver.init = static_cast<CUresult>(code);
            m.driver.init_text = "CUDA_ERROR_SOMETHING (something)";
        };
    };
    const Examined<M> with(machine());
    with(problem, "there is no CUDA driver here: libcuda.so.1: no such file", "--gpus all",
         [](M &m) { m.driver.fault = "libcuda.so.1: no such file"; });
    with(problem, "there is no CUDA driver here", "install NVIDIA's driver", [](M &m) {
        m.driver.fault = "libcuda.so.1: no such file";
        m.driver.kernel.clear();
        m.nvml = std::string("there is no NVML either");  // not reported in addition
    });
    with(problem, "has not answered cuInit", "dmesg", [](M &m) { m.driver.silent = true; });
    with(problem, "stub", "LD_LIBRARY_PATH", init(34));
    with(problem, "not ready", "nvidia-fabricmanager", init(802));
    with(problem, "different versions", "restart the machine", init(803));
    with(problem, "newer than the kernel's module", "compat", init(804));
    with(problem, "cannot be initialised: CUDA_ERROR_SOMETHING (something)", "nvidia-smi", init(999));
    const auto without_files = with.after(init(100)).after([](M &m) { m.driver.has_device_files = false; });
    without_files(problem, "there is no /dev/nvidiactl", "--gpus all");
    without_files(problem, "there is no /dev/nvidiactl", "modprobe nvidia", [](M &m) { m.driver.kernel.clear(); });
    with.after(init(304))(problem, "may not open /dev/nvidia0, /dev/nvidiactl", "group", [](M &m) {
        m.driver.closed = {"/dev/nvidia0", "/dev/nvidiactl"};
    });
    with(note, "may not open /dev/nvidia1", "group", [](M &m) { m.driver.closed = {"/dev/nvidia1"}; });
    with(note, "CUDA_VISIBLE_DEVICES is \"-1\" here", "unset", [](M &m) { m.driver.visible = "-1"; });
    with(note, "CUDA_VISIBLE_DEVICES is \"\" here", "unset", [](M &m) { m.driver.visible = ""; });
    with(ok, "CUDA 13.0", "", [](M &m) { m.driver.visible = "0,1"; });
    with(note, "there is no curb suspend", "570", [](M &m) { m.driver.cuda = 12070; });
    with(note, "there is no curb suspend", "570", [](M &m) { m.driver.has_checkpoint = false; });
    with(ok, "CUDA 12.8", "", [](M &m) { m.driver.cuda = 12080; });
    with(ok, "at the rate of the bus", "", [](M & /*none*/) {});
    with(note, "cuda:0, cuda:2: no virtual memory management", "the driver moves all", [](M &m) {
        m.driver.no_vmm = {"cuda:0", "cuda:2"};
    });
    MachineCondition old = machine();
    old.driver.cuda = 11020;
    CHECK(found(examine(old), note, "CUDA 11.2 is older than 11.4") != nullptr);
}

TEST_CASE("findings about missing figures of NVML and the settings of GPUs") {
    const Examined<M> with(machine());
    with(problem, "there is no NVML (libnvidia-ml.so.1: no such file), so curb foresees", "utility",
         [](M &m) { m.nvml = std::string("there is no NVML (libnvidia-ml.so.1: no such file); run curb elsewhere"); });
    MachineCondition board = machine();  // it may have no NVML
    board.driver.unified = {"cuda:0"};
    board.nvml = std::string("there is no NVML (libnvidia-ml.so.1: no such file); run curb elsewhere");
    CHECK(found(examine(board), note, "there is no NVML (libnvidia-ml.so.1: no such file)") != nullptr);
    CHECK(!has_problem(examine(board)));
    const auto unlisted = with.after([](M &m) { m.view.gpus[0].uses[0].nvml.reset(); });
    unlisted(note, "NVML does not list process 4711", "--pid=host");
    // A process that holds nothing need not be listed.
    unlisted(ok, "reports what processes hold", "", [](M &m) { m.view.processes[0].suspended = true; });
    unlisted(ok, "reports what processes hold", "", [](M &m) { m.view.processes[0].status->gpus[0].contexts = 0; });
    with(ok, "0 running; 1 waiting: 4711 (python3)", "", [](M &m) { m.view.processes[0].status->gpus[0].waiting = 1; });
    with(note, "GPU 0 is divided (MIG)", "", [](M &m) { m.nvml.value()[0].mig = true; });
    with(note, "shared through MPS by 1 process,", "", [](M &m) { m.nvml.value()[0].mps_clients = {7}; });
    with(note, "shared through MPS by 3 processes", "", [](M &m) { m.nvml.value()[0].mps_clients = {7, 8, 9}; });
    with(note, "put to sleep", "nvidia-smi -pm 1", [](M &m) { m.nvml.value()[0].kept_awake = false; });
}

TEST_CASE("libcurb.so must exist, fit this machine, and be writable by its owner only") {
    const Examined<M> with(machine());
    with(problem, "there is no libcurb.so (looked for /a, /b)", "set CURB_LIBRARY",
         [](M &m) { m.library.fault = "there is no libcurb.so (looked for /a, /b); set CURB_LIBRARY"; });
    with(problem, "cannot be read by this user", "chmod a+r", [](M &m) { m.library.elf.reset(); });
    with(problem, "is for aarch64, and this command for x86-64", "for x86-64",
         [](M &m) { m.library.elf->machine = EM_AARCH64; });
    with(problem, "is for x32", "for x86-64", [](M &m) { m.library.elf->bits = 32; });
    with(problem, "noexec", "elsewhere", [](M &m) { m.library.no_exec = true; });
    with(problem, "can be written by everybody", "chmod o-w /usr/lib/curb/libcurb.so",
         [](M &m) { m.library.mode = 0646; });
    with(problem, "in a folder that everybody can write to", "chmod o-w /usr/lib/curb",
         [](M &m) { m.library.folder_mode = 0777; });
    with(ok, "/usr/lib/curb/libcurb.so", "", [](M &m) { m.library.folder_mode = 01777; });
    with(note, "cannot be read by everybody", "chmod a+r", [](M &m) { m.library.mode = 0640; });
    with(problem, "LD_PRELOAD cannot carry the path '/a b'", "install curb under another",
         [](M &m) { m.library.not_carried = "LD_PRELOAD cannot carry the path '/a b'; install curb under another"; });
    with(note, "site-packages also has PyPI's curb, another project", "pip uninstall curb",
         [](M &m) { m.library.python_clash = "/venv/lib/python3.11/site-packages"; });
    with(note, "this command is /usr/bin/curb (0.2.0), and its library /usr/lib/curb/libcurb.so (0.1.0)",
         "CURB_LIBRARY", [](M &m) {
             m.installations.own = {"/usr/bin/curb", "/usr/lib/curb/libcurb.so", "0.2.0", ""};
             m.library.elf->version = "0.1.0";
         });
    const auto two = with.after([](M &m) {
        m.installations = {{"/venv/bin/curb", "/venv/lib/curb/libcurb.so", "0.2.0", "pip uninstall curb-gpu"},
                           "/usr/bin/curb",
                           {{"/usr/bin/curb", "/usr/lib/curb/libcurb.so", "0.1.0", "apt remove curb"}}};
        m.library.path = "/venv/lib/curb/libcurb.so";
        m.library.elf->version = "0.2.0";
    });
    two(note,
        "/usr/bin/curb (0.1.0) is installed too, with /usr/lib/curb/libcurb.so; this is /venv/bin/curb (0.2.0), which "
        "uses /venv/lib/curb/libcurb.so; a shell here starts /usr/bin/curb",
        "remove one (pip uninstall curb-gpu; or apt remove curb)");
    two(note, "/usr/bin/curb (of unknown version)", "by its path",
        [](M &m) { m.installations.others[0].version.clear(); });
    two(ok, "/usr/bin/curb (0.2.0) is installed too", "", [](M &m) { m.installations.others[0].version = "0.2.0"; });
    with(note, "every program of this machine is under curb", "", [](M &m) { m.preload_file = {true, ""}; });
    with(problem, "names /gone/libcurb.so", "/etc/ld.so.preload", [](M &m) {
        m.preload_file = {true, "/gone/libcurb.so"};
    });
}

TEST_CASE("findings about the folder for sockets, the policy of this environment and the ceiling") {
    const auto fault = [](const char *file) {
        return [=](M &m) {
            m.policy.source.file = "job.json";
            m.policy.source.named = true;
            m.policy.faults = {{file, 4, 14, "/gpu/*/cap", "it is no size"}};
        };
    };
    const Examined<M> with(machine());
    with(problem,
         "no folder for control sockets, so processes started here cannot be asked: /tmp/curb-1000: it belongs",
         "XDG_RUNTIME_DIR", [](M &m) {
             m.runtime = {"", "/tmp/curb-1000: it belongs to user 0", "", ""};
         });
    with(note, "/tmp/curb-1000 is used, because a folder before it cannot be: /run/user/0", "", [](M &m) {
        m.runtime = {"/tmp/curb-1000", "", "/run/user/0", "/run/user/0: it belongs to user 0"};
    });
    with(ok, "(XDG_RUNTIME_DIR is not set)", "", [](M &m) { m.runtime = {"/tmp/curb-1000", "", "", ""}; });
    with(problem, "job.json:4:14: /gpu/*/cap: it is no size", "curb run refuses", fault("job.json"));
    with(problem, "/etc/curb/policy.json:4:14", "as root", fault("/etc/curb/policy.json"));
    with(ok, "CURB_CAP is 8GiB", "", [](M &m) { m.policy.source.cap = "8GiB"; });
    with(note, "/home/bob/.config/curb/policy.json is not used", "CURB_POLICY",
         [](M &m) { m.policy.source.foreign = "/home/bob/.config/curb/policy.json"; });
    with(ok, "none here: curb observes programs", "");
    with(ok, "/etc/curb/policy.json is valid", "", [](M &m) { m.policy.has_ceiling = true; });
    with(ok, "none here: the machine's ceiling alone limits programs", "", [](M &m) { m.policy.has_ceiling = true; });
    M broken = machine();
    fault("/etc/curb/policy.json")(broken);
    broken.policy.source.file = "";
    const Findings findings = examine(broken);
    CHECK(std::any_of(findings.begin(), findings.end(), [](const Finding &one) {
        return one.text == "none here: the ceiling alone decides, and it cannot be used";
    }));
}

TEST_CASE("findings about users of a GPU: not under curb, silent, or with a wrong policy") {
    const Examined<M> with(machine());
    const auto mute = with.after([](M &m) {
        m.view.processes[0].status.reset();
        m.view.gpus[0].uses[0].books.reset();
        m.view.processes[0].trouble = "has not answered for 2 s";
    });
    const auto bare = with.after([](M &m) {
        m.view.processes[0].under_curb = false;
        m.view.processes[0].status.reset();
        m.view.gpus[0].uses[0].books.reset();
    });
    bare(note, "process 4711 (python3) of alice is not under curb and holds 2 GiB of GPU 0", "curb doctor 4711");
    bare(note, "process 4711 of another pid namespace holds 2 GiB", "", [](M &m) {
        m.view.processes[0].elsewhere = true;
        m.view.processes[0].name = m.view.processes[0].user = "";
    });
    bare(note, "process 4711 (python3) of alice holds 2 GiB of GPU 0; only that user and root can see whether", "",
         [](M &m) { m.view.processes[0].unseen = true; });
    bare(ok, "none is under curb", "", [](M &m) { m.view.processes[0].posted.emplace(); });
    bare(ok, "none is under curb", "", [](M &m) { m.view.gpus[0].uses[0].nvml = 0; });
    bare(note, "holds 2 GiB of GPU-8f3a1b2c-0000-4000-8000-000000000000", "curb doctor 4711", [](M &m) {
        m.view.gpus[0].parent = "GPU-0";  // a MIG instance: its index is not a GPU's
    });
    mute(problem, "does not say what it holds: it has not answered for 2 s", "curb doctor 4711");
    mute(note, "does not say what it holds", "", [](M &m) { m.view.processes[0].stopped = true; });
    const auto wrong = with.after([](M &m) { m.view.processes[0].status->policy.error = "job.json:1:1: no"; });
    wrong(problem, "the last edit of the policy of process 4711 (python3) of alice is not in force",
          "it is read at once");
    wrong(problem, "so it gets no GPU memory: job.json:1:1: no", "it is read at once",
          [](M &m) { m.view.processes[0].status->policy.unusable = true; });
}

TEST_CASE("a healthy capped process has no findings but ok") {
    const Findings findings = examine(capped());
    INFO(text_of(findings));
    CHECK(count_of_worse(findings) == 0);
    CHECK(found(findings, ok, "cuda:0: 2 GiB of 8 GiB") != nullptr);
}

TEST_CASE("a process that cannot be inspected is not reported as missing") {
    const Examined<P> with(process());
    const auto closed = with.after([](P &p) {
        p.readable = false;
        p.program.reset();
    });
    with(problem, "there is no process 4711", "curb ps", [](P &p) { p.there = false; });
    with(problem, "has ended", "", [](P &p) { p.ended = true; });
    with(problem, "a thread of the kernel", "program", [](P &p) { p.kernel_thread = true; });
    with(problem, "4711 is a thread of process 4700", "curb doctor 4700", [](P &p) { p.thread_of = 4700; });
    closed(problem, "belongs to bob", "as bob, or as root", [](P &p) {
        p.owner = 1001;
        p.owner_name = "bob";
    });
    closed(problem, "another user's rights (setuid)", "ld.so.preload", [](P &p) { p.acts_as = 0; });
    closed(problem, "cannot be looked into by root either", "outside the container", [](P &p) { p.user = 0; });
    closed(problem, "does not let its own user look into it", "as root");
}

TEST_CASE("the finding for a process without libcurb.so names the first sufficient cause") {
    const Examined<P> with(process());
    const auto preloads = with.after([](P &p) {
        p.preload = "/opt/curb/libcurb.so";
        p.preloaded = {{"/opt/curb/libcurb.so", true, Elf{64, EM_X86_64, {}, {}}}};
    });
    const auto missing = preloads.after([](P &p) { p.preloaded[0].there = false; });
    with(problem, "its program is for 32-bit x86, and libcurb.so for x86-64", "no 32-bit programs", [](P &p) {
        p.program = Elf{32, EM_386, "/lib/ld-linux.so.2", {}};
    });
    with(problem, "its program is for aarch64", "install curb for aarch64", [](P &p) {
        p.program = Elf{64, EM_AARCH64, "/lib/ld-linux-aarch64.so.1", {}};
    });
    with(problem, "statically linked", "dynamically", [](P &p) {
        p.program->interpreter.clear();
        p.secure = true;  // not reported: the first cause suffices
    });
    with(problem, "musl", "glibc", [](P &p) { p.program->interpreter = "/lib/ld-musl-x86_64.so.1"; });
    preloads(problem, "rights of its own", "ld.so.preload", [](P &p) { p.secure = true; });
    with(problem, "LD_PRELOAD was not set when it was started", "sudo curb run -- COMMAND");
    with(problem, "LD_PRELOAD was not set", "curb run", [](P &p) { p.preload = ""; });
    with(problem, "was not set when it was started, though CURB_CAP was", "curb run",
         [](P &p) { p.has_settings = "CURB_CAP"; });
    with(problem, "LD_PRELOAD named other libraries alone", "curb run", [](P &p) { p.preload = "/lib/other.so"; });
    missing(problem, "names /opt/curb/libcurb.so, which is not there", "correct the path");
    missing(problem, "which is not there", "into the container", [](P &p) { p.inner_pid = 17; });
    preloads(problem, "which is for aarch64 and the program for x86-64", "for x86-64",
             [](P &p) { p.preloaded[0].elf->machine = EM_AARCH64; });
    preloads(problem, "the loader did not take it", "stderr");
    const auto old = preloads.after([](P &p) {
        p.preloaded[0].glibc = 34;
        p.glibc = 31;
    });
    old(problem, "LD_PRELOAD names /opt/curb/libcurb.so, which needs glibc 2.34, and the program runs with 2.31",
        "Debian 12");
    old(problem, "/etc/ld.so.preload names /opt/curb/libcurb.so, which needs glibc 2.34", "Debian 12",
        [](P &p) { p.preloaded[0].by = "/etc/ld.so.preload"; });
    old(problem, "the loader did not take it", "stderr", [](P &p) { p.glibc = 36; });
    preloads(problem, "/etc/ld.so.preload names /opt/curb/libcurb.so, but the loader did not take it", "restart it",
             [](P &p) { p.preloaded[0].by = "/etc/ld.so.preload"; });
}

TEST_CASE("findings about a process that has libcurb.so and does not answer") {
    const Examined<P> with(silent());
    const auto unlisted = with.after([](P &p) { p.listed->clear(); });
    with(problem, "has not answered for 5 s", "restart", [](P &p) { p.has_socket = true; });
    with(note, "is stopped", "kill -CONT 4711", [](P &p) { p.has_socket = p.stopped = true; });
    with(problem, "holds GPU memory that curb does not answer for", "log.level");
    unlisted(note, "has not initialised it through curb yet", "dlmopen");
    with(note, "has not initialised it through curb yet", "dlmopen", [](P &p) { p.listed.reset(); });
    unlisted(ok, "it has not used CUDA yet", "", [](P &p) { p.driver.clear(); });
    unlisted(note, "was forked by process 4700", "spawn", [](P &p) { p.forked_from = 4700; });
    unlisted(note, "in a container of its own", "process 17", [](P &p) { p.inner_pid = 17; });
    with(problem, "cannot make a control socket, so it cannot be asked: /tmp: Read-only file system",
         "-v /run/curb:/run/curb", [](P &p) {
             p.inner_pid = 17;
             p.no_socket = "/tmp: Read-only file system";
         });
}

TEST_CASE("findings about a process under curb") {
    const Examined<P> with(capped());
    with(note, "was replaced since", "restart", [](P &p) { p.curb[0].deleted = true; });
    with(problem, "two libraries of curb", "one of them", [](P &p) {
        p.curb.push_back({"/opt/libcurb.so", 1, false});
    });
    with(note, "is of version 0.0.9, and this command of 0.1.0", "restart", [](P &p) { p.status->version = "0.0.9"; });
    const auto suspended = with.after([](P &p) { p.suspended = true; });
    suspended(note, "process 4711 (python3) is suspended: its memory is in host memory", "curb resume 4711");
    suspended(note, "is suspended", "curb resume 4711", [](P &p) { p.status->gpus[0].cap = GiB; });
    const auto naps = suspended.after([](P &p) { p.status->nap = {.out = true, .since = 1, .refused = {}}; });
    naps(ok, "process 4711 (python3) naps: its memory is in host memory until its next call of CUDA", "");
    naps(ok, "cuda:0: 2 GiB of 8 GiB; in host memory until its next call of CUDA", "");
    with(note, "could not leave its GPUs when it was idle: it has managed memory", "tries again",
         [](P &p) { p.status->nap = {.refused = "it has managed memory"}; });
    with(problem, "(CUDA_ERROR_ILLEGAL_ADDRESS)", "\"light\": false",
         [](P &p) { p.status->nap = {.refused = {}, .illegal_address = true}; });
    with(note, "naps at the driver's rate: several ranks talk", "",
         [](P &p) { p.status->nap = {.refused = {}, .not_light = "several ranks talk"}; });
    with(note,
         "it waits on cuda:0 for 1 GiB, 3 s so far (thread 4720): it hit the allowance; the next growth step is "
         "due in 5 s; it fails in 27 s",
         "growth.start", [](P &p) {
             p.now = 10'000;
             p.status->waits = {{0, 4720, 7'000, GiB, curb::policy::Limit::allowance, 37'000, 15'000}};
         });
    with(ok, "cuda:0: 2 GiB of 8 GiB", "", [](P &p) {
        p.now = 10'000;
        p.status->waits = {{0, 4711, 9'500, GiB, curb::policy::Limit::cap, 37'000, {}}};
    });
    with(note, "cuda:0: refused 3 requests, last ", "raise it: curb cap 4711 11GiB", [](P &p) {
        p.status->gpus[0].total = 80 * GiB;
        p.status->gpus[0].refused[static_cast<std::size_t>(curb::policy::Limit::cap)] = 3;
        p.status->refusals = {{10'000, 0, 2 * GiB, curb::policy::Limit::cap, 8 * GiB, 8 * GiB}};
    });
    const auto without_policy = with.after([](P &p) { p.status->policy = {}; });
    without_policy(note, "it has no policy", "curb cap 4711");
    without_policy(ok, "CURB_CAP 8GiB", "", [](P &p) { p.status->policy.cap = "8GiB"; });
    without_policy(ok, "ceiling /etc/curb/policy.json", "",
                   [](P &p) { p.status->policy.ceiling = "/etc/curb/policy.json"; });
    const auto broken = with.after([](P &p) { p.status->policy.error = "job.json:4:14: no size"; });
    broken(problem, "the last edit of its policy is not in force", "the last good one");
    broken(problem, "every GPU allocation is refused: job.json:4:14: no size",
           "fix /home/alice/job.json; it is read at once", [](P &p) { p.status->policy.unusable = true; });
    with(problem, "/opt/plugin.so: it bypassed curb to look up cuMemAlloc_v2", "RTLD_DEEPBIND", [](P &p) {
        p.status->bypasses = {{"/opt/plugin.so", "it bypassed curb to look up cuMemAlloc_v2"}};
    });
    with(note, "the program ignores SIGUSR1, so the signal asks for no release", "curb release 4711",
         [](P &p) { p.status->signal_trouble = "the program ignores SIGUSR1"; });
    with(problem, "/tmp/trace is not written any more: No space left", "make room", [](P &p) {
        p.status->trace = {"/tmp/trace", 5, 0, "No space left on device"};
    });
    with(note, "3 events are missing in its trace", "disk", [](P &p) { p.status->trace = {"/tmp/trace", 5, 3, ""}; });
    with(ok, "answers", "", [](P &p) { p.status->trace = {"/tmp/trace", 5, 0, ""}; });
    with(note, "9 GiB of 8 GiB: more than the cap", "curb release 4711",
         [](P &p) { p.status->gpus[0].held = 9 * GiB; });
    with(ok, "answers", "", [](P &p) { p.listed.reset(); });
    const auto unlisted = with.after([](P &p) { p.listed->clear(); });
    unlisted(note, "NVML does not list it", "--pid=host");
    unlisted(ok, "answers", "", [](P &p) { p.status->gpus[0].contexts = 0; });
}

TEST_CASE("if TensorFlow has no GPU, the finding says how far it has come") {
    const auto loads_it = [](ProcessCondition p) {
        p.tensorflow = {{"/usr/lib/libtensorflow_framework.so.2", 1, false}};
        return p;
    };
    const auto says = [](const ProcessCondition &p, const std::string &what) {
        const Findings findings = examine(p);
        INFO(text_of(findings));
        const Finding *one = found(findings, note, "TensorFlow is loaded, and " + what + ": it has not used a GPU");
        REQUIRE(one != nullptr);
        CHECK_THAT(one->remedy, contains("list_physical_devices") && contains("CUDA_VISIBLE_DEVICES"));
    };
    ProcessCondition asleep = loads_it(silent());
    asleep.listed->clear();
    says(asleep, "the driver is not initialised");
    asleep.driver.clear();
    says(asleep, "libcuda is not");
    ProcessCondition idle = loads_it(capped());
    CHECK(count_of_worse(examine(idle)) == 0);
    idle.status->gpus[0].contexts = 0;
    says(idle, "it has no context on a GPU");
    idle.tensorflow.clear();
    CHECK(count_of_worse(examine(idle)) == 0);
}

TEST_CASE("if curb has refused nothing and memory is left, doctor names TensorFlow's own limit") {
    const std::string what =
        "cuda:0: curb has refused nothing, and 6 GiB of the cap are left; if TensorFlow reports out "
        "of memory, that is its own limit";
    ProcessCondition p = capped();
    CHECK(found(examine(p), ok, what) == nullptr);
    p.status->returns_nothing = {"TensorFlow"};
    CHECK(found(examine(p), ok, what) != nullptr);
    CHECK(count_of_worse(examine(p)) == 0);
    const auto not_with = [&](auto change) {
        ProcessCondition other = p;
        change(other.status->gpus[0]);
        CHECK(text_of(examine(other)).find("its own limit") == std::string::npos);
    };
    not_with([](auto &gpu) { gpu.refused[0] = 1; });
    not_with([](auto &gpu) { gpu.held = *gpu.cap - GiB / 4; });
    not_with([](auto &gpu) { gpu.cap.reset(); });
    not_with([](auto &gpu) { gpu.contexts = 0; });
    p.status->returns_nothing = {"JAX"};
    CHECK(found(examine(p), ok, what) == nullptr);
}

TEST_CASE("within() gives up a call that hangs, and it counts until it returns") {
    using namespace std::chrono_literals;
    CHECK(within(10s, [] { return 7; }) == 7);
    CHECK(calls_under_way() == 0);
    std::promise<int> returns;
    CHECK_FALSE(within(10ms, [&] { return returns.get_future().get(); }));
    CHECK(calls_under_way() == 1);
    returns.set_value(7);
    while (calls_under_way() != 0) std::this_thread::yield();
}

TEST_CASE("read_elf reads the class, machine and interpreter of ELF files, and of no others") {
    const TempDir folder;
    const auto header = [](int bits, unsigned machine) {
        std::string out(bits == 64 ? sizeof(Elf64_Ehdr) : sizeof(Elf32_Ehdr), '\0');
        out.replace(0, SELFMAG, ELFMAG);
        out[EI_CLASS] = bits == 64 ? ELFCLASS64 : ELFCLASS32;
        out[EI_DATA] = ELFDATA2LSB;
        out[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(machine);
        return out;
    };
    const auto read = [&](const std::string &text) { return read_elf(folder.write("file", text)); };
    CHECK(read(header(32, EM_386)) == Elf{32, EM_386, "", {}});
    CHECK(read(header(64, EM_AARCH64)) == Elf{64, EM_AARCH64, "", {}});
    CHECK_FALSE(read(header(64, EM_X86_64).substr(0, 40)));
    CHECK_FALSE(read("#!/bin/sh\n"));
    CHECK_FALSE(read(""));
    CHECK_FALSE(read_elf("/nonexistent"));
    std::string lies = header(64, EM_X86_64);  // headers beyond the end of the file
    lies[offsetof(Elf64_Ehdr, e_phnum)] = 100;
    lies[offsetof(Elf64_Ehdr, e_phentsize)] = 56;
    CHECK(read(lies) == Elf{64, EM_X86_64, "", {}});
    const auto self = read_elf("/proc/self/exe");
    REQUIRE(self);
    CHECK_FALSE(self->interpreter.empty());
    CHECK(architecture_of(Elf{32, EM_386, "", {}}) == "32-bit x86");
    CHECK(architecture_of(Elf{64, 243, "", {}}) == "machine 243 (64 bits)");
}

TEST_CASE("read_elf and read_regular_file open regular files only") {
    const TempDir dir;
    const std::string fifo = (dir / "libcurb.so").string(), link = (dir / "link.so").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    std::filesystem::create_symlink(fifo, link);
    const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    REQUIRE(::inotify_add_watch(watch, fifo.c_str(), IN_OPEN) >= 0);
    CHECK_FALSE(read_elf(fifo));
    CHECK_FALSE(read_elf(link));
    CHECK(read_regular_file(link, 100).empty());
    char event[512];
    CHECK(::read(watch, event, sizeof event) < 0);  // it was not opened
    ::close(watch);
    const std::string text = dir.write("text", std::string(100'000, 'x'));
    CHECK(read_regular_file(text, 1 << 20).size() == 100'000);
    CHECK(read_regular_file(text, 70'000).size() == 70'000);
}
