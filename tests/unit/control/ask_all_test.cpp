// control::ask_all asks all capped processes at once. Here they are stand-ins, each at its own control socket; some
// behave as badly as processes can.
#include <linux/sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "catch.hpp"
#include "connect.hpp"
#include "control/client.hpp"
#include "in_child.hpp"
#include "stand_in.hpp"

using namespace curb;
using namespace stand_in;
using namespace std::chrono_literals;
using control::Failure;
using control::Status;
using control::StatusRequest;
using Clock = std::chrono::steady_clock;

namespace {

struct Answers {
    std::map<int, control::Reply> replies;
    Clock::duration took{};
    [[nodiscard]] std::string failure(int pid) const {
        const auto found = replies.find(pid);
        if (found == replies.end()) return "not asked";
        const auto *failure = std::get_if<Failure>(&found->second);
        return failure ? failure->message : "answered";
    }
};
Answers ask_all(std::chrono::milliseconds patience) {
    Answers out;
    const auto begin = Clock::now();
    auto answers = control::ask_all(StatusRequest(), patience);
    out.took = Clock::now() - begin;
    CHECK(std::is_sorted(answers.begin(), answers.end(), [](const auto &a, const auto &b) { return a.pid < b.pid; }));
    for (control::Answer &one : answers) CHECK(out.replies.emplace(one.pid, std::move(one.reply)).second);
    return out;
}

// Processes of other tests may run beside this one, and root asks them too: the cases judge only their own.
constexpr auto kEnough = 2s;  // enough for processes that answer
constexpr auto kSlack = 20s;  // for a busy machine

}  // namespace

TEST_CASE("all processes are asked at the same time, and the answers come in the order of their pids") {
    const Runtime runtime;
    std::deque<StandIn> processes;
    for (int i = 0; i < 20; ++i)
        processes.emplace_back(runtime, [](int listening) {
            const int client = asked(listening);
            ::sleep(1);
            say(client, status_line());
        });
    const Answers answers = ask_all(20s);
    for (const StandIn &one : processes) {
        CHECK(answers.failure(one.pid()) == "answered");
        CHECK(std::get<Status>(answers.replies.at(one.pid())).pid == one.pid());
    }
    CHECK(answers.took < 15s);  // one after the other it would be 20 s
    const auto named = control::processes();
    for (const StandIn &one : processes) CHECK(std::binary_search(named.begin(), named.end(), one.pid()));
}

TEST_CASE("each process that does not answer gets its own reason, and no caller waits longer than its patience") {
    const Runtime runtime;
    const StandIn good(runtime, answers);
    const BadOnes bad(runtime);
    const StandIn slow(runtime, [](int listening) {
        for (const int client = asked(listening);; ::usleep(500)) say(client, "x");
    });
    const StandIn other(runtime, [](int listening) {
        say(asked(listening), control::text(control::Reply(Failure{"of its own accord"})) + "\n");
    });

    const Answers answers = ask_all(kEnough);
    CHECK(answers.took < kEnough + kSlack);
    CHECK(answers.failure(good.pid()) == "answered");
    bad.check([&](int pid) { return answers.failure(pid); }, "2 s");
    CHECK_THAT(answers.failure(slow.pid()), contains(slow.text() + " has not answered for 2 s"));
    CHECK(answers.failure(other.pid()) == "of its own accord");
}

TEST_CASE("a process is found in each folder that it may have chosen, whichever this one would choose now") {
    const Runtime runtime;
    const control::Places places = control::places();
    for (const control::Folder &folder : control::folders_of(places, ::geteuid())) {
        if (folder.path.starts_with(places.run_user) || folder.path.starts_with(places.run)) continue;  // root's own
        CAPTURE(folder.path);
        const bool is_new = ::mkdir(folder.path.c_str(), 0700) == 0;
        {
            int socket = -1;
            const Child process(
                [&] {
                    socket = listening(folder.path + "/" + control::socket_name(*control::name_of(::getpid())));
                    if (socket < 0) ::_exit(1);
                },
                [&] { answers(socket); });
            CHECK(std::holds_alternative<Status>(control::ask(process.pid(), StatusRequest(), kEnough)));
            const std::vector<int> all = control::processes();
            CHECK(std::find(all.begin(), all.end(), process.pid()) != all.end());
        }
        control::remove_stale(folder);
        if (is_new) ::rmdir(folder.path.c_str());
    }
}

TEST_CASE("a crowd of other processes takes no time from those that are asked") {
    const Runtime runtime;
    std::deque<Child> crowd(2'000);
    auto search = 1h + 0us;  // the shortest one
    for (int i = 0; i < 5; ++i) {
        const auto begin = Clock::now();
        control::processes();
        search = std::min(search, std::chrono::floor<std::chrono::microseconds>(Clock::now() - begin));
    }
    const StandIn good(runtime, [&](int listening) {
        for (;;) {
            const int client = asked(listening);
            ::usleep(static_cast<useconds_t>(search.count() / 8));
            say(client, status_line());
        }
    });
    // Half of the search is enough for it, unless this machine is busy just now.
    const auto patience = std::chrono::ceil<std::chrono::milliseconds>(search / 2);
    bool answered = false;
    for (int i = 0; i < 10 && !answered; ++i) answered = ask_all(patience).failure(good.pid()) == "answered";
    CHECK(answered);
}

TEST_CASE("a process that accepts no connection at first is asked as soon as it does") {
    const Runtime runtime;
    const StandIn busy(runtime, [](int listening) {
        ::usleep(300'000);
        for (;;) {  // the callers before us, which send nothing, and then us
            const int client = client_of(listening);
            char byte = 0;
            if (::recv(client, &byte, 1, 0) == 1) say(client, status_line());
        }
    });
    const auto callers = BadOnes::callers_of(socket_of(runtime, busy.pid()));
    for (const auto &one : callers) ::shutdown(one.number(), SHUT_WR);
    const Answers answers = ask_all(20s);
    CHECK(answers.failure(busy.pid()) == "answered");
    CHECK(answers.took >= 100ms);
}

TEST_CASE("sockets of dead processes are deleted while the living are asked, for as long as asking takes") {
    const Runtime runtime;
    const StandIn good(runtime, answers);
    const fs::path dead = runtime.folder() / "1-1.sock";
    ::close(listening(dead));
    for (int i = 2; i <= 10'000; ++i) fs::create_hard_link(dead, runtime.folder() / (std::to_string(i) + "-1.sock"));
    REQUIRE(runtime.sockets() == 10'001);
    ask_all(1ms);
    CHECK(runtime.sockets() > 5'000);
    const Answers answers = ask_all(30s);
    CHECK(runtime.sockets() == 1);
    CHECK(answers.failure(good.pid()) == "answered");
    CHECK(answers.replies.count(1) == 0);
    CHECK(answers.took < kSlack);
}

TEST_CASE("a socket of another process with the same pid is not asked") {
    const Runtime runtime;
    const StandIn good(runtime, answers), other(runtime, answers);
    // As if the pid of `good` had been that of `other` once, or were in another namespace.
    fs::rename(socket_of(runtime, other.pid()), runtime.folder() / (std::to_string(good.pid()) + "-1.sock"));
    const Answers answers = ask_all(10s);
    CHECK(std::get<Status>(answers.replies.at(good.pid())).pid == good.pid());
    CHECK(answers.failure(other.pid()) == "not asked");
    CHECK(std::get<Status>(control::ask(good.pid(), StatusRequest(), 10s)).pid == good.pid());
}

TEST_CASE("a process of another user in the user's folder is not believed") {
    if (::geteuid() != 0) return skip("only root can give another user's process a socket here");
    const Runtime runtime;
    constexpr uid_t kOwner = 54'331, kOther = 54'332;
    // kOther's process listens in kOwner's folder: root has let it in.
    REQUIRE(::chown(runtime.folder().c_str(), kOwner, kOwner) == 0);
    fs::permissions(runtime.folder(), fs::perms::all);
    REQUIRE(::chown(runtime.path().c_str(), kOwner, kOwner) == 0);
    fs::permissions(runtime.path(), fs::perms::all);
    const StandIn foreign(runtime, answers, [] {
        if (::setuid(kOther) != 0) ::_exit(97);
    });
    ::chmod(socket_of(runtime, foreign.pid()).c_str(), 0777);
    fs::permissions(runtime.folder(), fs::perms::owner_all);
    CHECK(in_child([&] {
              if (::setgid(kOwner) != 0 || ::setuid(kOwner) != 0) return 97;
              for (const control::Answer &one : control::ask_all(StatusRequest(), 5s))
                  if (const auto *failure = std::get_if<Failure>(&one.reply); failure && one.pid == foreign.pid())
                      return failure->message.find("belongs to user 54332") != std::string::npos ? 0 : 2;
              return 1;
          }) == 0);
}

namespace {

// Starts a child with this pid, which calls `then` and waits to be killed. Returns -1 if no pid can be chosen here.
pid_t child_under(pid_t pid, const std::function<void()> &then) {
    clone_args how{};
    how.exit_signal = SIGCHLD;
    how.set_tid = reinterpret_cast<std::uintptr_t>(&pid);
    how.set_tid_size = 1;
    const auto child = static_cast<pid_t>(::syscall(SYS_clone3, &how, sizeof how));
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        then();
        for (;;) ::pause();
    }
    return child;
}

// Makes a user's /tmp/curb-UID, and deletes it at its end.
class FolderOf {
  public:
    explicit FolderOf(uid_t user) : path_("/tmp/curb-" + std::to_string(user)) {
        fs::create_directory(path_);
        fs::permissions(path_, fs::perms::owner_all);
        REQUIRE(::chown(path_.c_str(), user, user) == 0);
    }
    ~FolderOf() { fs::remove_all(path_); }
    FolderOf(const FolderOf &) = delete;
    FolderOf &operator=(const FolderOf &) = delete;
    [[nodiscard]] fs::path socket(int pid) const { return path_ / control::socket_name(*control::name_of(pid)); }

  private:
    fs::path path_;
};

void says_version(int listening, const char *version) {
    control::Status status;
    status.pid = ::getpid();
    status.version = version;
    for (;;) say(asked(listening), control::text(control::Reply(status)) + "\n");
}

std::string version_in(const control::Reply &reply) {
    const auto *status = std::get_if<Status>(&reply);
    return status ? status->version : "no answer";
}

}  // namespace

TEST_CASE("a process that keeps a dead process's socket cannot answer for another user's process with the same pid") {
    if (::geteuid() != 0) return skip("only root can be another user");
    constexpr uid_t kForger = 54'371, kVictim = 54'372;
    const bool victim_listens = GENERATE(true, false);
    CAPTURE(victim_listens);
    const FolderOf forgers(kForger), victims(kVictim);
    // The forger's first process listens and ends; its child goes on answering until `kept` is closed.
    int ready[2], kept[2], up[2];
    for (int *pipe : {ready, kept, up}) REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
        if (::setgid(kForger) != 0 || ::setuid(kForger) != 0) ::_exit(97);
        const int socket = listening(forgers.socket(::getpid()));
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, 0);
            ::close(kept[1]);
            std::thread([&] {  // until the test is over
                char byte = 0;
                (void)!::read(kept[0], &byte, 1);
                ::_exit(0);
            })
                .detach();
            says_version(socket, "forged");
        }
        (void)!::write(ready[1], "", 1);
        ::_exit(0);
    }
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    const fs::path first = forgers.socket(pid);
    REQUIRE(::waitpid(pid, nullptr, 0) == pid);

    const pid_t victim = child_under(pid, [&] {
        if (::setgid(kVictim) != 0 || ::setuid(kVictim) != 0) ::_exit(97);
        const int socket = victim_listens ? listening(victims.socket(::getpid())) : -1;
        (void)!::write(up[1], "", 1);
        if (victim_listens) says_version(socket, "its own");
    });
    if (victim < 0) {
        ::close(kept[1]);
        return skip("no pid can be chosen here");
    }
    REQUIRE(victim == pid);
    REQUIRE(::read(up[0], &byte, 1) == 1);
    fs::rename(first, forgers.socket(victim));

    const std::string expected = victim_listens ? "its own" : "no answer";
    CHECK(version_in(control::ask(victim, StatusRequest(), 20s)) == expected);
    const Answers answers = ask_all(20s);
    const auto answer = answers.replies.find(victim);
    CHECK((answer == answers.replies.end() ? "no answer" : version_in(answer->second)) == expected);
    const auto all = control::processes();
    CHECK(std::binary_search(all.begin(), all.end(), victim) == victim_listens);
    ::kill(victim, SIGKILL);
    ::waitpid(victim, nullptr, 0);
    for (const int fd : {kept[0], kept[1], up[0], up[1]}) ::close(fd);
}

TEST_CASE("all processes are asked, even if there are more of them than files may be open") {
    const Runtime runtime;
    std::deque<StandIn> processes;
    for (int i = 0; i < 40; ++i) processes.emplace_back(runtime, answers);
    CHECK(in_child([] {
              const rlimit few{32, 32};
              ::close_range(3, ~0U, 0);
              ::setrlimit(RLIMIT_NOFILE, &few);
              std::size_t answered = 0;
              for (const control::Answer &one : control::ask_all(StatusRequest(), 10s))
                  answered += std::holds_alternative<Status>(one.reply) ? 1U : 0U;
              return answered >= 40 ? 0 : 1;
          }) == 0);
}
