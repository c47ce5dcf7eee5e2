// Which sources of a policy an environment names, and why a file cannot be read.
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

TEST_CASE("Limits of other systems are found, and do not count as a named policy") {
    const Source found = locate({{"CUDA_DEVICE_MEMORY_LIMIT_0", "4g"},
                                 {"CUDA_DEVICE_MEMORY_LIMIT_1", "2g"},
                                 {"CUDA_DEVICE_MEMORY_LIMIT_3", "1g"},
                                 {"GPU_MEMORY_LIMIT", ""},
                                 {"NVIDIA_GPU_MEMORY_LIMIT", "8192"}});
    CHECK_FALSE(found.named);
    using Variables = decltype(found.handed_in);
    CHECK(found.handed_in == Variables{{"NVIDIA_GPU_MEMORY_LIMIT", "8192"},
                                       {"CUDA_DEVICE_MEMORY_LIMIT_0", "4g"},
                                       {"CUDA_DEVICE_MEMORY_LIMIT_1", "2g"},
                                       {"CUDA_DEVICE_MEMORY_LIMIT_3", "1g"}});
    CHECK(locate({{"CURB_SIGNAL", "SIGURG"}}).signal == "SIGURG");
    CHECK(locate({{"CURB_SIGNAL", "SIGURG"}}).named);
}

TEST_CASE("The policy is the file that the environment names, otherwise the user's own file if there is one") {
    const TempDir home;
    const std::string directory = home.path().string();
    CHECK(locate({}).none());
    CHECK(locate({{"CURB_POLICY", ""}, {"CURB_CAP", ""}, {"HOME", directory}}) == Source{});
    const std::string own = home.write(".config/curb/policy.json", "{}"),
                      xdg = home.write("xdg/curb/policy.json", "{}");
    CHECK(locate({{"HOME", directory}}) == source(own, "", false, true));
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", directory + "/xdg"}}) == source(xdg, "", false, true));
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", directory + "/empty"}}).none());
    CHECK(locate({{"HOME", directory}, {"XDG_CONFIG_HOME", "relative"}}).file == own);
    CHECK(locate({{"HOME", directory}, {"CURB_POLICY", "/no/such.json"}}) == source("/no/such.json", "", true));
    // CURB_CAP applies on top of either.
    CHECK(locate({{"CURB_CAP", "8GiB"}}) == source("", "8GiB", true));
    CHECK(locate({{"CURB_CAP", "8GiB"}, {"HOME", directory}}) == source(own, "8GiB", true, true));
    CHECK(locate({{"CURB_CAP", "8GiB"}, {"CURB_POLICY", "/a.json"}}) == source("/a.json", "8GiB", true));
    // The environment cannot move the ceiling.
    CHECK(locate({{"CURB_CEILING", "/b.json"}, {"XDG_CONFIG_HOME", "/c"}}).ceiling == "/etc/curb/policy.json");
}

TEST_CASE("A relative path is relative to the directory of the start, wherever the program goes later") {
    const TempDir dir;
    const fs::path before = fs::current_path();
    fs::current_path(dir.path());
    const Source source = locate({{"CURB_POLICY", "job.json"}});
    fs::current_path(before);
    CHECK(source.file == (dir / "job.json").string());
}

TEST_CASE("A file in the user's own place that belongs to another user is not used, at the start or later") {
    if (::geteuid() != 0) return skip("only root can give files away");
    const TempDir home;
    const std::string file = home.write(".config/curb/policy.json", R"({ "version": 1, "log": { "level": "info" } })");
    const std::map<std::string, std::string> environment{{"HOME", home.path().string()}};
    const Source roots = locate(environment);
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    Source anothers = locate(environment);
    CHECK(anothers.none());
    CHECK(anothers.foreign == file);
    // Another user who may write there may do so while a process watches the file.
    const auto read = config::read(roots);
    REQUIRE_FALSE(read);
    CHECK_THAT(read.error().at(0).message, contains("it belongs to user 65534") && contains("CURB_POLICY"));
    CHECK_FALSE(config::read(roots, "{}"));
    // Its owner uses it, and any user uses root's.
    for (const uid_t owner : {kNobody, uid_t{0}}) {
        REQUIRE(::chown(file.c_str(), owner, owner) == 0);
        REQUIRE(::chmod(home.path().c_str(), 0755) == 0);
        REQUIRE(::seteuid(kNobody) == 0);
        const std::string found = locate(environment).file;
        REQUIRE(::seteuid(0) == 0);
        CHECK(found == file);
    }
    // A file that CURB_POLICY names may belong to any user.
    REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    CHECK(config::read(locate({{"CURB_POLICY", file}})));
}

// The next test runs this in a copy of this program that belongs to another user and is set-uid.
TEST_CASE("secure execution", "[.secure]") {
    const bool secure = ::getauxval(AT_SECURE) != 0;
    const bool ignored = locate({{"CURB_POLICY", "/a.json"}, {"CURB_CAP", "8GiB"}}) == Source{};
    ::_exit(secure && ignored ? 0 : 1);  // at once: a leak checker may not inspect a set-uid process
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

TEST_CASE("A file is read whole, up to 1 MiB; of a longer one only as much as shows its length") {
    const TempDir dir;
    const std::string text = "{}\n" + std::string(100'000, ' ') + std::string(1, '\0') + "end";
    const auto read = config::read_file(dir.write("a", text));
    REQUIRE(read);
    CHECK(*read == text);
    CHECK(config::read_file(dir.write("a", std::string(1 << 20, ' '))));
    CHECK_THAT(why_unreadable(dir.write("b", std::string((1 << 20) + 1, ' '))), contains("larger than 1 MiB"));
    CHECK_THAT(why_unreadable("/proc/self/pagemap"), contains("larger than 1 MiB"));  // stat reports 0 bytes
    fs::resize_file(dir / "a", 100 << 20);
    rusage before{}, after{};
    REQUIRE(::getrusage(RUSAGE_SELF, &before) == 0);
    CHECK_THAT(why_unreadable((dir / "a").string()), contains("larger than 1 MiB, which no policy is"));
    REQUIRE(::getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(after.ru_maxrss - before.ru_maxrss < 50 << 10);  // in KiB
}

TEST_CASE("The error for an unreadable file says what to do") {
    const TempDir dir;
    CHECK_THAT(why_unreadable((dir / "missing").string()), contains("no such file; check the path"));
    CHECK_THAT(why_unreadable(""), contains("no such file"));
    CHECK_THAT(why_unreadable(dir.path().string()), contains("it is a directory; name the policy file in it"));
    CHECK_THAT(why_unreadable(dir.write("file", "{}") + "/x"), contains("not a directory"));
    const std::string fifo = (dir / "fifo").string(), socket = (dir / "socket").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const int fd = bound_socket(socket);
    for (const std::string &path : {std::string("/dev/null"), fifo, socket})
        CHECK_THAT(why_unreadable(path), contains("not a regular file; copy the policy into one"));
    const int writer = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
    CHECK_THAT(why_unreadable(fifo), contains("not a regular file"));
    for (const int open : {fd, writer}) ::close(open);
    fs::create_symlink("loop", dir / "loop");
    CHECK_THAT(why_unreadable((dir / "loop").string()), contains("circle"));
    CHECK_THAT(why_unreadable((dir / std::string(300, 'x')).string()),
               contains("cannot be opened: File name too long"));
}

TEST_CASE("A file that this user may not read is not reported as missing") {
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
