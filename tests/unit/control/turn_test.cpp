// The order of processes that wait for room on a GPU.
#include "control/turn.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "catch.hpp"
#include "control/suspended.hpp"
#include "in_child.hpp"
#include "temp_dir.hpp"

namespace fs = std::filesystem;
using curb::control::Places;
using curb::control::Turn;

namespace {

const std::string kGpu = "GPU-1", kOther = "GPU-12";
constexpr curb::policy::Bytes kNeed = 4096;

struct Folder {
    TempDir dir;
    Places places;
    Folder() {
        fs::permissions(dir.path(), fs::perms::owner_all);
        places.xdg = dir.path();
        places.run_user = places.tmp = (dir / "none").string();
    }
    [[nodiscard]] fs::path record_of(pid_t pid) const {
        return dir / ("curb/" + std::to_string(pid) + "-1" + curb::control::suspended::kRecordName);
    }
    [[nodiscard]] std::size_t files() const {
        std::size_t count = 0;
        for (const auto &entry : fs::recursive_directory_iterator(dir.path())) count += entry.is_regular_file();
        return count;
    }
};

// A process that waits, until it is killed.
struct Waiter : Child {
    explicit Waiter(const Places &places) : Child([&] { static const Turn turn(places, kGpu, kNeed); }) {}
};

}  // namespace

TEST_CASE("in a program without standard streams no file of a turn has their numbers") {
    const Folder folder;
    const pid_t child = fork();
    if (child == 0) {
        for (const int standard : {0, 1, 2}) close(standard);
        const Turn turn(folder.places, kGpu, kNeed);
        const auto is_open = [](int number) { return fcntl(number, F_GETFD) >= 0; };
        _exit(folder.files() == 1 && !is_open(0) && !is_open(1) && !is_open(2) ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

TEST_CASE("the process that came first has the first turn, and the next one when the first has been served") {
    const Folder folder;
    std::optional<Turn> first(std::in_place, folder.places, kGpu, kNeed);
    Turn second(folder.places, kGpu, kNeed), elsewhere(folder.places, kOther, kNeed);
    CHECK(first->has_come(kNeed));
    CHECK_FALSE(second.has_come(kNeed));
    CHECK(elsewhere.has_come(kNeed));
    first.reset();
    CHECK(second.has_come(kNeed));
}

TEST_CASE("a process that was killed while it waited blocks no other, and its file is deleted") {
    const Folder folder;
    std::optional<Waiter> before(std::in_place, folder.places);
    Turn turn(folder.places, kGpu, kNeed);
    CHECK_FALSE(turn.has_come(kNeed));
    CHECK(Turn::others_wait(folder.places, kGpu));
    before.reset();
    CHECK(turn.has_come(kNeed));
    CHECK(folder.files() == 1);
}

TEST_CASE("the file of a process that was killed before it was in the order is deleted by the next one in it") {
    const Folder folder;
    Turn turn(folder.places, kGpu, kNeed);
    const fs::path queue = folder.dir / "curb";
    const std::string name = fs::directory_iterator(queue)->path().filename();
    const std::size_t stamp = ("turn-" + kGpu + "-").size();
    std::string old = name;
    old.replace(stamp, 20, 20, '0');
    std::ofstream(queue / ("." + old)).flush();
    std::ofstream(queue / ("." + name)).flush();  // perhaps its process still lives, and is about to lock it
    CHECK(turn.has_come(kNeed));
    CHECK_FALSE(fs::exists(queue / ("." + old)));
    CHECK(fs::exists(queue / ("." + name)));
    CHECK(fs::exists(queue / name));
}

TEST_CASE("others_wait() counts other processes on this GPU only") {
    const Folder folder;
    CHECK_FALSE(Turn::others_wait(folder.places, kGpu));
    const Turn mine(folder.places, kGpu, kNeed);
    CHECK_FALSE(Turn::others_wait(folder.places, kGpu));
    const Waiter other(folder.places);
    CHECK(Turn::others_wait(folder.places, kGpu));
    CHECK_FALSE(Turn::others_wait(folder.places, kOther));
}

TEST_CASE("a process that needs more than is free blocks no other") {
    const Folder folder;
    const Turn large(folder.places, kGpu, 2 * kNeed);
    Turn small(folder.places, kGpu, kNeed);
    CHECK(small.has_come(2 * kNeed - 1));
    CHECK_FALSE(small.has_come(2 * kNeed));
}

TEST_CASE("memory that a process has reserved is not another's, until the process has it or gives it up") {
    const Folder folder;
    Turn small(folder.places, kGpu, kNeed), large(folder.places, kGpu, 2 * kNeed);
    REQUIRE(large.reserve(2 * kNeed));
    CHECK_FALSE(small.has_come(3 * kNeed - 1));  // though it came first
    CHECK_FALSE(small.reserve(3 * kNeed - 1));
    CHECK(small.has_come(3 * kNeed));
    large.give_up_reservation();
    CHECK(small.has_come(kNeed));
    CHECK(large.reserve(2 * kNeed));  // the small one did not get its reservation, and has kept nothing of it
    CHECK(folder.files() == 2);
}

TEST_CASE("a process that does not take the free memory blocks others for some seconds") {
    const Folder folder;
    const Waiter stopped(folder.places);
    Turn turn(folder.places, kGpu, kNeed);
    const auto begin = std::chrono::steady_clock::now();
    while (!turn.has_come(kNeed)) usleep(50'000);
    CHECK(std::chrono::steady_clock::now() - begin >= Turn::kLongest - std::chrono::milliseconds(100));
}

TEST_CASE("a suspended process blocks no other, and waits for no memory") {
    const Folder folder;
    const Waiter suspended(folder.places);
    Turn turn(folder.places, kGpu, kNeed);
    CHECK_FALSE(turn.has_come(kNeed));
    std::ofstream(folder.record_of(suspended.pid())).flush();
    CHECK(turn.has_come(kNeed));
    CHECK_FALSE(Turn::others_wait(folder.places, kGpu));
    fs::remove(folder.record_of(suspended.pid()));
    CHECK_FALSE(turn.has_come(kNeed));
}

TEST_CASE("without a usable folder every process has its turn at once") {
    Places nowhere;
    nowhere.xdg = nowhere.run_user = nowhere.tmp = "/proc/none";
    Turn one(nowhere, kGpu, kNeed), other(nowhere, kGpu, kNeed);
    CHECK(one.has_come(kNeed));
    CHECK(other.has_come(kNeed));
    CHECK_FALSE(Turn::others_wait(nowhere, kGpu));
}
