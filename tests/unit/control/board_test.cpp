// The board, on which users of one machine see each other's processes: its text, and what a reader believes.
#include "control/board.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "catch.hpp"
#include "control/descriptor.hpp"
#include "in_child.hpp"
#include "public_machine.hpp"

using namespace curb::control;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using board::Entry;
using board::State;

namespace {

constexpr uid_t kStranger = 54'321;

Entry whole() {
    return {{4711, 123456},
            4026531836,
            State::waiting,
            1'790'000'000'000,
            1'790'000'000'123,
            {{"GPU-8f3a", 1 << 30, 8ULL << 30, 2 << 20, 1'790'000'000'000},
             {"MIG-1", 5, std::nullopt, 0, 0, board::Gpu::Turn{1 << 29, 1'790'000'000'456}, std::chrono::seconds(30)},
             {"GPU-2", std::nullopt, std::nullopt, 7, 1}}};
}

struct Machine : PublicMachine {
    [[nodiscard]] Folder folder() const {
        const auto out = public_directory(places, ::geteuid());
        REQUIRE(out);
        return *out;
    }
    // Posts an entry as this user does.
    void post(const Entry &entry) const { post_as(board::name_of(entry.process), board::text_of(entry)); }
    void post_as(const std::string &name, const std::string &text) const {
        REQUIRE(text_link::write(folder().path + "/" + name, text).empty());
    }
    [[nodiscard]] std::size_t posted() const { return board::read_all(places).size(); }
};

Entry own() {
    Entry out = whole();
    out.process = *name_of(::getpid());
    out.pid_namespace = text_link::own_pid_namespace();
    return out;
}

}  // namespace

TEST_CASE("An entry is read as it was written, and the longest fits") {
    CHECK(board::text_of(whole()) ==
          "curb 1 4711 123456 4026531836 waiting 1790000000000 1790000000123\n"
          "GPU-8f3a 1073741824 8589934592 2097152 1790000000000\n"
          "MIG-1 5 none 0 0 turns 536870912 1790000000456 30000\n"
          "GPU-2 - - 7 1\n");
    CHECK(board::parse(board::text_of(whole())) == whole());
    Entry longest = whole();
    longest.gpus.assign(
        100, {"GPU-8f3a1b2c-0000-1111-2222-333344445555", 80ULL << 30, 80ULL << 30, 80ULL << 30, 1'790'000'000'000,
              board::Gpu::Turn{80ULL << 30, 1'790'000'000'000}, std::chrono::hours(1)});
    const std::string text = board::text_of(longest);
    CHECK(text.size() <= text_link::kLongest);
    const auto read = board::parse(text);
    REQUIRE(read);
    CHECK(read->gpus.size() == board::kMostGpus);
}

TEST_CASE("A text that is no entry is refused, and one that is accepted is just what curb would write") {
    const std::string good = board::text_of(whole());
    for (std::size_t length = 0; length < good.size(); ++length) {
        const auto read = board::parse(good.substr(0, length));
        CHECK((!read || board::text_of(*read) == good.substr(0, length)));
    }
    for (const std::string bad :
         {"", "\n", "curb\n", "curb 2 1 1 1 running 1 1\n", "curb 1 0 1 1 running 1 1\n", "curb 1 -1 1 1 running 1 1\n",
          "curb 1 1 1 1 asleep 1 1\n", "curb 1 1 1 1 running 1 1 \n", "curb 1 1 1 1  running 1 1\n",
          "curb 1 1 1 1 running 1 1\nGPU 1 none 1 0\n", "curb 1 1 1 1 running 1 1\nGPU 1 none 0 1\n",
          "curb 1 1 1 1 running 1 1\nGPU - 5 0 0\n", "curb 1 1 1 1 running 1 1\nGPU - none 0 0\n",
          "curb 1 1 1 1 running 1 1\n 1 none 0 0\n", "curb 1 1 1 1 running 1 1\nG\tU 1 none 0 0\n",
          "curb 1 1 1 1 running 1 99999999999999999999\n", "curb 1 1 1 1 running 01 1\n"})
        CHECK_FALSE(board::parse(bad));
    std::mt19937_64 random(7);
    const std::string letters = good + "-09 \n\t\x80";
    for (int i = 0; i < 100'000; ++i) {
        std::string text = good;
        for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
            const std::size_t at = random() % text.size();
            const char other = letters[random() % letters.size()];
            if (random() % 3 == 0)
                text.erase(at, random() % 8);
            else if (random() % 2 == 0)
                text.insert(at, 1, other);
            else
                text[at] = other;
            if (text.empty()) text = "\n";
        }
        const auto read = board::parse(text);
        if (read && board::text_of(*read) != text) FAIL("accepted: " << text);
    }
}

TEST_CASE("A reader finds the entries of living processes, and those that another pid namespace has just touched") {
    const Machine machine;
    machine.post(own());
    auto all = board::read_all(machine.places);
    REQUIRE(all.size() == 1);
    CHECK(all[0].entry == own());
    CHECK(all[0].here);
    CHECK(all[0].owner == ::geteuid());
    const std::string path = machine.folder().path + "/" + board::name_of(own().process);
    // A process that has replaced itself touches its file no more.
    set_age(path, 1min);
    CHECK(machine.posted() == 0);
    Entry other = own();
    other.pid_namespace += 1;
    machine.post(other);
    all = board::read_all(machine.places);
    REQUIRE(all.size() == 1);
    CHECK_FALSE(all[0].here);
    set_age(path, 1min);
    CHECK(machine.posted() == 0);
    set_age(path, -1h);
    CHECK(machine.posted() == 0);
}

TEST_CASE("A stopped process stays on the board") {
    const Machine machine;
    const Child child;
    Entry entry = own();
    entry.process = *name_of(child.pid());
    machine.post(entry);
    const std::string path = machine.folder().path + "/" + board::name_of(entry.process);
    set_age(path, 1min);
    CHECK(machine.posted() == 0);
    child.stop();
    CHECK(machine.posted() == 1);
}

TEST_CASE("A reader believes no entry of a dead process, under a wrong name, too long, or in a file of another kind") {
    const Machine machine;
    const std::string own_name = board::name_of(own().process), text = board::text_of(own());
    const std::string how =
        GENERATE("dead", "an earlier process with the pid", "wrong name", "too long", "file", "FIFO", "folder");
    CAPTURE(how);
    const std::string path = machine.folder().path + "/" + own_name;
    Entry entry = own();
    if (how == "dead") entry.process.pid = 4'999'999;
    if (how == "an earlier process with the pid") --entry.process.start;
    if (how == "dead" || how == "an earlier process with the pid") machine.post(entry);
    if (how == "wrong name") machine.post_as("1-1", text);
    if (how == "too long") machine.post_as(own_name, text + std::string(text_link::kLongest, '\n'));
    if (how == "file") std::ofstream(path) << text;
    if (how == "FIFO") REQUIRE(::mkfifo(path.c_str(), 0644) == 0);
    if (how == "folder") fs::create_directory(path);
    CHECK(machine.posted() == 0);
}

TEST_CASE("Dead processes' files are deleted by others of their user, and files of the living are not") {
    const Machine machine;
    Entry dead = own(), elsewhere = own(), gone = own();
    dead.process.pid = 4'999'999;
    elsewhere.process = {7, 7};
    gone.process = {8, 8};
    ++elsewhere.pid_namespace;
    ++gone.pid_namespace;
    for (const Entry &entry : {own(), dead, elsewhere, gone}) machine.post(entry);
    set_age(machine.folder().path + "/8-8", 1h);
    // Of processes that were killed while they wrote, and of one that writes now.
    for (const char *name : {"9-9.new", "ticket-GPU-1.new", "10-10.new"}) machine.post_as(name, "unfinished");
    for (const char *name : {"9-9.new", "ticket-GPU-1.new"}) set_age(machine.folder().path + "/" + name, 1h);
    const auto folder = open_folder(machine.folder(), false);
    REQUIRE(folder);
    board::remove_stale(*folder, []() noexcept { return true; });
    std::vector<std::string> left = names_in(*folder, [](const std::string &name) { return name.front() != '.'; });
    std::sort(left.begin(), left.end());
    std::vector<std::string> expected{"10-10.new", "7-7", board::name_of(own().process)};
    std::sort(expected.begin(), expected.end());
    CHECK(left == expected);
}

TEST_CASE("Of a stranger with 10,000 files a reader takes 1,024, and another user cannot speak for a process") {
    if (::geteuid() != 0) return skip("only root can be another user");
    const Machine machine;
    machine.post(own());
    const std::string theirs = machine.places.run + "/public/" + std::to_string(kStranger);
    const std::string text = board::text_of(own());
    fs::create_directory(theirs);
    fs::create_symlink(text, theirs + "/file");
    REQUIRE(::lchown((theirs + "/file").c_str(), kStranger, kStranger) == 0);
    fs::create_hard_link(theirs + "/file", theirs + "/" + board::name_of(own().process));
    for (int i = 1; i < 10'000; ++i) fs::create_hard_link(theirs + "/file", theirs + "/" + std::to_string(i) + "-1");
    REQUIRE(::chown(theirs.c_str(), kStranger, kStranger) == 0);
    REQUIRE(::chmod(theirs.c_str(), 0755) == 0);
    REQUIRE(public_folders(machine.places).size() == 2);
    const auto all = board::read_all(machine.places);
    REQUIRE(all.size() == 1);
    CHECK(all[0].owner == 0);
}

TEST_CASE("A board's folder that another user has made first is passed over") {
    if (::geteuid() != 0) return skip("only root can make another user's folder");
    const Machine machine;
    for (const std::string &path : {machine.places.run + "/public/0", machine.places.tmp + "/curb-public-0"}) {
        fs::create_directory(path);
        REQUIRE(::chown(path.c_str(), kStranger, kStranger) == 0);
    }
    CHECK(machine.folder().path == machine.places.tmp + "/curb-public-0.1");
    machine.post(own());
    CHECK(machine.posted() == 1);
}
