// The records that `curb suspend` writes for `curb resume`: their places, their owners, and which ones are not trusted.
#include "control/suspended.hpp"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "catch.hpp"
#include "in_child.hpp"
#include "temp_dir.hpp"

namespace fs = std::filesystem;
using namespace curb::control::suspended;
using namespace std::chrono_literals;

namespace {

const Record kRecord{{"GPU-1", 9'000'000'000, 70'000'000'000}, {"GPU-2", 5, 0}};

Process self() { return {::getpid(), start_of(::getpid()), ::getuid(), ::getgid()}; }

// Sets XDG_RUNTIME_DIR to a folder of its own, until its end. Each case removes its own files in /tmp.
class Runtime {
  public:
    Runtime() { ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1); }
    ~Runtime() { ::unsetenv("XDG_RUNTIME_DIR"); }
    [[nodiscard]] fs::path folder() const { return dir_ / "curb"; }
    [[nodiscard]] static fs::path in_tmp() { return "/tmp/curb-" + std::to_string(::getuid()); }
    // Removes the record from /tmp, from a spare folder that may be there too.
    static void remove_from_tmp() {
        for (const auto &folder : fs::directory_iterator("/tmp"))
            if (folder.path().native().starts_with(in_tmp().native())) fs::remove(folder.path() / name());
    }
    [[nodiscard]] static std::string name(const char *kind = ".suspended.json") {
        return std::to_string(self().pid) + "-" + std::to_string(self().start) + kind;
    }

  private:
    TempDir dir_;
};

}  // namespace

TEST_CASE("A record is read as it was written, from each of its places") {
    const Runtime runtime;
    CHECK_FALSE(read(self()));
    REQUIRE_FALSE(write(self(), kRecord));
    CHECK(read(self()) == kRecord);
    struct stat folder {};
    REQUIRE(::stat(runtime.folder().c_str(), &folder) == 0);
    CHECK((folder.st_mode & 0777) == 0700);
    fs::remove(runtime.folder() / runtime.name());
    CHECK(read(self()) == kRecord);
    REQUIRE_FALSE(write(self(), {kRecord[1]}));  // replaces the record
    runtime.remove_from_tmp();
    CHECK(read(self()) == Record{kRecord[1]});
    remove(self());
    CHECK_FALSE(read(self()));
    CHECK(fs::is_empty(runtime.folder()));
}

TEST_CASE("A record that does not fit on the disk leaves no file behind") {
    const Runtime runtime;
    CHECK(in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit few{10, 10};
              const std::string unfinished = Runtime::name() + ".new";
              const bool fails = ::setrlimit(RLIMIT_FSIZE, &few) == 0 && write(self(), kRecord);
              return fails && !fs::exists(runtime.folder() / unfinished) && !fs::exists(Runtime::in_tmp() / unfinished)
                         ? 0
                         : 1;
          }) == 0);
}

TEST_CASE("A process that has the pid of one that has ended is not that one") {
    CHECK_FALSE(has_ended(self().pid, self().start));
    CHECK(has_ended(self().pid, self().start - 1));
}

TEST_CASE("A file that is no record of this process is refused") {
    const Process process{7, 100, 0, 0};
    const std::string begin = R"({"version":1,"pid":7,"start":100,"gpus":)";
    REQUIRE(parse(process, begin + R"([{"uuid":"G","held":1,"free":2}]})"));
    for (const Process &other :
         {Process{7, 101, 0, 0}, Process{8, 100, 0, 0}})  // a later process with its pid; another process
        CHECK_FALSE(parse(other, text_of(process, kRecord)));
    for (const int ended : {4'999'999, -1}) CHECK(start_of(ended) == 0);
    for (const std::string &text : std::vector<std::string>{
             "", "[", "null", "[]", "{}", begin + "[]}", begin + "{}}", begin + "[1]}",
             begin + R"([{"uuid":"G","held":-1,"free":2}]})", begin + R"([{"uuid":"G","held":1.5,"free":2}]})",
             begin + R"([{"uuid":"G","held":99999999999999999999,"free":2}]})",
             begin + R"([{"uuid":1,"held":1,"free":2}]})", begin + R"([{"held":1,"free":2}]})",
             begin + R"([{"uuid":"G","free":2}]})", begin + R"([{"uuid":"G","held":"1","free":2}]})",
             R"({"version":2,"pid":7,"start":100,"gpus":[{"uuid":"G","held":1,"free":2}]})",
             std::string(70'000, '[')}) {
        CAPTURE(text.substr(0, 80));
        CHECK_FALSE(parse(process, text));
    }
    const std::string whole = text_of(process, kRecord);
    for (std::size_t length = 0; length + 2 < whole.size(); ++length)
        CHECK_FALSE(parse(process, whole.substr(0, length)));
}

TEST_CASE("A folder that others can enter, or that is no folder, is not used") {
    const Runtime runtime;
    const TempDir elsewhere;
    const std::string wrong = GENERATE("open", "link", "file");
    CAPTURE(wrong);
    if (wrong == "open") {
        fs::create_directory(runtime.folder());
        fs::permissions(runtime.folder(), fs::perms::owner_all | fs::perms::group_read);
    } else if (wrong == "link") {
        fs::create_directory_symlink(elsewhere.path(), runtime.folder());
    } else {
        std::ofstream(runtime.folder()) << "no directory";
    }
    REQUIRE_FALSE(write(self(), kRecord));  // in the other place
    CHECK_FALSE(fs::exists(runtime.folder() / runtime.name()));
    CHECK(fs::is_empty(elsewhere.path()));
    CHECK(read(self()) == kRecord);
    remove(self());
}

TEST_CASE("A record and a claim are in a spare folder where another user has the one in /tmp, and in no more") {
    if (::getuid() != 0) return skip("only root can make another user's folder");
    const int status = in_child([] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0 ||
            ::mount("none", "/tmp", "tmpfs", 0, "mode=1777") != 0)
            return 77;
        const fs::path taken = Runtime::in_tmp(), spare = taken.native() + ".1", next = taken.native() + ".2";
        if (!fs::create_directory(taken) || ::chown(taken.c_str(), 54'321, 54'321) != 0) return 77;
        ::unsetenv("XDG_RUNTIME_DIR");
        if (write(self(), kRecord) || read(self()) != kRecord || !Claim::take(self())) return 1;
        if (!fs::exists(spare / Runtime::name()) || !fs::exists(spare / Runtime::name(".claim"))) return 2;
        remove(self());
        return read(self()) || fs::exists(next) || !fs::is_empty(taken) ? 3 : 0;
    });
    if (status == 77 << 8) return skip("this process may not mount");
    CHECK(status == 0);
    fs::remove("/run/user/0/curb/" + Runtime::name(".claim"));
}

TEST_CASE("A link or another user's file in the place of a record is not read") {
    const Runtime runtime;
    const TempDir elsewhere;
    REQUIRE_FALSE(write(self(), kRecord));
    const fs::path file = runtime.folder() / runtime.name();
    runtime.remove_from_tmp();
    const std::string other = elsewhere.write("other", text_of(self(), kRecord));
    fs::remove(file);
    fs::create_symlink(other, file);
    CHECK_FALSE(read(self()));
    REQUIRE_FALSE(write(self(), {kRecord[1]}));  // replaces the link
    CHECK(fs::is_regular_file(fs::symlink_status(file)));
    if (::getuid() == 0) {
        runtime.remove_from_tmp();
        REQUIRE(::chown(file.c_str(), 65534, 65534) == 0);
        CHECK_FALSE(read(self()));
        REQUIRE(::chown(runtime.folder().c_str(), 65534, 65534) == 0);
        REQUIRE(::chown(file.c_str(), 0, 0) == 0);
        CHECK_FALSE(read(self()));
    }
    remove(self());
    std::error_code ignored;
    fs::remove(file, ignored);
}

TEST_CASE("A process has one claim at a time; the files of dead processes are removed, and nothing else") {
    const Runtime runtime;
    {
        std::optional first = Claim::take(self());
        REQUIRE(*first);
        CHECK_THAT(error_of(Claim::take(self())), contains("another curb"));
        CHECK_THAT(error_of(Claim::take(self(), 50ms)), contains("another curb"));
        std::thread ends([&] {
            std::this_thread::sleep_for(100ms);
            first.reset();
        });
        CHECK(Claim::take(self(), 60s));
        ends.join();
    }
    CHECK(Claim::take(self()));
    for (const fs::path &folder : {runtime.folder(), runtime.in_tmp()}) fs::remove(folder / runtime.name(".claim"));
    REQUIRE_FALSE(write(self(), kRecord));
    for (const char *name :
         {"4999999-5.suspended.json", "4999999-5.claim", "4999999-5.suspended.json.new", "4999999-5.sock", "notes.txt"})
        std::ofstream(runtime.folder() / name) << "text";
    std::ofstream(runtime.folder() / (std::to_string(::getpid()) + "-1.suspended.json")) << "an earlier one's";
    remove_stale(self());
    CHECK(read(self()) == kRecord);
    CHECK(fs::exists(runtime.folder() / "4999999-5.sock"));
    CHECK(fs::exists(runtime.folder() / "notes.txt"));
    CHECK(std::distance(fs::directory_iterator(runtime.folder()), fs::directory_iterator{}) == 3);
    remove(self());
}

TEST_CASE("Root keeps records of several users in several threads at once, and stays root in all of them") {
    if (::geteuid() != 0) return skip("only root keeps records of other users");
    // Users of this process alone: memcheck_test runs this test too, and each copy deletes its folders in /tmp.
    constexpr unsigned kUsers = 4;
    const unsigned first = 10'000'000 + kUsers * static_cast<unsigned>(::getpid());
    std::atomic<unsigned> busy = kUsers, lost = 0, not_root = 0;
    std::vector<std::thread> threads;
    for (unsigned user = first; user < first + kUsers; ++user)
        threads.emplace_back([&, user] {
            const Process process{::getpid(), start_of(::getpid()), user, user};
            for (int i = 0; i < 200; ++i) {
                if (write(process, kRecord) || read(process) != kRecord) ++lost;
                if (::geteuid() != 0 || ::getegid() != 0) ++not_root;
            }
            remove(process);
            --busy;
        });
    while (busy != 0)
        if (::geteuid() != 0 || ::access("/proc/1/environ", R_OK) != 0) ++not_root;
    for (std::thread &thread : threads) thread.join();
    CHECK(lost == 0);
    CHECK(not_root == 0);
    for (unsigned user = first; user < first + kUsers; ++user) {
        const std::string folder = "/tmp/curb-" + std::to_string(user);
        struct stat status {};
        REQUIRE(::stat(folder.c_str(), &status) == 0);
        CHECK((status.st_uid == user && status.st_gid == user));
        fs::remove(folder);
    }
}
