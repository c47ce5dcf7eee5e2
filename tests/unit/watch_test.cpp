// Real files, written in each of the ways in which people and tools write them. The waits are deadlines, not pauses.
#include "config/watch.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "temp_dir.hpp"

using curb::config::Watch;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr auto kInForce = 1s;  // what the design promises

// A watch in a thread of its own, as in curb's worker.
class Watching {
  public:
    Watching(const std::string &path, const std::string &known) : watch_(path, known) { start(); }
    ~Watching() {
        stop();
        ::close(stop_);
    }
    Watching(const Watching &) = delete;
    Watching &operator=(const Watching &) = delete;

    // Whether this text is the last one returned within the time.
    bool sees(const std::string &text, std::chrono::milliseconds within = kInForce) {
        std::unique_lock lock(mutex_);
        return news_.wait_for(lock, within, [&] { return !seen_.empty() && seen_.back() == text; });
    }
    std::vector<std::string> seen() {
        const std::lock_guard lock(mutex_);
        return seen_;
    }
    void stop() {
        ::eventfd_write(stop_, 1);
        if (thread_.joinable()) thread_.join();
    }
    // Processor time that the watching has taken.
    std::chrono::nanoseconds busy() {
        clockid_t clock{};
        timespec time{};
        REQUIRE(::pthread_getcpuclockid(thread_.native_handle(), &clock) == 0);
        REQUIRE(::clock_gettime(clock, &time) == 0);
        return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    }

  private:
    void start() {
        thread_ = std::thread([this] {
            while (auto text = watch_.next(stop_)) {
                const std::lock_guard lock(mutex_);
                seen_.push_back(std::move(*text));
                news_.notify_all();
            }
        });
    }

    Watch watch_;
    int stop_ = ::eventfd(0, EFD_CLOEXEC);
    std::mutex mutex_;
    std::condition_variable news_;
    std::vector<std::string> seen_;
    std::thread thread_;
};

// The descriptors of this process that are inotify's.
std::vector<int> inotify_fds() {
    std::vector<int> fds;
    for (const auto &entry : fs::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        if (fs::read_symlink(entry, error) == "anon_inode:inotify") fds.push_back(std::stoi(entry.path().filename()));
    }
    return fds;
}

void rename_over(const TempDir &dir, const std::string &name, const std::string &text) {
    fs::rename(dir.write("new~", text), dir / name);
}

}  // namespace

TEST_CASE("A file written in place is seen") {
    const TempDir dir;
    Watching watching(dir.write("p.json", "one"), "one");
    dir.write("p.json", "two");
    CHECK(watching.sees("two"));
    dir.write("p.json", "a third, longer text");
    CHECK(watching.sees("a third, longer text"));
}

TEST_CASE("A file that is truncated and written slowly is seen whole") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "one");
    Watching watching(path, "one");
    const std::string text(40, 'x');
    {
        std::ofstream out(path, std::ios::trunc);
        for (const char c : text) {
            out << c << std::flush;
            std::this_thread::sleep_for(10ms);  // the slowness itself
        }
    }
    CHECK(watching.sees(text));
}

TEST_CASE("A file whose writer never closes it is seen") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "one");
    Watching watching(path, "one");
    std::fstream out(path, std::ios::in | std::ios::out);
    out << "two" << std::flush;
    CHECK(watching.sees("two"));
}

TEST_CASE("A file that another is renamed over is seen, again and again") {
    const TempDir dir;
    Watching watching(dir.write("p.json", "0"), "0");
    for (int i = 1; i <= 5; ++i) {
        rename_over(dir, "p.json", std::to_string(i));
        CHECK(watching.sees(std::to_string(i)));
    }
}

TEST_CASE("A config map's swap of its data directory is seen, again and again") {
    // As Kubernetes does it: p.json -> ..data/p.json, ..data -> ..1, and ..data is renamed over.
    const TempDir dir;
    dir.write("..0/p.json", "0");
    fs::create_symlink("..0", dir / "..data");
    fs::create_symlink("..data/p.json", dir / "p.json");
    Watching watching((dir / "p.json").string(), "0");
    for (int i = 1; i <= 3; ++i) {
        const std::string next = std::to_string(i);
        dir.write(".." + next + "/p.json", next);
        fs::create_symlink(".." + next, dir / "..data_tmp");
        fs::rename(dir / "..data_tmp", dir / "..data");
        fs::remove_all(dir / (".." + std::to_string(i - 1)));
        CHECK(watching.sees(next));
    }
}

TEST_CASE("A link's target in another directory is watched like the file itself") {
    const TempDir dir;
    dir.write("far/p.json", "one");
    fs::create_directory(dir / "near");
    fs::create_symlink("../far/p.json", dir / "near/p.json");
    Watching watching((dir / "near/p.json").string(), "one");
    dir.write("far/p.json", "two");
    CHECK(watching.sees("two"));
    rename_over(dir, "far/p.json", "three");
    CHECK(watching.sees("three"));
    dir.write("elsewhere/p.json", "four");
    fs::remove(dir / "near/p.json");
    fs::create_symlink("../elsewhere/p.json", dir / "near/p.json");
    CHECK(watching.sees("four"));
    dir.write("elsewhere/p.json", "five");
    CHECK(watching.sees("five"));
}

TEST_CASE("A link in the middle of the path, in a directory that nobody watches, may change its target") {
    const TempDir dir;
    dir.write("a/x/p.json", "one");
    dir.write("b/x/p.json", "two");
    fs::create_symlink("a", dir / "current");
    Watching watching((dir / "current/x/p.json").string(), "one");
    fs::create_symlink("b", dir / "new");
    fs::rename(dir / "new", dir / "current");
    CHECK(watching.sees("two"));
}

TEST_CASE("A file that is deleted keeps its text until it is made again") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "one");
    Watching watching(path, "one");
    fs::remove(path);
    dir.write("p.json", "two");
    CHECK(watching.sees("two"));
    CHECK(watching.seen().size() == 1);
}

TEST_CASE("A directory that is deleted and made again is found again") {
    const TempDir dir;
    const std::string path = dir.write("job/p.json", "one");
    Watching watching(path, "one");
    fs::remove_all(dir / "job");
    dir.write("job/p.json", "two");
    CHECK(watching.sees("two"));
    fs::rename(dir / "job", dir / "old");
    dir.write("job/p.json", "three");
    CHECK(watching.sees("three"));
}

TEST_CASE("A file that is not there yet is seen when it comes") {
    const TempDir dir;
    Watching watching((dir / "job/p.json").string(), "");
    dir.write("job/p.json", "one");
    CHECK(watching.sees("one"));
}

TEST_CASE("A text of the same length and time is still another text") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "8GiB");
    const auto time = fs::last_write_time(path);
    Watching watching(path, "8GiB");
    dir.write("p.json", "9GiB");
    fs::last_write_time(path, time);
    CHECK(watching.sees("9GiB"));
}

TEST_CASE("A change between the caller's reading and the watching is not missed") {
    const TempDir dir;
    Watching watching(dir.write("p.json", "two"), "one");
    CHECK(watching.sees("two"));
}

TEST_CASE("Writing the same text again is no change") {
    const TempDir dir;
    Watching watching(dir.write("p.json", "one"), "one");
    for (int i = 0; i < 20; ++i) rename_over(dir, "p.json", "one");
    rename_over(dir, "p.json", "two");
    CHECK(watching.sees("two"));
    CHECK(watching.seen() == std::vector<std::string>{"two"});
}

TEST_CASE("An unreadable file is no change, and a readable one is again") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "one");
    Watching watching(path, "one");
    fs::remove(path);
    fs::create_directory(path);  // whoever runs this test, a directory cannot be read
    dir.write("other", "noise");
    fs::remove(path);
    dir.write("p.json", "two");
    CHECK(watching.sees("two"));
    CHECK(watching.seen() == std::vector<std::string>{"two"});
}

TEST_CASE("A busy directory costs little and hides no change") {
    const TempDir dir;
    Watching watching(dir.write("p.json", "0"), "0");
    std::atomic<bool> done = false;
    std::thread noise([&] {
        while (!done) dir.write("log", "line\n");
    });
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 1; i <= 6; ++i) {
        rename_over(dir, "p.json", std::to_string(i));
        CHECK(watching.sees(std::to_string(i)));
    }
    const auto end = begin + 1s;
    while (std::chrono::steady_clock::now() < end) dir.write("log", "line\n");
    done = true;
    noise.join();
    CHECK(watching.busy() < (std::chrono::steady_clock::now() - begin) / 50);
}

TEST_CASE("Without inotify the file is still seen in time") {
    const TempDir dir;
    const std::string path = dir.write("p.json", "one");
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int stop = ::eventfd(0, EFD_CLOEXEC);
    const std::size_t watches = inotify_fds().size();
    rlimit none = before;
    none.rlim_cur = 0;  // no further descriptor can be made
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    Watch watch(path, "one");
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE(inotify_fds().size() == watches);
    std::optional<std::string> text;
    dir.write("p.json", "two");
    const auto begin = std::chrono::steady_clock::now();
    text = watch.next(stop);
    CHECK(std::chrono::steady_clock::now() - begin < kInForce);
    CHECK(text == "two");
    ::close(stop);
}

TEST_CASE("A descriptor that the program closes behind our back costs nothing but promptness", "[foreign-close]") {
    const TempDir dir;
    const std::vector<int> before = inotify_fds();
    Watching watching(dir.write("p.json", "one"), "one");
    dir.write("p.json", "two");
    REQUIRE(watching.sees("two"));
    REQUIRE(inotify_fds().size() == before.size() + 1);
    ::close(inotify_fds().back());
    dir.write("p.json", "three");
    CHECK(watching.sees("three"));
    rename_over(dir, "p.json", "four");
    CHECK(watching.sees("four"));
    CHECK(watching.busy() < 200ms);
}

TEST_CASE("A descriptor that the program opens under our number is neither read nor closed") {
    const TempDir dir;
    int pipe[2];
    REQUIRE(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) == 0);
    REQUIRE(::write(pipe[1], "theirs", 6) == 6);
    int number = -1;
    {
        Watching watching(dir.write("p.json", "one"), "one");
        dir.write("p.json", "two");
        REQUIRE(watching.sees("two"));
        REQUIRE(inotify_fds().size() == 1);
        number = inotify_fds().front();
        REQUIRE(::dup2(pipe[0], number) == number);
        dir.write("p.json", "three");
        CHECK(watching.sees("three"));
        CHECK(watching.busy() < 200ms);
    }
    char text[7] = {};
    CHECK(::read(number, text, 6) == 6);
    CHECK(std::string(text) == "theirs");
    for (const int fd : {pipe[0], pipe[1], number}) ::close(fd);
}

TEST_CASE("A watch that ends does not close what the program opened under our number meanwhile") {
    const TempDir dir;
    const int theirs = ::eventfd(0, EFD_CLOEXEC);
    int number = -1;
    {
        const Watch watch(dir.write("p.json", "one"), "one");
        REQUIRE(inotify_fds().size() == 1);
        number = inotify_fds().front();
        REQUIRE(::dup2(theirs, number) == number);
    }
    CHECK(::fcntl(number, F_GETFD) != -1);
    ::close(number);
    ::close(theirs);
}

TEST_CASE("A watch stops when it is told to, even before it begins") {
    const TempDir dir;
    Watch watch(dir.write("p.json", "one"), "one");
    const int stop = ::eventfd(1, EFD_CLOEXEC);
    CHECK(watch.next(stop) == std::nullopt);
    CHECK(watch.next(stop) == std::nullopt);
    ::close(stop);
}

TEST_CASE("A watch stops when the descriptor that would tell it to is gone") {
    const TempDir dir;
    Watch watch(dir.write("p.json", "one"), "one");
    const int stop = ::eventfd(0, EFD_CLOEXEC);
    ::close(stop);
    CHECK(watch.next(stop) == std::nullopt);
}

TEST_CASE("A watch leaves no descriptor behind") {
    const TempDir dir;
    const std::size_t before = inotify_fds().size();
    { Watching watching(dir.write("p.json", "one"), "one"); }
    CHECK(inotify_fds().size() == before);
}
