// in_touch() finds in /proc whether two processes work together: pairs of children that share something, or nothing.
#include "suspend/companion.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "catch.hpp"
#include "in_child.hpp"
#include "temp_dir.hpp"

using namespace curb::cli;

namespace {

bool touch(const std::function<void()> &one, const std::function<void()> &other) {
    const Child first(one), second(other);
    const bool there = in_touch(first.pid(), second.pid()), back = in_touch(second.pid(), first.pid());
    CHECK(there == back);
    return there;
}

void nothing() {}

sockaddr_in any_port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

}  // namespace

TEST_CASE("Processes that share nothing, or only files that they read, are not in touch") {
    CHECK_FALSE(touch(nothing, nothing));
    const TempDir folder;
    const std::string path = folder.write("cache", std::string(4096, 'x'));
    const auto reads = [&] {
        const int file = ::open(path.c_str(), O_RDONLY);
        (void)::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
    };
    CHECK_FALSE(touch(reads, reads));
}

TEST_CASE("Processes that both write in shared memory are in touch") {
    const int memory = ::memfd_create("shared", MFD_CLOEXEC);
    REQUIRE(::ftruncate(memory, 4096) == 0);
    const auto writes = [&] { (void)::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0); };
    const auto reads = [&] { (void)::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory, 0); };
    const auto copies = [&] { (void)::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, 0); };
    CHECK(touch(writes, writes));
    CHECK_FALSE(touch(writes, reads));
    CHECK_FALSE(touch(writes, copies));
    ::close(memory);
}

TEST_CASE("Processes with a TCP connection to each other are in touch, and those that only talk to a third are not") {
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = any_port();
    socklen_t size = sizeof address;
    auto *name = reinterpret_cast<sockaddr *>(&address);
    REQUIRE(::bind(server, name, size) == 0);
    REQUIRE(::listen(server, 8) == 0);
    REQUIRE(::getsockname(server, name, &size) == 0);
    const auto connects = [&] {
        const int file = ::socket(AF_INET, SOCK_STREAM, 0);
        (void)::connect(file, name, size);
        ::close(server);
    };
    const auto closes = [&] { ::close(server); };
    {
        const Child first(connects), second([&] {
            (void)::accept(server, nullptr, nullptr);
            ::close(server);
        });
        CHECK(in_touch(first.pid(), second.pid()));
        const Child third(closes);
        CHECK_FALSE(in_touch(first.pid(), third.pid()));
    }
    CHECK_FALSE(touch(connects, connects));  // as two kernels of one Jupyter server
    ::close(server);
}

TEST_CASE("A process that /proc does not show counts as in touch") {
    const Child child(nothing);
    constexpr int kNone = 1 << 30;
    CHECK(in_touch(child.pid(), kNone));
    CHECK(in_touch(kNone, child.pid()));
}
