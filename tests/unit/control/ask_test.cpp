// control::ask asks one process, or says why there is no answer. The processes are stand-ins, each at its own control
// socket.

#include <poll.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>

#include "catch.hpp"
#include "connect.hpp"
#include "control/client.hpp"
#include "control/proc.hpp"
#include "exchange.hpp"
#include "in_child.hpp"
#include "long_maps.hpp"
#include "stand_in.hpp"

using namespace curb;
using namespace stand_in;
using namespace std::chrono_literals;
using control::ask;
using control::Failure;
using control::Reply;
using control::Status;
using control::StatusRequest;

namespace {

constexpr auto kPatience = 300ms;
constexpr auto kLong = 60s;  // for a busy machine

std::string failure(int pid, std::chrono::milliseconds patience = kLong) {
    const Reply reply = ask(pid, StatusRequest(), patience);
    const auto *failure = std::get_if<Failure>(&reply);
    return failure ? failure->message : "answered";
}

}  // namespace

TEST_CASE("an answer is read whole, in one piece or byte by byte, up to the longest") {
    const Runtime runtime;
    const StandIn whole(runtime, answers);
    const StandIn slow(runtime, [](int listening) {
        const int client = asked(listening);
        for (const char c : status_line()) say(client, std::string(1, c));
    });
    const StandIn wordy(runtime, [](int listening) {
        const Reply reply = Failure{std::string(control::kLongestReply - 30, 'x')};
        say(asked(listening), control::text(reply) + "\n{\"curb\":1,\"failure\":\"a second answer\"}\n");
    });
    for (const int pid : {whole.pid(), slow.pid()}) {
        const Reply reply = ask(pid, StatusRequest(), kLong);
        REQUIRE(std::holds_alternative<Status>(reply));
        CHECK(std::get<Status>(reply).pid == pid);
    }
    CHECK(failure(wordy.pid()) == std::string(control::kLongestReply - 30, 'x'));
}

TEST_CASE("the error says why a process has not answered") {
    const Runtime runtime;
    const BadOnes bad(runtime);
    bad.check([&](int pid) { return failure(pid, bad.is_late(pid) ? kPatience : kLong); }, "300 ms");
}

TEST_CASE("the error says why a process cannot be asked at all") {
    const Runtime runtime;
    CHECK(failure(0) == "0 is not the pid of a process");
    CHECK(failure(-7) == "-7 is not the pid of a process");
    CHECK_THAT(failure(::getpid()), contains("does not run under curb; start it by: curb run -- COMMAND"));
    const Child deaf;
    ::close(listening(socket_of(runtime, deaf.pid())));
    CHECK_THAT(failure(deaf.pid()), contains(deaf.text() + " no longer listens on its control socket"));
    // A process that has ended and left its socket behind: before and after its parent has waited for it.
    const pid_t ended = ::fork();
    if (ended == 0) ::_exit(0);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT) == 0);
    ::close(listening(runtime.folder() / (std::to_string(ended) + "-1.sock")));
    CHECK(failure(ended) == "there is no process " + std::to_string(ended));
    ::waitpid(ended, nullptr, 0);
    CHECK(failure(ended) == "there is no process " + std::to_string(ended));
}

TEST_CASE("the error names the owner of another user's process, and says if a process cannot be inspected") {
    if (::geteuid() != 0) return skip("only root can be another user");
    constexpr uid_t kUser = 54'333, kOther = 54'334;
    const Child foreign([] {
        if (::setuid(kOther) != 0) ::_exit(97);
    });
    const Child closed([] {
        if (::setuid(kUser) != 0 || ::prctl(PR_SET_DUMPABLE, 0) != 0) ::_exit(97);
    });
    // In a child, because a thread that gives up root cannot become root again.
    const auto says = [](int pid, const std::string &part) {
        return in_child([&] {
                   ::unsetenv("XDG_RUNTIME_DIR");
                   if (::setuid(kUser) != 0) return 97;
                   return failure(pid).find(part) != std::string::npos ? 0 : 1;
               }) == 0;
    };
    CHECK(says(foreign.pid(), "belongs to user 54334: ask as that user, or as root"));
    CHECK(says(::getpid(), "belongs to user 0: ask as that user, or as root"));
    CHECK(says(closed.pid(), "does not run under curb, or does not let others look whether it does"));
}

TEST_CASE("connect_to() reaches a socket of its owner, and follows no link to another one") {
    const Runtime runtime;
    const fs::path socket = runtime.folder() / "socket", link = runtime.folder() / "link",
                   file = runtime.folder() / "file";
    const control::Descriptor listens(listening(socket));
    fs::create_symlink(socket, link);
    std::ofstream(file) << "text";
    const auto error_at = [](const fs::path &path, uid_t owner) {
        int error = 0;
        return control::connect_to(path, owner, error) ? 0 : error;
    };
    CHECK(error_at(link, ::geteuid()) == ENOTSOCK);
    CHECK(error_at(file, ::geteuid()) == ENOTSOCK);
    CHECK(error_at(socket, ::geteuid() + 1) == EPERM);
    CHECK(error_at(runtime.folder() / "none", ::geteuid()) == ENOENT);
    // Under the name of a process, as its user can put it there.
    const Child process;
    fs::create_symlink(socket, socket_of(runtime, process.pid()));
    CHECK_THAT(failure(process.pid()), contains("does not run under curb"));
    for (const control::Answer &one : control::ask_all(StatusRequest(), 5s)) CHECK(one.pid != process.pid());
    CHECK(fs::is_symlink(socket_of(runtime, process.pid())));
    pollfd client{listens.number(), POLLIN, 0};
    CHECK(::poll(&client, 1, 0) == 0);
    CHECK(error_at(socket, ::geteuid()) == 0);
    CHECK(::poll(&client, 1, 0) == 1);
}

TEST_CASE("the maps of a process are read in pieces, up to the line that is looked for") {
    const LongMaps maps;
    const Child process;
    const auto read = [&](const char *text) {
        std::size_t lines = 0;
        control::each_line(process.pid(), "maps", [&](std::string_view line) {
            ++lines;
            return line.find(text) == std::string_view::npos;
        });
        return lines;
    };
    CHECK(read("there is none") > LongMaps::kCount);
    CHECK(read("/file") < LongMaps::kCount);
    CHECK(control::has_mapped(process.pid(), "/file") == true);
    CHECK(control::has_mapped(process.pid(), control::kLibrary) == false);
    CHECK(control::has_mapped(0, control::kLibrary) == std::nullopt);
    CHECK(in_child([&] {
              rusage before{}, after{};
              ::getrusage(RUSAGE_SELF, &before);
              const bool none = failure(process.pid()).find("does not run under curb") != std::string::npos;
              ::getrusage(RUSAGE_SELF, &after);
              return none && after.ru_maxrss - before.ru_maxrss < long{LongMaps::kBytes / 1024 / 3} ? 0 : 1;
          }) == 0);
}

TEST_CASE("a deadline of 0 ms has passed at once, and an endless one never passes") {
    CHECK(control::Deadline(0ms).passed());
    CHECK(control::Deadline(0ms).left() == 0);
    CHECK_FALSE(control::Deadline(1h).passed());
    CHECK(control::Deadline(1h).left() == 1'000'000);  // then poll is called again
    CHECK_FALSE(control::Deadline(control::kForEver).passed());
    CHECK(control::Deadline(control::kForEver).left() == -1);
}
