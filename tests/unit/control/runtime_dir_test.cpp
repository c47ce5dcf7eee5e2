// The folders of control sockets: which one a process takes, and which ones are believed.
#include "control/runtime_dir.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "catch.hpp"
#include "control/descriptor.hpp"
#include "in_child.hpp"
#include "local_socket.hpp"
#include "temp_dir.hpp"

using namespace curb::control;
namespace fs = std::filesystem;

namespace {

// A machine of the test's own.
struct Machine {
    TempDir root;
    Places places{(root / "xdg").string(), (root / "run").string(), (root / "shared").string(),
                  (root / "tmp").string()};
    Machine() {
        for (const char *name : {"xdg", "run", "tmp"}) fs::create_directory(root / name);
        ::chmod((root / "xdg").c_str(), 0700);
        ::chmod((root / "tmp").c_str(), 01777);
    }
    [[nodiscard]] std::string in_xdg() const { return places.xdg + "/curb"; }
    [[nodiscard]] std::string in_tmp() const { return places.tmp + "/curb-" + std::to_string(::geteuid()); }
};

std::string folder_of(const Machine &machine) {
    const auto folder = runtime_directory(machine.places, ::geteuid());
    return folder ? folder->path : "none: " + folder.error();
}

mode_t mode_of(const std::string &path) {
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

// Makes a socket that listens or does not.
Descriptor socket_at(const std::string &path, bool listening) {
    Descriptor out(bound_socket(path));
    REQUIRE(out);
    if (listening) REQUIRE(::listen(out.number(), 1) == 0);
    return out;
}

}  // namespace

TEST_CASE("No descriptor of curb's is 0, 1 or 2") {
    const int kept = ::fcntl(0, F_DUPFD_CLOEXEC, 100);
    ::close(0);
    const int opened = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int moved = above_standard(opened);
    const bool is_free = ::fcntl(0, F_GETFD) < 0;
    if (kept >= 0) ::dup2(kept, 0);
    ::close(kept);
    CHECK(opened == 0);
    CHECK(moved >= 3);
    CHECK(is_free);
    CHECK(above_standard(moved) == moved);
    ::close(moved);
}

TEST_CASE("The folder is XDG_RUNTIME_DIR/curb, closed to others whatever the umask, and a wrong mode is repaired") {
    const Machine machine;
    const mode_t before = ::umask(0777);
    const std::string made = folder_of(machine);
    ::umask(before);
    CHECK(made == machine.in_xdg());
    CHECK(mode_of(machine.in_xdg()) == 0700);
    REQUIRE(::chmod(machine.in_xdg().c_str(), 0) == 0);
    CHECK(folder_of(machine) == machine.in_xdg());
    CHECK(mode_of(machine.in_xdg()) == 0700);
}

TEST_CASE("If XDG_RUNTIME_DIR cannot be used, the folder is /tmp/curb-UID") {
    Machine machine;
    const std::string how = GENERATE("unset", "relative", "missing", "a file", "open to others", "too long");
    CAPTURE(how);
    if (how == "unset") machine.places.xdg.clear();
    if (how == "relative") machine.places.xdg = ".";
    if (how == "missing") fs::remove(machine.places.xdg);
    if (how == "a file") machine.places.xdg = machine.root.write("file", "");
    if (how == "open to others") ::chmod(machine.places.xdg.c_str(), 0777);
    if (how == "too long") {
        machine.places.xdg += "/" + std::string(60, 'x');
        fs::create_directory(machine.places.xdg);
        ::chmod(machine.places.xdg.c_str(), 0700);
    }
    CHECK(folder_of(machine) == machine.in_tmp());
    CHECK(mode_of(machine.in_tmp()) == 0700);
}

TEST_CASE("Where root has made /run/curb, the folder is in it unless XDG_RUNTIME_DIR can be used") {
    Machine machine;
    fs::create_directory(machine.places.run);
    CHECK(folder_of(machine) == machine.in_xdg());
    machine.places.xdg.clear();
    const std::string own = machine.places.run + "/" + std::to_string(::geteuid());
    CHECK(folder_of(machine) == own);
    CHECK(mode_of(own) == 0700);
    // Others could rename what is in it.
    ::chmod(machine.places.run.c_str(), 0777);
    CHECK(folder_of(machine) == machine.in_tmp());
    CHECK_THAT(passed_over(machine.places, ::geteuid()), contains("chmod +t " + machine.places.run));
}

TEST_CASE("A folder that is a link, a file, or open to others is passed over for a spare, and its remedy is named") {
    Machine machine;
    machine.places.xdg.clear();
    const std::string folder = machine.in_tmp(), spare = folder + ".1";
    const auto passes_over = [&](const std::string &why) {
        CHECK(folder_of(machine) == spare);
        CHECK(mode_of(spare) == 0700);
        CHECK(passed_over(machine.places, ::geteuid()) == folder + why);
    };
    fs::create_directory_symlink(machine.root / "run", folder);
    passes_over(": it is a symbolic link; remove it");
    fs::remove(folder);
    machine.root.write("tmp/" + fs::path(folder).filename().string(), "");
    passes_over(": it is not a folder; remove it");
    fs::remove(folder);
    fs::create_directory(folder);
    for (const mode_t mode : {0755, 0710, 0701, 0720, 02700}) {
        ::chmod(folder.c_str(), mode);
        passes_over(": it is not closed to others; chmod 700 " + folder);
    }
    ::chmod(folder.c_str(), 0700);
    CHECK(folder_of(machine) == folder);
    CHECK(passed_over(machine.places, ::geteuid()).empty());
}

TEST_CASE("Without a usable folder, the error names every place that was tried") {
    Machine machine;
    machine.places.xdg = "relative";
    ::chmod(machine.places.tmp.c_str(), 0777);
    CHECK_THAT(folder_of(machine), contains("others may rename what is in it; chmod +t " + machine.places.tmp));
    fs::remove(machine.places.tmp);
    CHECK(folder_of(machine) == "none: relative: it is not an absolute path; " + machine.places.tmp +
                                    ": No such file or directory; nor can " + machine.in_tmp() + ".1 to .9");
}

TEST_CASE("Folders that another user has made first are passed over, 1,000 of them as one") {
    if (::geteuid() != 0) return skip("only root can make another user's folder");
    Machine machine;
    const auto take = [](const std::string &path) {
        fs::create_directory(path);
        fs::permissions(path, fs::perms::owner_all);
        REQUIRE(::chown(path.c_str(), 54'321, 54'321) == 0);
    };
    // XDG_RUNTIME_DIR as sudo leaves it: root must not put anything there.
    take(machine.places.xdg);
    fs::create_directory(machine.places.run);
    take(machine.places.run + "/0");
    take(machine.in_tmp());
    for (int i = 1; i < 1000; ++i)
        if (i != 9) take(machine.in_tmp() + "." + std::to_string(i));
    CHECK(folder_of(machine) == machine.in_tmp() + ".9");
    CHECK(fs::is_empty(machine.places.xdg));
    CHECK_THAT(passed_over(machine.places, 0),
               contains(machine.in_tmp() +
                        ": it belongs to user 54321, not to user 0, and only that user or root can remove it"));
    // Nor are names read from another user's folder.
    machine.root.write("tmp/curb-0/7-7.sock", "");
    CHECK(sockets_in({machine.in_tmp(), 0}).empty());
    CHECK(sockets_in({machine.in_tmp(), 54'321}).size() == 1);
    REQUIRE(::chown((machine.in_tmp() + ".9").c_str(), 54'321, 54'321) == 0);
    CHECK_THAT(folder_of(machine), contains("; nor can " + machine.in_tmp() + ".1 to .9"));
}

TEST_CASE("A user's own folders are searched; for root, those of every user") {
    if (::geteuid() != 0) return skip("only root can make other users' folders");
    const Machine machine;
    for (const char *name : {"run/1000", "run/x", "shared", "shared/1000", "shared/1001", "shared/public",
                             "tmp/curb-1001", "tmp/curb-1001.4", "tmp/curb-1001.0", "tmp/curb-1001.44", "tmp/curb-1002",
                             "tmp/curb-1002.1", "tmp/curb-x", "tmp/curb-.1", "tmp/curb--1", "tmp/other"})
        fs::create_directories(machine.root / name);
    for (const char *name : {"run/1000", "shared/1000", "shared/1001", "tmp/curb-1002", "tmp/curb-1002.1"})
        REQUIRE(::chown((machine.root / name).c_str(), 1000, 1000) == 0);
    for (const char *name : {"tmp/curb-1001", "tmp/curb-1001.4", "tmp/curb-1001.0", "tmp/curb-1001.44"})
        REQUIRE(::chown((machine.root / name).c_str(), 1001, 1001) == 0);
    const std::string run = machine.places.run_user, shared = machine.places.run, tmp = machine.places.tmp;
    const auto all_of = [&](uid_t user) {
        const std::string number = std::to_string(user);
        std::vector<Folder> out{{machine.in_xdg(), user},
                                {run + "/" + number + "/curb", user},
                                {shared + "/" + number, user},
                                {tmp + "/curb-" + number, user}};
        for (const char spare : std::string("123456789")) out.push_back({tmp + "/curb-" + number + "." + spare, user});
        return out;
    };
    CHECK(folders(machine.places, 7) == all_of(7));
    std::vector<Folder> expected = all_of(0), found = folders(machine.places, 0);
    for (const Folder &other : {Folder{run + "/1000/curb", 1000}, Folder{shared + "/1000", 1000},
                                Folder{tmp + "/curb-1001", 1001}, Folder{tmp + "/curb-1001.4", 1001}})
        expected.push_back(other);
    const auto by_path = [](const Folder &one, const Folder &other) { return one.path < other.path; };
    std::sort(expected.begin(), expected.end(), by_path);
    std::sort(found.begin(), found.end(), by_path);
    CHECK(found == expected);
}

TEST_CASE("Root does not look into a file system that a user has mounted, where it could wait for ever") {
    const Descriptor fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (::geteuid() != 0 || !fuse) return skip("only root can do this, with /dev/fuse");
    const Machine machine;
    const std::string tmp = machine.places.tmp + "/curb-54399", run = machine.places.run_user + "/54399";
    const std::string options = "allow_other,rootmode=40700,user_id=54399,group_id=54399,fd=";
    const std::string on = GENERATE(true, false) ? tmp : run;
    constexpr int kChroot = 77 << 8;  // as wait() has it
    const int status = in_child([&] {
        for (const std::string &folder : {tmp, run})
            if (::mkdir(folder.c_str(), 0700) != 0 || ::chown(folder.c_str(), 54'399, 54'399) != 0) return 97;
        // A file system in user space whose server answers no request.
        if (::unshare(CLONE_NEWNS) != 0) return 97;
        if (::mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0) return errno == EINVAL ? 77 : 97;
        if (::mount("none", on.c_str(), "fuse", 0, (options + std::to_string(fuse.number())).c_str()) != 0) return 97;
        ::alarm(20);
        const auto found = folders(machine.places, 0);
        const auto is_there = [&](const std::string &path) {
            return std::find(found.begin(), found.end(), Folder{path, 54'399}) != found.end();
        };
        return is_there(tmp) == (on == run) && is_there(run + "/curb") == (on == tmp) ? 0 : 1;
    });
    if (status == kChroot) return skip("the root is no mount point, as in a chroot");
    CHECK(status == 0);
}

TEST_CASE("A process is named by its pid and its start, whatever its name in /proc is") {
    const auto self = name_of(::getpid());
    REQUIRE(self);
    CHECK(self->pid == ::getpid());
    CHECK(self->start > 0);
    CHECK(parse_socket_name(socket_name(*self)) == self);
    CHECK(!name_of(2'147'483'647));
    const pid_t child = ::fork();
    if (child == 0) {
        ::execl("/bin/sh", ") 1 2 (", "-c", "read end", nullptr);
        ::_exit(98);
    }
    const auto childs = name_of(child);
    REQUIRE(childs);
    CHECK(childs->start >= self->start);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

TEST_CASE("Names of other files, and of unfinished sockets, are ignored") {
    const std::string name = socket_name({4711, 123456});
    CHECK(name == "4711-123456.sock");
    CHECK(parse_socket_name(name) == ProcessName{4711, 123456});
    CHECK_FALSE(parse_socket_name(unfinished(name)));
    for (const char *other : {"", ".", "..", ".sock", "-.sock", "4711.sock", "4711-.sock", "-1-2.sock", "0-1.sock",
                              "4711--1.sock", "4711-1.suspended.json", "4711-1", "04711-1.sock", "4711-01.sock",
                              "99999999999-1.sock", "1-99999999999999999999999.sock", "a-b.sock", "4711-1.sock "})
        CHECK(!parse_socket_name(other));
}

TEST_CASE("Sockets without a listener are deleted, and nothing else") {
    const Machine machine;
    const Folder folder{folder_of(machine), ::geteuid()};
    const auto path = [&](const char *name) { return folder.path + "/" + name; };
    const Descriptor live = socket_at(path("1-1.sock"), true);
    const Descriptor not_ready = socket_at(path("2-2.sock.new"), false);
    socket_at(path("3-3.sock"), true);
    socket_at(path("other.sock"), true);
    machine.root.write("xdg/curb/4-4.sock", "a file");
    machine.root.write("xdg/curb/5-5.suspended.json", "{}");
    fs::create_symlink("1-1.sock", path("6-6.sock"));
    remove_stale(folder);
    std::vector<std::string> left;
    for (const auto &entry : fs::directory_iterator(folder.path)) left.push_back(entry.path().filename().string());
    std::sort(left.begin(), left.end());
    CHECK(left == std::vector<std::string>{"1-1.sock", "2-2.sock.new", "4-4.sock", "5-5.suspended.json", "6-6.sock",
                                           "other.sock"});
    // An unfinished socket is deleted after a while.
    const timespec old[2] = {{1, 0}, {1, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path("2-2.sock.new").c_str(), old, 0) == 0);
    remove_stale(folder);
    CHECK(!fs::exists(path("2-2.sock.new")));
}

TEST_CASE("A starting process connects to no socket of a live process, and to 32 others at most") {
    const Machine machine;
    const Folder folder{folder_of(machine), ::geteuid()};
    const auto sockets = [&] { return std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()); };
    // A socket that refuses, under the name of this process: if it were tried, it would be deleted.
    const std::string own = folder.path + "/" + socket_name(*name_of(::getpid()));
    socket_at(own, true);
    for (int i = 0; i < 10; ++i) remove_stale(folder);
    CHECK(fs::exists(own));
    // A socket of an earlier process with the same pid is deleted.
    const std::string earlier = folder.path + "/" + socket_name({::getpid(), 1});
    socket_at(earlier, true);
    remove_stale(folder);
    CHECK(!fs::exists(earlier));
    for (int i = 0; i < 99; ++i)
        socket_at(folder.path + "/" + socket_name({1 << 30, 1000ULL + static_cast<unsigned>(i)}), true);
    CHECK(sockets() == 100);
    remove_stale(folder);
    CHECK(sockets() >= 100 - 32);
    for (int i = 0; i < 1000 && sockets() > 1; ++i) remove_stale(folder);
    CHECK(sockets() == 1);
}

TEST_CASE("A bounded number of a folder's names is read, and nothing is deleted through a link in its place") {
    const Machine machine;
    const Folder folder{folder_of(machine), ::geteuid()};
    socket_at(folder.path + "/1-1.sock", false);
    for (std::size_t i = 2; i <= kMostNames + 10; ++i)
        fs::create_hard_link(folder.path + "/1-1.sock", folder.path + "/" + std::to_string(i) + "-1.sock");
    CHECK(sockets_in(folder).size() == kMostNames);
    fs::rename(folder.path, machine.root / "elsewhere");
    fs::create_directory_symlink(machine.root / "elsewhere", folder.path);
    remove_stale(folder);
    remove_socket(folder, "1-1.sock");
    CHECK(sockets_in(folder).empty());
    CHECK(fs::exists(machine.root / "elsewhere/1-1.sock"));
}

TEST_CASE("A descriptor is neither taken for ours nor closed once its number is another's") {
    int number = -1, theirs = -1;
    {
        Descriptor ours(::socket(AF_UNIX, SOCK_STREAM, 0));
        CHECK(ours.ours());
        number = ours.number();
        theirs = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        REQUIRE(::dup2(theirs, number) == number);
        CHECK(!ours.ours());
    }
    CHECK(::fcntl(number, F_GETFD) != -1);
    for (const int fd : {theirs, number}) ::close(fd);
    { const Descriptor ours(::socket(AF_UNIX, SOCK_STREAM, 0)); }
    CHECK(::fcntl(number, F_GETFD) == -1);
}

TEST_CASE("passed_over explains why another folder than that in XDG_RUNTIME_DIR is used") {
    Machine machine;
    CHECK(passed_over(machine.places, ::geteuid()).empty());
    CHECK(mode_of(machine.in_xdg()) == 0700);
    ::chmod(machine.in_xdg().c_str(), 0755);
    CHECK_THAT(passed_over(machine.places, ::geteuid()), contains(machine.in_xdg()));
    fs::remove_all(machine.places.xdg);
    CHECK_THAT(passed_over(machine.places, ::geteuid()), contains(machine.places.xdg));
    machine.places.xdg.clear();
    CHECK(passed_over(machine.places, ::geteuid()).empty());
}
