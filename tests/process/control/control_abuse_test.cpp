// Clients that misuse the control socket, and a program that closes curb's descriptors: the program goes on, and other
// clients get their answers.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <memory>

#include "capped.hpp"
#include "in_child.hpp"
#include "raw_client.hpp"

using namespace curb;
using control::ask;
using control::Failure;
using control::Status;
using control::StatusRequest;

namespace {

bool answers(const Capped &process) { return std::holds_alternative<Status>(ask(process.pid(), StatusRequest(), 10s)); }

constexpr const char *kStatus = R"({"curb":1,"ask":"status"})";

}  // namespace

TEST_CASE("a line that is no request gets an error with the reason, and the connection ends") {
    Capped process;
    // tests/unit/control/messages_test.cpp has the other lines that the parser refuses.
    for (const std::string &line : std::vector<std::string>{"", R"({"curb":1,"ask":"halt"})", std::string("\0\0", 2),
                                                            std::string(1000, '['), "\xFF\xFE"}) {
        CAPTURE(line);
        const Raw client(process.socket());
        client.send(line + "\n" + kStatus + "\n");
        const std::string answer = client.answer();
        CHECK_THAT(answer, contains(R"({"curb":1,"failure":"not a request to curb: )"));
        CHECK(std::count(answer.begin(), answer.end(), '\n') == 1);
    }
    const Raw endless(process.socket());
    endless.send(std::string(1 << 20, 'x'));
    CHECK_THAT(endless.answer(), contains("the request is too long"));
    CHECK(answers(process));
}

TEST_CASE("a client that disconnects at once, or in the middle of a line, does no harm") {
    Capped process({.policy = R"({ "version": 1 })"});
    const std::string whole = std::string(kStatus) + "\n" + R"({"curb":1,"ask":"release"})" + "\n" +
                              R"({"curb":1,"ask":"cap","cap":"1GiB","gpu":"nvml:0"})" + "\n";
    for (std::size_t length = 0; length <= whole.size(); ++length) Raw(process.socket()).send(whole.substr(0, length));
    for (int i = 0; i < 200; ++i) Raw(process.socket()).send(whole);
    CHECK(answers(process));
    CHECK(within(10s, [&] {  // may join a release of one of these clients
        return std::holds_alternative<control::ReleaseReport>(ask(process.pid(), policy::ReleaseRequest(), 10s));
    }));
    CHECK(process.finish() == 0);
}

TEST_CASE("only so many releases wait for their turn, even if those that asked for them have left") {
    Capped process;
    const auto set_gate = [&](std::optional<std::uint64_t> close_for) {
        const auto report = ask(process.pid(), control::GateRequest{close_for}, 10s);
        return std::holds_alternative<control::GateReport>(report) && std::get<control::GateReport>(report).closed;
    };
    REQUIRE(set_gate(60'000));  // while the gate is closed, releases wait
    CHECK(within(30s, [&] {     // each client leaves, and its release stays
        const auto reply = ask(process.pid(), policy::ReleaseRequest(), 50ms);
        return std::holds_alternative<Failure>(reply) &&
               std::get<Failure>(reply).message == "too many releases are pending; try again";
    }));
    CHECK_FALSE(set_gate(std::nullopt));
    CHECK(within(20s, [&] {
        return std::holds_alternative<control::ReleaseReport>(ask(process.pid(), policy::ReleaseRequest(), 10s));
    }));
    CHECK(process.finish() == 0);
}

TEST_CASE("one connection may send several requests, in pieces of any size") {
    Capped process;
    const Raw client(process.socket());
    std::string all;
    for (int i = 0; i < 100; ++i) all += std::string(kStatus) + "\n";
    for (std::size_t at = 0; at < all.size(); at += 7) client.send(all.substr(at, 7));
    client.no_more();
    const std::string answer = client.answer();
    CHECK(std::count(answer.begin(), answer.end(), '\n') == 100);
    CHECK(answer.find("failure") == std::string::npos);
}

TEST_CASE("a client that sends nothing, or one byte a second, is disconnected and delays no other client") {
    Capped process;
    const Raw silent(process.socket()), slow(process.socket());
    const auto begin = std::chrono::steady_clock::now();
    for (const char c : std::string(R"({"curb":)")) {
        CHECK(answers(process));
        if (slow.send(std::string(1, c)) == 0) break;
        if (slow.closed_within(1s)) break;
    }
    CHECK(std::chrono::steady_clock::now() - begin < 8s);
    CHECK(silent.closed_within(10s));
    CHECK(answers(process));
}

TEST_CASE("a client that does not read the answers is disconnected") {
    Capped process;
    const Raw client(process.socket());
    std::string many;
    for (int i = 0; i < 100'000; ++i) many += std::string(kStatus) + "\n";
    std::size_t taken = 0;
    std::thread sending([&] { taken = client.send(many); });  // ends when the connection does
    CHECK(answers(process));
    sending.join();
    CHECK(taken < many.size());
    CHECK(answers(process));
}

TEST_CASE("a thousand connections at once do no harm") {
    Capped process;
    const int before = std::stoi(process("descriptors"));  // may include that of a connection that has just ended
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    {
        std::vector<std::unique_ptr<Raw>> clients;
        for (int i = 0; i < 1000; ++i) {
            clients.push_back(std::make_unique<Raw>(process.socket()));
            CHECK(clients.back()->connected());
            if (i % 100 == 0) CHECK(answers(process));
            if (i % 3 == 0) clients.back()->send("{\"curb\"");
        }
        CHECK(answers(process));
        CHECK(std::stoi(process("descriptors")) <= before + 16);
    }
    CHECK(within(10s, [&] { return std::stoi(process("descriptors")) <= before; }));
}

TEST_CASE("a process without descriptors left serves again once it has some") {
    Capped process;
    rlimit before{};
    REQUIRE(::prlimit(process.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
    const rlimit none{0, before.rlim_max};
    REQUIRE(::prlimit(process.pid(), RLIMIT_NOFILE, &none, nullptr) == 0);
    CHECK(!std::holds_alternative<Status>(ask(process.pid(), StatusRequest(), 300ms)));
    REQUIRE(::prlimit(process.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
    CHECK(answers(process));
}

TEST_CASE("another user cannot connect, and gets no answer if the permissions let him connect") {
    if (!can_become_another()) return;
    constexpr uid_t kOwner = 54'321, kOther = 54'322;
    const TempDir runtime;
    REQUIRE(::chown(runtime.path().c_str(), kOwner, kOwner) == 0);
    Capped process(runtime.path(), {.prepare = becoming(kOwner)});
    const std::string socket = process.socket();
    const auto as_other = [&] {  // 0: could not connect, 1: got no answer, 2: got an answer
        return WEXITSTATUS(in_child([&] {
            if (::setuid(kOther) != 0) return 97;
            const Raw client(socket);
            if (!client.connected()) return 0;
            client.send(std::string(kStatus) + "\n");
            return client.closed_within(10s) ? 1 : 2;
        }));
    };
    CHECK(as_other() == 0);
    REQUIRE(::chmod(runtime.path().c_str(), 0755) == 0);
    REQUIRE(::chmod((runtime / "curb").c_str(), 0755) == 0);
    REQUIRE(::chmod(socket.c_str(), 0777) == 0);
    CHECK(as_other() == 1);
    REQUIRE(::chmod((runtime / "curb").c_str(), 0700) == 0);
    CHECK(answers(process));  // root gets an answer
}

TEST_CASE("a program that closes all descriptors keeps what it opens under their numbers", "[foreign-close]") {
    Capped process;
    const Raw waiting(process.socket());
    CHECK(answers(process));
    CHECK(process("close for sockets") == "ok");
    CHECK(within(10s, [&] { return process.socket().empty(); }));  // no longer served
    CHECK(!answers(process));
    CHECK(process("look") == "untouched");
    CHECK_THAT(process.log(), contains("the program closed curb's descriptors: curb release no longer reaches"));
    CHECK(process("pool") == "ok");
    CHECK(process.finish() == 0);
}
