#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <map>

#include "catch.hpp"
#include "config/load.hpp"
#include "in_child.hpp"
#include "local_socket.hpp"
#include "temp_dir.hpp"

using namespace curb;
using config::Source;
namespace fs = std::filesystem;

namespace {

Source locate(const std::map<std::string, std::string> &environment) {
    return config::locate([&](const char *name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
    });
}

std::string why_unreadable(const std::string &path) {
    const auto text = config::read_file(path);
    INFO(path);
    REQUIRE_FALSE(text);
    CHECK(text.error().file == path);
    CHECK(text.error().line == 0);
    CHECK(text.error().unread);
    return text.error().message;
}

Source source(const std::string &file, const std::string &cap, bool named, bool own = false) {
    Source out;
    out.file = file;
    out.cap = cap;
    out.named = named;
    out.own = own;
    return out;
}

constexpr uid_t kNobody = 65534;

}  // namespace

TEST_CASE("Without any word of it there is no policy") {
    const TempDir home;
    CHECK(locate({}).none());
    CHECK(locate({{"HOME", home.path().string()}}).none());
    CHECK(locate({{"CURB_POLICY", ""}, {"CURB_CAP", ""}, {"HOME", home.path().string()}}) == Source{});
}

TEST_CASE("The ceiling is where it is, whatever the environment says") {
    CHECK(locate({}).ceiling == "/etc/curb/policy.json");
    CHECK(locate({{"CURB_POLICY", "/a.json"}, {"CURB_CEILING", "/b.json"}, {"XDG_CONFIG_HOME", "/c"}}).ceiling ==
          "/etc/curb/policy.json");
}

TEST_CASE("CURB_POLICY names the policy, whether it is there or not") {
    CHECK(locate({{"CURB_POLICY", "/no/such.json"}}) == source("/no/such.json", "", true));
}

TEST_CASE("A relative path means the directory of the start, wherever the program goes later") {
    const TempDir dir;
    const fs::path before = fs::current_path();
    fs::current_path(dir.path());
    const Source source = locate({{"CURB_POLICY", "job.json"}});
    fs::current_path(before);
    CHECK(source.file == (dir / "job.json").string());
}

TEST_CASE("The user's own file is taken if it is there, and was not named") {
    const TempDir home;
    const std::string file = home.write(".config/curb/policy.json", "{}");
    const std::string other = home.write("xdg/curb/policy.json", "{}");
    const std::string directory = home.path().string();
    CHECK(locate({{"HOME", directory}}) == source(file, "", false, true));
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", directory + "/xdg"}}) == source(other, "", false, true));
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", directory + "/empty"}}).none());
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", "relative"}}).file == file);
    CHECK(locate({{"HOME", directory}, {"CURB_POLICY", "/a.json"}}).file == "/a.json");
}

TEST_CASE("A file in the user's place that is another user's is not used, at the start or later") {
    if (::geteuid() != 0) return skip("only root can give files away");
    const TempDir home;
    const std::string file = home.write(".config/curb/policy.json", R"({ "version": 1, "log": { "level": "info" } })");
    const std::map<std::string, std::string> environment{{"HOME", home.path().string()}};
    const Source roots = locate(environment);
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    Source anothers = locate(environment);
    CHECK(anothers.none());
    CHECK(anothers.foreign == file);
    // Whoever may put files there can do so while a process follows it.
    const auto read = config::read(roots);
    REQUIRE_FALSE(read);
    CHECK_THAT(read.error().at(0).message, contains("it belongs to user 65534") && contains("CURB_POLICY"));
    CHECK_FALSE(config::read(roots, "{}"));
    // Its owner uses it, and everybody that of root.
    for (const uid_t owner : {kNobody, uid_t{0}}) {
        REQUIRE(::chown(file.c_str(), owner, owner) == 0);
        REQUIRE(::chmod(home.path().c_str(), 0755) == 0);
        REQUIRE(::seteuid(kNobody) == 0);
        const std::string found = locate(environment).file;
        REQUIRE(::seteuid(0) == 0);
        CHECK(found == file);
    }
    // One that is named is whoever's it is.
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    CHECK(config::read(locate({{"CURB_POLICY", file}})));
}

TEST_CASE("CURB_CAP is laid over either") {
    const TempDir home;
    const std::string file = home.write(".config/curb/policy.json", "{}");
    CHECK(locate({{"CURB_CAP", "8GiB"}}) == source("", "8GiB", true));
    CHECK(locate({{"CURB_CAP", "8GiB"}, {"HOME", home.path().string()}}) == source(file, "8GiB", true, true));
    CHECK(locate({{"CURB_CAP", "8GiB"}, {"CURB_POLICY", "/a.json"}}) == source("/a.json", "8GiB", true));
}

// Run by the next test in a copy of this program that belongs to somebody else and is set-uid.
TEST_CASE("secure execution", "[.secure]") {
    const bool secure = ::getauxval(AT_SECURE) != 0;
    const bool ignored = locate({{"CURB_POLICY", "/a.json"}, {"CURB_CAP", "8GiB"}}) == Source{};
    ::_exit(secure && ignored ? 0 : 1);  // at once: a leak checker may not look into a set-uid process
}

TEST_CASE("Under AT_SECURE the environment is ignored, but not the ceiling") {
    const TempDir dir;
    struct statvfs mount {};
    REQUIRE(::statvfs(dir.path().c_str(), &mount) == 0);
    if (::geteuid() != 0 || (mount.f_flag & ST_NOSUID) != 0)
        return skip("needs root and a directory that is not mounted nosuid");
    const std::string copy = (dir / "locate_test").string();
    fs::copy_file("/proc/self/exe", copy);
    REQUIRE(::chown(copy.c_str(), kNobody, kNobody) == 0);
    REQUIRE(::chmod(copy.c_str(), 04755) == 0);
    CHECK(in_child([&] { return ::execl(copy.c_str(), copy.c_str(), "[.secure]", static_cast<char *>(nullptr)); }) ==
          0);
}

TEST_CASE("A file is read whole") {
    const TempDir dir;
    const std::string text = "{}\n" + std::string(100'000, ' ') + std::string(1, '\0') + "end";
    const auto read = config::read_file(dir.write("a", text));
    REQUIRE(read);
    CHECK(*read == text);
}

TEST_CASE("A file may have 1 MiB and no byte more") {
    const TempDir dir;
    CHECK(config::read_file(dir.write("a", std::string(1 << 20, ' '))));
    CHECK_THAT(why_unreadable(dir.write("b", std::string((1 << 20) + 1, ' '))), contains("larger than 1 MiB"));
    CHECK_THAT(why_unreadable("/proc/self/pagemap"), contains("larger than 1 MiB"));  // says that it is empty
}

TEST_CASE("Of a file of 100 MiB no more is read than it takes to refuse it") {
    const TempDir dir;
    const std::string path = dir.write("a", "{}");
    fs::resize_file(path, 100 << 20);
    rusage before{}, after{};
    REQUIRE(::getrusage(RUSAGE_SELF, &before) == 0);
    CHECK_THAT(why_unreadable(path), contains("larger than 1 MiB, which no policy is"));
    REQUIRE(::getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(after.ru_maxrss - before.ru_maxrss < 50 << 10);  // in KiB
}

TEST_CASE("What cannot be read is answered with what to do") {
    const TempDir dir;
    CHECK_THAT(why_unreadable((dir / "missing").string()), contains("no such file; check the path"));
    CHECK_THAT(why_unreadable(""), contains("no such file"));
    CHECK_THAT(why_unreadable(dir.path().string()), contains("it is a directory; name the policy file in it"));
    CHECK_THAT(why_unreadable(dir.write("file", "{}") + "/x"), contains("not a directory"));
    CHECK_THAT(why_unreadable("/dev/null"), contains("not a regular file"));
    fs::create_symlink("loop", dir / "loop");
    CHECK_THAT(why_unreadable((dir / "loop").string()), contains("circle"));
    CHECK_THAT(why_unreadable((dir / std::string(300, 'x')).string()),
               contains("cannot be opened: File name too long"));
}

TEST_CASE("A FIFO is refused at once, with or without a writer") {
    const TempDir dir;
    const std::string path = (dir / "fifo").string();
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THAT(why_unreadable(path), contains("not a regular file; copy the policy into one"));
    const int writer = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(writer >= 0);
    CHECK_THAT(why_unreadable(path), contains("not a regular file"));
    ::close(writer);
}

TEST_CASE("A socket is refused") {
    const TempDir dir;
    const std::string path = (dir / "socket").string();
    const int fd = bound_socket(path);
    REQUIRE(fd >= 0);
    CHECK_THAT(why_unreadable(path), contains("not a regular file"));
    ::close(fd);
}

TEST_CASE("A file that this user may not read is told from one that is not there") {
    const TempDir dir;
    const std::string path = dir.write("secret", "{}");
    REQUIRE(::chmod(path.c_str(), 0) == 0);
    REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
    const uid_t me = ::geteuid();
    if (me == 0) REQUIRE(::seteuid(kNobody) == 0);
    const auto text = config::read_file(path);
    REQUIRE(::seteuid(me) == 0);
    REQUIRE_FALSE(text);
    CHECK_THAT(text.error().message, contains("may not be read by this user"));
}
