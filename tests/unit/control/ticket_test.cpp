// The order of processes that wait for room on a GPU.
#include "control/ticket.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "catch.hpp"
#include "control/board.hpp"
#include "control/text_link.hpp"
#include "in_child.hpp"
#include "public_machine.hpp"

namespace fs = std::filesystem;
using namespace curb::control;
using namespace std::chrono_literals;

namespace {

const std::string kGpu = "GPU-1", kOther = "GPU-12";
constexpr curb::policy::Bytes kNeed = 4096;

struct Shared : PublicMachine {
    [[nodiscard]] std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        for (const auto &entry : fs::recursive_directory_iterator(dir.path()))
            if (entry.is_symlink()) found.push_back(entry.path());
        return found;
    }
    void age_only_file(std::chrono::seconds age) const { set_age(files().at(0), age); }
};

// A process of a user that waits, until it is killed.
struct Waiter : Child {
    explicit Waiter(const Places &places, uid_t user = geteuid(), curb::policy::Bytes bytes = kNeed,
                    bool reserves = false)
        : Child([=] {
              if (setresuid(user, user, user) != 0) _exit(1);
              static Ticket ticket(places, kGpu, bytes);
              if (reserves) static_cast<void>(ticket.reserve(bytes));
          }) {}
};

// A process that takes turns and waits.
struct TurnTaker : Child {
    TurnTaker(const Places &places, InTurns says, bool claims = false)
        : Child([=] {
              static Ticket ticket(places, kGpu, kNeed, Ticket::Among::all, true, says);
              if (claims) ticket.claim();
          }) {}
};

// Posts for a process of another user that it holds so much of the GPU.
struct Holder : Child {
    Holder(const Places &places, uid_t user, std::optional<curb::policy::Bytes> held)
        : Child([=] {
              if (setresuid(user, user, user) != 0) _exit(1);
              const auto folder = public_directory(places, user);
              const board::Entry entry{.process = *name_of(getpid()),
                                       .pid_namespace = text_link::own_pid_namespace(),
                                       .gpus = {{.uuid = kGpu, .held = held}}};
              if (!folder ||
                  !text_link::write(folder->path + "/" + board::name_of(entry.process), board::text_of(entry)).empty())
                  _exit(1);
          }) {}
};

constexpr uid_t kOtherUser = 54'323;
bool can_become_another() {
    if (geteuid() != 0) skip("only root can be another user");
    return geteuid() == 0;
}

}  // namespace

TEST_CASE("the process that came first is served first, and the next one when the first has been served") {
    const Shared folder;
    std::optional<Ticket> first(std::in_place, folder.places, kGpu, kNeed);
    Ticket second(folder.places, kGpu, kNeed), elsewhere(folder.places, kOther, kNeed);
    CHECK(first->may_take(kNeed));
    CHECK(first->may_take(0));  // there may be more room when it asks the driver
    CHECK_FALSE(second.may_take(kNeed));
    CHECK_FALSE(second.may_take(kNeed - 1));
    CHECK(elsewhere.may_take(kNeed));
    first.reset();
    CHECK(second.may_take(kNeed));
}

TEST_CASE("a process that was killed while it waited blocks no other, and its file is deleted") {
    const Shared folder;
    std::optional<Waiter> before(std::in_place, folder.places);
    Ticket ticket(folder.places, kGpu, kNeed);
    CHECK_FALSE(ticket.may_take(kNeed));
    CHECK(Ticket::others_wait(folder.places, kGpu));
    before.reset();
    CHECK(ticket.may_take(kNeed));
    CHECK(folder.files().size() == 1);
}

TEST_CASE(
    "the file of a dead process is deleted even if no other process waits for its GPU, and those of living ones stay") {
    const Shared folder;
    { const Waiter dead(folder.places); }
    const Ticket alive(folder.places, kOther, kNeed);
    CHECK(folder.files().size() == 2);
    const auto opened = curb::control::open_folder(*curb::control::public_directory(folder.places, geteuid()), false);
    REQUIRE(opened);
    Ticket::remove_stale(*opened, []() noexcept { return false; });
    CHECK(folder.files().size() == 2);
    Ticket::remove_stale(*opened, []() noexcept { return true; });
    CHECK(folder.files().size() == 1);
}

TEST_CASE("others_wait() counts other processes on this GPU only") {
    const Shared folder;
    CHECK_FALSE(Ticket::others_wait(folder.places, kGpu));
    const Ticket mine(folder.places, kGpu, kNeed);
    CHECK_FALSE(Ticket::others_wait(folder.places, kGpu));
    const Waiter other(folder.places);
    CHECK(Ticket::others_wait(folder.places, kGpu));
    CHECK_FALSE(Ticket::others_wait(folder.places, kOther));
}

TEST_CASE("a process that needs more than is free blocks no other") {
    const Shared folder;
    const Ticket large(folder.places, kGpu, 2 * kNeed);
    Ticket small(folder.places, kGpu, kNeed);
    CHECK(small.may_take(2 * kNeed - 1));
    CHECK_FALSE(small.may_take(2 * kNeed));
}

TEST_CASE("memory that a process has reserved is not another's, until the process has it or gives it up") {
    const Shared folder;
    Ticket small(folder.places, kGpu, kNeed), large(folder.places, kGpu, 2 * kNeed);
    REQUIRE(large.reserve(2 * kNeed));
    CHECK_FALSE(small.may_take(3 * kNeed - 1));  // though it came first
    CHECK_FALSE(small.reserve(3 * kNeed - 1));
    CHECK(small.may_take(3 * kNeed));
    large.give_up_reservation();
    CHECK(small.may_take(kNeed));
    CHECK(large.reserve(2 * kNeed));  // the small one did not get its reservation, and has kept nothing of it
    CHECK(folder.files().size() == 2);
}

TEST_CASE("a process without a free descriptor keeps its place in the order, and reserves") {
    const Shared folder;
    Ticket small(folder.places, kGpu, kNeed), large(folder.places, kGpu, 2 * kNeed);
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{0, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    const bool reserved = large.reserve(2 * kNeed);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(reserved);
    CHECK_FALSE(small.may_take(3 * kNeed - 1));
    CHECK(folder.files().size() == 2);
}

TEST_CASE("a process that does not take the free memory blocks others for some seconds") {
    const Shared folder;
    const Waiter stopped(folder.places);
    Ticket ticket(folder.places, kGpu, kNeed);
    const auto begin = std::chrono::steady_clock::now();
    while (!ticket.may_take(kNeed)) usleep(50'000);
    CHECK(std::chrono::steady_clock::now() - begin >= Ticket::kLongest - std::chrono::milliseconds(100));
}

TEST_CASE("a request that is not renewed blocks no other after 5 s, but keeps what it has reserved for a minute") {
    const bool reserves = GENERATE(false, true);
    CAPTURE(reserves);
    const Shared folder;
    const Waiter before(folder.places, geteuid(), kNeed, reserves);
    folder.age_only_file(4s);
    std::optional<Ticket> ticket(std::in_place, folder.places, kGpu, kNeed);
    CHECK_FALSE(ticket->may_take(kNeed));
    ticket.reset();
    folder.age_only_file(6s);
    CHECK(Ticket::others_wait(folder.places, kGpu) == reserves);
    ticket.emplace(folder.places, kGpu, kNeed);
    CHECK(ticket->may_take(kNeed) != reserves);
    ticket.reset();
    folder.age_only_file(61s);
    CHECK_FALSE(Ticket::others_wait(folder.places, kGpu));
}

TEST_CASE("between users the one who holds less of the GPU goes first, and at equal figures who came first") {
    if (!can_become_another()) return;
    const Shared folder;
    const Waiter other(folder.places, kOtherUser);
    Ticket ticket(folder.places, kGpu, kNeed);
    CHECK(Ticket::others_wait(folder.places, kGpu));
    CHECK_FALSE(ticket.may_take(kNeed));  // it came first
    CHECK(ticket.may_take(2 * kNeed));
    const std::optional<curb::policy::Bytes> held = GENERATE(std::optional<curb::policy::Bytes>(1), std::nullopt);
    const Holder holds(folder.places, kOtherUser, held);
    Ticket later(folder.places, kGpu, kNeed);
    CHECK_FALSE(later.may_take(kNeed));  // behind that of its own user
    Ticket elsewhere(folder.places, kOther, kNeed);
    CHECK(elsewhere.may_take(kNeed));
    usleep(600'000);  // the board is read twice a second
    CHECK(ticket.may_take(kNeed));
}

TEST_CASE(
    "a user who holds more does not go before another's earlier request, and for at most 5 s not before a later one") {
    if (!can_become_another()) return;
    const Shared folder;
    const Holder holds(folder.places, geteuid(), 1);
    Ticket ticket(folder.places, kGpu, kNeed);
    CHECK(ticket.may_take(kNeed));
    const Waiter later(folder.places, kOtherUser);
    CHECK_FALSE(ticket.may_take(kNeed));
    const auto begin = std::chrono::steady_clock::now();
    while (!ticket.may_take(kNeed)) usleep(50'000);
    CHECK(std::chrono::steady_clock::now() - begin >= Ticket::kLongest - std::chrono::milliseconds(100));
    CHECK(ticket.reserve(kNeed));
}

TEST_CASE("what another user has reserved delays a request by 5 s at most") {
    if (!can_become_another()) return;
    const Shared folder;
    const Waiter other(folder.places, kOtherUser, 2 * kNeed, true);
    Ticket ticket(folder.places, kGpu, kNeed);
    CHECK(ticket.may_take(3 * kNeed));
    CHECK_FALSE(ticket.may_take(2 * kNeed));
    CHECK_FALSE(ticket.reserve(2 * kNeed));
    while (!ticket.may_take(2 * kNeed)) usleep(50'000);
    CHECK(ticket.reserve(2 * kNeed));
}

TEST_CASE("other users neither see nor wait for a request that is not shown, which waits for theirs") {
    if (!can_become_another()) return;
    const Shared folder;
    const Waiter other(folder.places, kOtherUser);
    Ticket ticket(folder.places, kGpu, kNeed, Ticket::Among::all, false);
    CHECK_FALSE(ticket.may_take(kNeed));
    for (const fs::path &file : folder.files())
        CHECK((file.parent_path() == folder.dir / "own/curb") ==
              (file.filename().string().find("-" + std::to_string(getpid()) + "-") != std::string::npos));
    Ticket in_job(folder.places, kGpu, kNeed, Ticket::Among::user);
    CHECK_FALSE(in_job.may_take(kNeed));  // behind the first one of its own user
    CHECK(in_job.may_take(2 * kNeed));
}

TEST_CASE("other users' files that are no requests, or name processes of others, count for nothing") {
    if (!can_become_another()) return;
    const Shared folder;
    const auto other = curb::control::public_directory(folder.places, kOtherUser);
    const fs::path public_folder = folder.dir / "run/public" / std::to_string(kOtherUser);
    fs::create_directory(public_folder);
    REQUIRE(chown(public_folder.c_str(), kOtherUser, kOtherUser) == 0);
    REQUIRE(chmod(public_folder.c_str(), 0755) == 0);
    const std::string own = std::to_string(getpid()) + " " + std::to_string(name_of(getpid())->start);
    const std::string here = std::to_string(text_link::own_pid_namespace());
    int number = 0;
    for (const std::string &text :
         {std::string("4096"), "4096 " + own, "4096 " + own + " " + here + " more", "-1 " + own + " " + here,
          "4096 " + own + " " + here, "4096 4999999 1 " + here, "4096 0 0 " + here, std::string(3000, '1')}) {
        const std::string name = "ticket-" + kGpu + "-00000000000000000001-1-" + std::to_string(number++);
        REQUIRE(symlink(text.c_str(), (public_folder / name).c_str()) == 0);
        REQUIRE(lchown((public_folder / name).c_str(), kOtherUser, kOtherUser) == 0);
    }
    std::ofstream(public_folder / ("ticket-" + kGpu + "-1-1-1")).flush();
    Ticket ticket(folder.places, kGpu, kNeed);
    CHECK_FALSE(Ticket::others_wait(folder.places, kGpu));
    CHECK(ticket.may_take(kNeed));
    // A request of a process of another pid namespace is believed as long as its time is set.
    const std::string name = "ticket-" + kGpu + "-00000000000000000001-1-elsewhere";
    REQUIRE(symlink(("4096 1 1 " + here + "1").c_str(), (public_folder / name).c_str()) == 0);
    REQUIRE(lchown((public_folder / name).c_str(), kOtherUser, kOtherUser) == 0);
    CHECK(Ticket::others_wait(folder.places, kGpu));
}

TEST_CASE("without a usable folder every process may take at once") {
    Places nowhere;
    nowhere.xdg = nowhere.run_user = nowhere.tmp = "/proc/none";
    Ticket one(nowhere, kGpu, kNeed), other(nowhere, kGpu, kNeed);
    CHECK(one.may_take(kNeed));
    CHECK(other.may_take(kNeed));
    CHECK_FALSE(Ticket::others_wait(nowhere, kGpu));
}

TEST_CASE("of those that take turns the one goes first that was on the GPU for less time lately") {
    const Shared folder;
    const bool is_less = GENERATE(true, false);
    const auto theirs = is_less ? 20s : 40s;
    const TurnTaker other(folder.places, {.lately = theirs, .patience = 30s});
    Ticket ticket(folder.places, kGpu, kNeed, Ticket::Among::all, true, InTurns{.lately = 30s, .patience = 30s});
    CHECK(ticket.may_take(kNeed) != is_less);
    CHECK(ticket.may_take(2 * kNeed));
    // One that does not take turns goes by its time of arrival.
    Ticket plain(folder.places, kGpu, kNeed);
    CHECK_FALSE(plain.may_take(kNeed));
}

TEST_CASE(
    "a claim keeps what is free from all other processes, for as long as they have patience, and not from its own") {
    const Shared folder;
    const InTurns says{.lately = 0s, .patience = 500ms};
    SECTION("of another process") {
        const TurnTaker other(folder.places, says, true);
        Ticket ticket(folder.places, kGpu, kNeed, Ticket::Among::all, true, says);
        CHECK_FALSE(ticket.may_take(100 * kNeed));
        std::this_thread::sleep_for(600ms);
        CHECK(ticket.may_take(100 * kNeed));
    }
    SECTION("of the same process") {
        const TurnTaker earlier(folder.places, says);
        Ticket claim(folder.places, kGpu, kNeed, Ticket::Among::all, true, says);
        Ticket ticket(folder.places, kGpu, kNeed, Ticket::Among::all, true, InTurns{.lately = 1h, .patience = 1h});
        CHECK_FALSE(ticket.may_take(kNeed));
        claim.claim();
        CHECK(ticket.may_take(kNeed));
    }
}

TEST_CASE("the first request that does not fit is the one that the others leave for") {
    const Shared folder;
    CHECK_FALSE(Ticket::first_lacking(folder.places, kGpu, 0));
    const TurnTaker long_on_it(folder.places, {.lately = 60s, .patience = 1s});
    const TurnTaker first(folder.places, {.lately = 2s, .keeps_free = 5, .is_seldom_busy = true, .patience = 1s});
    const TurnTaker has_been_served(folder.places, {.patience = 1s}, true);
    CHECK_FALSE(Ticket::first_lacking(folder.places, kGpu, kNeed + 5));
    auto found = Ticket::first_lacking(folder.places, kGpu, kNeed);
    REQUIRE(found);
    CHECK(found->process.pid == first.pid());
    CHECK(found->missing == 5);
    CHECK(found->is_seldom_busy);
    CHECK(found->waits < 1min);
    found = Ticket::first_lacking(folder.places, kGpu, kNeed - 1);
    REQUIRE(found);
    CHECK(found->process.pid == first.pid());
    CHECK(found->missing == 6);
    // In its turn, a process wants more.
    Ticket claim(folder.places, kGpu, kNeed, Ticket::Among::all, true, InTurns{.lately = 1h, .patience = 1s});
    const Ticket wants_more(folder.places, kGpu, kNeed, Ticket::Among::all, true,
                            InTurns{.lately = 1h, .patience = 1s});
    claim.claim();
    found = Ticket::first_lacking(folder.places, kGpu, kNeed - 1);
    REQUIRE(found);
    CHECK(found->process.pid == getpid());
}

TEST_CASE("a request whose folder is deleted, as a logout does, is written anew with its place and its state") {
    const Shared folder;
    Ticket first(folder.places, kGpu, kNeed);
    REQUIRE(first.reserve(kNeed));
    const std::string name = folder.files().at(0).filename();
    Ticket second(folder.places, kGpu, kNeed);
    fs::remove_all(folder.files().at(0).parent_path());
    REQUIRE(folder.files().empty());
    std::this_thread::sleep_for(1100ms);  // a request is renewed once a second
    first.renew();
    REQUIRE(folder.files().size() == 1);
    CHECK(folder.files().at(0).filename() == name);
    CHECK_FALSE(second.may_take(kNeed));
}
