// load() merges all sources of a policy for one process: its file, its rules, CURB_CAP, the machine's ceiling.
#include <pwd.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "config/load.hpp"
#include "in_child.hpp"
#include "temp_dir.hpp"

using namespace curb;
using config::Diagnostics;
using config::Loaded;
using config::Source;
using policy::GiB;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kNobody = 65534;
constexpr const char *kCapOf20 = R"({"version": 1, "gpu": {"*": {"cap": "20GiB"}}})";

Source source(const std::string &file, const std::string &cap = "", const std::string &ceiling = "") {
    Source out;
    out.file = file;
    out.cap = cap;
    out.ceiling = ceiling;
    out.named = true;
    return out;
}

policy::Subject alice(bool with_user) {
    policy::Subject out;
    out.exe = "/usr/bin/python3.11";
    out.args = "train_bert.py --fast";
    if (with_user) out.users.emplace_back("alice");
    out.users.emplace_back("1001");
    return out;
}
policy::Subject nobody_asks(bool /*with_user*/) { throw std::logic_error("there are no rules"); }

Loaded loaded(const Source &from, const config::WhoIs &who = nobody_asks) {
    auto out = config::load(from, who);
    if (!out) {
        for (const auto &diagnostic : out.error()) UNSCOPED_INFO(diagnostic.text());
    }
    REQUIRE(out);
    return std::move(out).value();
}

std::optional<policy::Bytes> cap(const policy::Policy &policy) {
    return policy::terms_for(policy, policy::GpuIdentity{}, 80 * GiB).cap;
}

Diagnostics refused(const Source &from) {
    const auto out = config::load(from, nobody_asks);
    REQUIRE_FALSE(out);
    return out.error();
}

}  // namespace

TEST_CASE("CURB_CAP narrows the file's cap; without file, CURB_CAP and ceiling there are no caps") {
    const TempDir dir;
    const std::string file = dir.write("job.json", kCapOf20);
    CHECK(cap(loaded(source(file)).policy) == 20 * GiB);
    CHECK(cap(loaded(source(file, "8GiB")).policy) == 8 * GiB);
    CHECK(cap(loaded(source(file, "30GiB")).policy) == 20 * GiB);
    CHECK(cap(loaded(source("", "25%")).policy) == 20 * GiB);
    CHECK(loaded(source("")).policy == policy::Policy{});
    CHECK(loaded(source("")).rule.empty());
    CHECK(loaded(source("", "", (dir / "missing.json").string())).policy == policy::Policy{});
    CHECK(loaded(source("", "", (dir / "no/such/directory/policy.json").string())).policy == policy::Policy{});
}

TEST_CASE("A setting of a variable overrides the file's") {
    const TempDir dir;
    Source from = source(dir.write("job.json", R"({"version": 1, "suspend": {"idle": "1h"}})"));
    from.flags = {{policy::Flag::nap, "30s"}};
    CHECK(loaded(from).policy.suspend.idle == std::chrono::seconds(30));
}

TEST_CASE("CURB_SIGNAL names the release signal if no file does") {
    const TempDir dir;
    Source from = source("");
    from.signal = "SIGURG";
    CHECK(loaded(from).policy.release.signal == SIGURG);
    from.file = dir.write("job.json", R"({"version": 1, "release": {"signal": "SIGUSR2"}})");
    CHECK(loaded(from).policy.release.signal == SIGUSR2);
    const std::string ceiling = dir.write("ceiling.json", R"({"version": 1, "release": {"signal": "SIGHUP"}})");
    if (::geteuid() == 0) {
        fs::permissions(dir.path(), fs::perms(0755));
        from.file.clear();
        from.ceiling = ceiling;
        CHECK(loaded(from).policy.release.signal == SIGHUP);
        from.ceiling.clear();
    }
    from.signal = "SIGNONSENSE";
    const Diagnostics found = refused(from);
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0].text(), contains("CURB_SIGNAL: ") && contains("SIGNONSENSE"));
}

TEST_CASE("A limit of another system caps a device; one that cannot be parsed is ignored") {
    const TempDir dir;
    Source from = source("");
    from.handed_in = {{"CUDA_DEVICE_MEMORY_LIMIT", "4g"}, {"NVIDIA_GPU_MEMORY_LIMIT", "much"}};
    const Loaded both = loaded(from);
    CHECK(cap(both.policy) == 4 * GiB);
    REQUIRE(both.ignored.size() == 1);
    CHECK_THAT(both.ignored[0], contains("NVIDIA_GPU_MEMORY_LIMIT is 'much'"));
    from.file = dir.write("job.json", R"({"version": 1, "environment": false})");
    CHECK_FALSE(cap(loaded(from).policy));
    from.file = dir.write("job.json", kCapOf20);
    CHECK(cap(loaded(from).policy) == 20 * GiB);
}

TEST_CASE("In a user namespace that does not map root, a ceiling is trusted if only its owner may write it") {
    const TempDir dir;
    const std::string ceiling = dir.write("ceiling.json", R"({"version": 1, "gpu": {"*": {"cap": "1GiB"}}})");
    fs::permissions(dir.path(), fs::perms(0755));
    const auto in_namespace = [&](bool is_valid) {
        return in_child([&] {
            if (::unshare(CLONE_NEWUSER) != 0) return 77;
            const auto out = config::load(source("", "", ceiling), nobody_asks);
            return out.operator bool() == is_valid ? 0 : 1;
        });
    };
    const int status = in_namespace(true);
    if (status == 77 << 8) return skip("no user namespace can be made here");
    CHECK(status == 0);
    fs::permissions(ceiling, fs::perms(0664));
    CHECK(in_namespace(false) == 0);
}

TEST_CASE("All errors of the file, CURB_CAP and the ceiling are reported together") {
    const TempDir dir;
    const std::string file = dir.write("job.json", R"({"version": 2, "gpu": {"*": {"cap": "20Gib"}}})");
    fs::create_symlink("nowhere", dir / "ceiling.json");
    const Diagnostics found = refused(source(file, "8Gib", (dir / "ceiling.json").string()));
    REQUIRE(found.size() == 4);
    CHECK_THAT(found[0].text(), contains(file + ":1:13: /version"));
    CHECK_THAT(found[1].text(), contains(file + ":1:37: /gpu/*/cap"));
    CHECK(found[2].text() == "CURB_CAP: '8Gib' is not a size; did you mean \"8GiB\"?");
    CHECK_THAT(found[3].text(), contains("ceiling.json: the machine's ceiling is a symbolic link to nothing"));
    CHECK((!found[0].unread && !found[1].unread && !found[2].unread && found[3].unread));
}

TEST_CASE("A named file that is not there is an error, unless its text is given: then the file is not read") {
    const Diagnostics found = refused(source("/no/such.json"));
    CHECK_THAT(found[0].text(), contains("/no/such.json: there is no such file"));
    CHECK(found[0].unread);
    const auto out = config::load(source("/no/such.json"), nobody_asks, kCapOf20);
    REQUIRE(out);
    CHECK(cap(out->policy) == 20 * GiB);
    const auto wrong = config::load(source("/no/such.json"), nobody_asks, "{}");
    REQUIRE_FALSE(wrong);
    CHECK_THAT(wrong.error()[0].text(), contains("/no/such.json:1:1: the version is missing"));
}

TEST_CASE("A ceiling whose file is gone is the last one, if there was one") {
    const TempDir dir;
    const Source gone = source("", "8GiB", (dir / "ceiling.json").string());
    const auto kept = config::load(gone, nobody_asks, std::nullopt, R"({"version": 1, "gpu": {"*": {"cap": "1GiB"}}})");
    REQUIRE(kept);
    CHECK(cap(kept->policy) == 1 * GiB);
    CHECK((kept->ceiling && kept->is_ceiling_gone));
    const Loaded none = loaded(gone);
    CHECK(cap(none.policy) == 8 * GiB);
    CHECK((!none.ceiling && !none.is_ceiling_gone && none.ceiling_text.empty()));
}

TEST_CASE("The first rule that matches is laid over the file") {
    const TempDir dir;
    const std::string file = dir.write("job.json", R"({"version": 1,
        "gpu": {"*": {"cap": "20GiB", "report": "device"}},
        "rules": [{"name": "other", "match": {"args": "*train_gpt*"}, "gpu": {"*": {"cap": "1GiB"}}},
                  {"name": "bert", "match": {"exe": "python3*", "args": "*train_bert*"}, "gpu": {"*": {"cap": "2GiB"}}},
                  {"match": {}, "gpu": {"*": {"cap": "3GiB"}}}]})");
    const Loaded of_alice = loaded(source(file), alice);
    CHECK(of_alice.rule == "rule 2 \"bert\"");
    CHECK(cap(of_alice.policy) == 2 * GiB);
    CHECK(policy::terms_for(of_alice.policy, {}, GiB).fields.report == policy::Report::device);
    const Loaded of_another = loaded(source(file), [](bool) { return policy::Subject{}; });
    CHECK(of_another.rule == "rule 3");
    CHECK(cap(of_another.policy) == 3 * GiB);
    dir.write("job.json", R"({"version": 1, "gpu": {"*": {"cap": "20GiB"}},
        "rules": [{"match": {"exe": "ruby"}, "gpu": {"*": {"cap": "1GiB"}}}]})");
    CHECK(loaded(source(file), alice).rule.empty());
    CHECK(cap(loaded(source(file), alice).policy) == 20 * GiB);
}

TEST_CASE("The user's name is looked up only if a rule asks for it") {
    const TempDir dir;
    const auto asked = [&](const char *match) {
        bool with_user = false;
        const std::string file = dir.write("job.json", R"({"version": 1, "rules": [{"match": )" + std::string(match) +
                                                           R"(, "gpu": {"*": {"cap": "1GiB"}}}]})");
        const Loaded out = loaded(source(file), [&](bool wanted) {
            with_user = wanted;
            return alice(wanted);
        });
        CHECK(cap(out.policy) == GiB);
        return with_user;
    };
    CHECK(asked(R"({"user": "ali?e"})"));
    CHECK(asked(R"({"user": "1001"})"));
    CHECK_FALSE(asked(R"({"exe": "python*"})"));
}

TEST_CASE("A ceiling whose path cannot be followed is an error") {
    const TempDir dir;
    const std::string under_file = dir.write("file", "") + "/policy.json";
    CHECK_THAT(refused(source("", "", under_file))[0].text(), contains("the machine's ceiling: a part of its path"));
    fs::create_symlink("loop", dir / "loop");
    CHECK_THAT(refused(source("", "", (dir / "loop").string()))[0].text(), contains("symbolic links lead in a circle"));
    fs::create_symlink(dir / "gone/policy.json", dir / "dangling");
    const Diagnostics found = refused(source("", "", (dir / "dangling").string()));
    CHECK_THAT(found[0].text(), contains("the machine's ceiling is a symbolic link to nothing"));
    CHECK(found[0].unread);
}

TEST_CASE("A ceiling of another user is not trusted; a file of root's in a directory of root's is") {
    const TempDir dir;
    const std::string path = dir.write("policy.json", kCapOf20);
    if (::geteuid() == 0) REQUIRE(::chown(path.c_str(), kNobody, kNobody) == 0);
    const Diagnostics found = refused(source("", "", path));
    REQUIRE(found.size() == 1);
    CHECK(found[0].message ==
          "the machine's ceiling does not belong to root, so the ceiling cannot be trusted; "
          "as root: chown root " +
              path);
    CHECK(found[0].unread);
    struct stat status {};
    if (::stat("/etc/passwd", &status) != 0 || status.st_uid != 0) return skip("root is not known by its number here");
    const Diagnostics of_roots = refused(source("", "", "/etc/passwd"));
    CHECK(of_roots[0].line == 1);  // it was read, and is no policy
    CHECK_FALSE(of_roots[0].unread);
}

namespace {

// A correct ceiling that belongs to root. Needs root.
class Ceiling {
  public:
    explicit Ceiling(const char *text = kCapOf20) : path_(dir_.write("curb/policy.json", text)) {
        mode(path_, 0644);
        mode(directory(), 0755);
        mode(dir_.path().string(), 0755);
    }
    [[nodiscard]] const std::string &path() const { return path_; }
    [[nodiscard]] std::string directory() const { return (dir_ / "curb").string(); }
    [[nodiscard]] const TempDir &around() const { return dir_; }
    static void mode(const std::string &path, mode_t mode) { REQUIRE(::chmod(path.c_str(), mode) == 0); }
    [[nodiscard]] Source over(const std::string &file, const std::string &curb_cap = "") const {
        return source(file, curb_cap, path_);
    }

  private:
    TempDir dir_;
    std::string path_;
};

bool is_root() {
    if (::geteuid() == 0) return true;
    skip("only root can make a ceiling");
    return false;
}

}  // namespace

TEST_CASE("The user's policy, and CURB_CAP, can only narrow the ceiling") {
    if (!is_root()) return;
    const Ceiling ceiling;
    const TempDir dir;
    const std::string own = dir.write("job.json", R"({"version": 1, "gpu": {"*": {"cap": "30GiB"}}})");
    CHECK(cap(loaded(ceiling.over(own)).policy) == 20 * GiB);
    CHECK(cap(loaded(ceiling.over("")).policy) == 20 * GiB);
    CHECK(cap(loaded(ceiling.over("", "8GiB")).policy) == 8 * GiB);
    CHECK(cap(loaded(ceiling.over("", "30GiB")).policy) == 20 * GiB);
}

TEST_CASE("The ceiling has rules of its own") {
    if (!is_root()) return;
    const Ceiling ceiling(R"({"version": 1, "gpu": {"*": {"cap": "20GiB"}},
                              "rules": [{"match": {"user": "alice"}, "gpu": {"*": {"cap": "40GiB"}}}]})");
    CHECK(cap(loaded(ceiling.over(""), alice).policy) == 40 * GiB);
    CHECK(cap(loaded(ceiling.over(""), [](bool) { return policy::Subject{}; }).policy) == 20 * GiB);
    const auto reading = config::read(ceiling.over(""));
    REQUIRE(reading);
    CHECK(config::outcome(*reading, alice).ceiling_rule == &reading->ceiling->file.rules[0]);
}

TEST_CASE("A ceiling is not trusted if others than root can write it or its directory") {
    if (!is_root()) return;
    const Ceiling ceiling;
    const auto why = [&] {
        const Diagnostics found = refused(ceiling.over(""));
        REQUIRE(found.size() == 1);
        CHECK(found[0].unread);
        return found[0].message;
    };
    for (const mode_t mode : {0664U, 0646U, 0666U}) {
        Ceiling::mode(ceiling.path(), mode);
        CHECK(why() ==
              "the machine's ceiling is writable by others than root, so the ceiling cannot be trusted; "
              "as root: chmod go-w " +
                  ceiling.path());
    }
    Ceiling::mode(ceiling.path(), 0444);
    CHECK(cap(loaded(ceiling.over("")).policy) == 20 * GiB);
    for (const mode_t mode : {0775U, 0757U}) {
        Ceiling::mode(ceiling.directory(), mode);
        CHECK_THAT(why(), contains("the directory of the machine's ceiling is writable by others than root") &&
                              contains("as root: chmod go-w " + ceiling.directory()));
    }
    Ceiling::mode(ceiling.directory(), 01777);  // sticky: other users cannot replace root's file
    CHECK(cap(loaded(ceiling.over("")).policy) == 20 * GiB);
    Ceiling::mode(ceiling.directory(), 0755);
    REQUIRE(::chown(ceiling.directory().c_str(), kNobody, kNobody) == 0);
    CHECK_THAT(why(), contains("the directory of the machine's ceiling does not belong to root") &&
                          contains("as root: chown root " + ceiling.directory()));
}

TEST_CASE("If the ceiling is a symbolic link, both directories are checked") {
    if (!is_root()) return;
    const Ceiling ceiling;
    const std::string linked = (ceiling.around() / "linked").string(), link = linked + "/policy.json";
    fs::create_directory(linked);
    Ceiling::mode(linked, 0755);
    fs::create_symlink("../curb/policy.json", link);
    CHECK(cap(loaded(source("", "", link)).policy) == 20 * GiB);
    for (const std::string &open : {ceiling.directory(), linked}) {
        Ceiling::mode(open, 0777);
        CHECK_THAT(refused(source("", "", link))[0].message, contains("chmod go-w " + open));
        Ceiling::mode(open, 0755);
    }
}

TEST_CASE("A ceiling that the user may not read is an error, not ignored") {
    if (!is_root()) return;
    const Ceiling ceiling;
    const auto as_nobody = [&] {
        REQUIRE(::seteuid(kNobody) == 0);
        const auto out = config::load(ceiling.over(""), nobody_asks);
        REQUIRE(::seteuid(0) == 0);
        return out;
    };
    CHECK(as_nobody());
    Ceiling::mode(ceiling.path(), 0600);
    const auto unreadable = as_nobody();
    REQUIRE_FALSE(unreadable);
    CHECK_THAT(unreadable.error()[0].text(), contains("the machine's ceiling may not be read by this user"));
    CHECK_THAT(unreadable.error()[0].text(), contains("as root: chmod 644 " + ceiling.path()));
    Ceiling::mode(ceiling.path(), 0644);
    Ceiling::mode(ceiling.directory(), 0700);
    REQUIRE_FALSE(as_nobody());
    CHECK(as_nobody().error()[0].unread);
}

TEST_CASE("A ceiling that is no policy, a directory or a FIFO is refused at once") {
    if (!is_root()) return;
    const Ceiling wrong("{}");
    CHECK_THAT(refused(wrong.over(""))[0].text(), contains(wrong.path() + ":1:1: the version is missing"));
    CHECK_FALSE(refused(wrong.over(""))[0].unread);
    CHECK_THAT(refused(source("", "", wrong.directory()))[0].message, contains("it is a directory"));
    const std::string fifo = wrong.directory() + "/fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    CHECK_THAT(refused(source("", "", fifo))[0].message, contains("not a regular file"));
}

// The next test runs this in a copy of this program, which deletes its own file.
TEST_CASE("a subject", "[.subject]") {
    const policy::Subject before = config::this_process(false);
    const std::string expected = std::getenv("EXPECTED_EXE");
    REQUIRE(fs::remove(expected));
    const policy::Subject after = config::this_process(false);
    const bool right =
        before.exe == expected && after.exe == expected && after.args == "[.subject] --abort --nothrow" &&
        std::string(after.environment("EXPECTED_EXE")) == expected && after.environment("NO_SUCH_VARIABLE") == nullptr;
    ::_exit(right ? 0 : 1);
}

TEST_CASE("A process knows its program, even if the file was deleted, and its arguments without the program") {
    const TempDir dir;
    const std::string copy = (dir / "a program").string();
    fs::copy_file("/proc/self/exe", copy);
    CHECK(in_child([&] {
              ::setenv("EXPECTED_EXE", copy.c_str(), 1);
              return ::execl(copy.c_str(), "another name", "[.subject]", "--abort", "--nothrow", nullptr);
          }) == 0);
}

TEST_CASE("this_process() has the environment of the start, and the user by number and, if asked for, by name") {
    ::setenv("SET_LATER", "1", 1);
    const policy::Subject subject = config::this_process(false);
    CHECK(subject.environment("SET_LATER") == nullptr);
    CHECK(subject.environment("PAT") == nullptr);  // a prefix of a name does not match
    REQUIRE(subject.environment("PATH") != nullptr);
    CHECK(std::string(subject.environment("PATH")) == std::getenv("PATH"));
    ::unsetenv("SET_LATER");
    CHECK(subject.users == std::vector{std::to_string(::getuid())});
    std::vector<std::string> with_name{std::to_string(::getuid())};
    if (const passwd *entry = ::getpwuid(::getuid())) with_name.insert(with_name.begin(), entry->pw_name);
    CHECK(config::this_process(true).users == with_name);
}
