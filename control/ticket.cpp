// Runs in capped processes too.
#include "control/ticket.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include "control/board.hpp"
#include "control/text_link.hpp"
#include "policy/decisions/turns.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"

namespace curb::control {
namespace {

using policy::Bytes;
using text_link::Life;

constexpr std::size_t kStampDigits = 20;
constexpr std::size_t kMostOfUser = 1024;
constexpr std::string_view kTurns = "turns", kSeldom = "seldom", kReserved = "reserved", kClaims = "claims";
constexpr std::uint64_t kLongestNs = std::chrono::nanoseconds(Ticket::kLongest).count();

// Nanoseconds since boot: the same for all processes.
std::uint64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

constexpr std::string_view kTicket = "ticket-";  // how the names of all requests begin

// "ticket-GPU-8f3a…-": how the names of all requests for this GPU begin.
std::string beginning(const std::string &uuid) {
    std::string out = std::string(kTicket) + uuid + "-";
    std::replace(out.begin(), out.end(), '/', '_');
    return out;
}

// "ticket-GPU-…-00000000123456789012-4711-0": time, pid, number.
std::string name_of(const std::string &begins) {
    static std::atomic<unsigned> number{0};
    std::string stamp = std::to_string(now_ns());
    stamp.insert(0, kStampDigits - std::min(kStampDigits, stamp.size()), '0');
    return begins + stamp + "-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
}

// The first of the folder's names that begin so.
std::vector<std::string> names_of_requests(const Descriptor &folder, std::string_view begins) {
    std::size_t left = kMostOfUser;
    return names_in(folder, [&](const std::string &one) {
        return one.starts_with(begins) && !one.ends_with(text_link::kUnfinished) && left > 0 && left-- > 0;
    });
}

}  // namespace

// The request behind one file: "4194304 4711 123456 4026531836 turns 90000 0 seldom reserved": bytes, pid, start,
// pid namespace; of a process that takes turns, its milliseconds on the GPU lately and its keep_free; its state.
struct Ticket::Entry {
    std::string name;
    uid_t owner = 0;
    Bytes bytes = 0;
    ProcessName process{};
    std::uint64_t pid_namespace = 0;
    std::optional<std::chrono::milliseconds> lately{};  // nullopt: it does not take turns
    Bytes keeps_free = 0;
    bool is_seldom_busy = false;
    State state = State::waits;

    static std::optional<Entry> parse(std::string name, uid_t owner, std::string_view text);
    [[nodiscard]] std::string text() const;
    // Reads a file of a folder. Returns nullopt if it is no request that counts. Deletes it if it is of a dead process
    // of this user's.
    static std::optional<Entry> read(const Descriptor &folder, std::string name, uid_t owner);
    // The living requests of these processes whose names begin so. Deletes the files of this user's dead ones.
    static std::vector<Entry> all(const Places &places, const std::string &begins, Among among);
    // In the order of their names, which the time begins.
    [[nodiscard]] bool came_before(const Entry &other) const { return name < other.name; }
    [[nodiscard]] bool is_of_same_process(const Entry &other) const {
        return owner == other.owner && process == other.process && pid_namespace == other.pid_namespace;
    }
};

std::string Ticket::Entry::text() const {
    std::string out = std::to_string(bytes);
    const auto add = [&](std::string_view word) { out.append(" ").append(word); };
    add(std::to_string(process.pid));
    add(std::to_string(process.start));
    add(std::to_string(pid_namespace));
    if (lately) {
        add(kTurns);
        add(std::to_string(lately->count()));
        add(std::to_string(keeps_free));
    }
    if (is_seldom_busy) add(kSeldom);
    if (state == State::has_reserved) add(kReserved);
    if (state == State::claims) add(kClaims);
    return out;
}

std::optional<Ticket::Entry> Ticket::Entry::parse(std::string name, uid_t owner, std::string_view text) {
    Entry out{std::move(name), owner};
    const auto word = [&] {
        const std::string_view first = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), first.size() + 1));
        return first;
    };
    const auto takes = [&](std::string_view next) {
        const bool is_next = text.substr(0, text.find(' ')) == next;
        if (is_next) word();
        return is_next;
    };
    const auto bytes = policy::whole_number<Bytes>(word());
    const auto pid = policy::whole_number<int>(word());
    const auto start = policy::whole_number<std::uint64_t>(word());
    const auto pid_namespace = policy::whole_number<std::uint64_t>(word());
    if (!bytes || !pid || *pid <= 0 || !start || !pid_namespace) return std::nullopt;
    if (takes(kTurns)) {
        const auto lately = policy::whole_number<std::uint32_t>(word());
        const auto keeps_free = policy::whole_number<Bytes>(word());
        if (!lately || !keeps_free) return std::nullopt;
        out.lately = std::chrono::milliseconds(*lately);
        out.keeps_free = *keeps_free;
    }
    out.is_seldom_busy = takes(kSeldom);
    out.state = takes(kReserved) ? State::has_reserved : takes(kClaims) ? State::claims : State::waits;
    if (!text.empty()) return std::nullopt;
    out.bytes = *bytes;
    out.process = {*pid, *start};
    out.pid_namespace = *pid_namespace;
    return out;
}

std::optional<Ticket::Entry> Ticket::Entry::read(const Descriptor &folder, std::string name, uid_t owner) {
    const auto found = text_link::read(folder, name, owner);
    auto entry = found ? parse(std::move(name), owner, found->text) : std::nullopt;
    if (!entry) return std::nullopt;
    const Life life =
        text_link::life_of(entry->process, entry->pid_namespace, owner, found->age_ms, text_link::own_pid_namespace());
    if (life == Life::dead && owner == ::geteuid()) ::unlinkat(folder.number(), entry->name.c_str(), 0);
    // What is reserved is in use: its process may be within a long call of the driver.
    const bool is_in_use = entry->state == State::has_reserved && found->age_ms <= text_link::kDeadMs;
    if (life != Life::lives && !(life == Life::silent && is_in_use)) return std::nullopt;
    return entry;
}

std::vector<Ticket::Entry> Ticket::Entry::all(const Places &places, const std::string &begins, Among among) {
    std::vector<Folder> folders = folders_of(places, ::geteuid());
    if (among == Among::all)
        for (Folder &folder : public_folders(places)) folders.push_back(std::move(folder));
    std::vector<Entry> out;
    for (const Folder &folder : folders) {
        const auto opened = open_folder(folder, false);
        if (!opened) continue;
        for (std::string &name : names_of_requests(*opened, begins))
            if (auto entry = read(*opened, std::move(name), folder.owner)) out.push_back(*std::move(entry));
    }
    return out;
}

Ticket::Ticket(Places places, const std::string &uuid, Bytes bytes, Among among, bool shown,
               std::optional<InTurns> in_turns)
    : places_(std::move(places)),
      among_(among),
      begins_(beginning(uuid)),
      is_public_(among == Among::all && shown),
      bytes_(bytes),
      in_turns_(in_turns) {
    const auto process = control::name_of(::getpid());
    if (!process) return;
    process_ = *process;
    pid_namespace_ = text_link::own_pid_namespace();
    name_ = name_of(begins_);
    if (!write(State::waits)) path_.clear();
}

Ticket::Ticket(Ticket &&other) noexcept
    : places_(std::move(other.places_)),
      among_(other.among_),
      begins_(std::move(other.begins_)),
      name_(std::move(other.name_)),
      path_(std::exchange(other.path_, {})),
      is_public_(other.is_public_),
      bytes_(other.bytes_),
      in_turns_(other.in_turns_),
      state_(other.state_),
      process_(other.process_),
      pid_namespace_(other.pid_namespace_),
      renewed_ns_(other.renewed_ns_),
      held_back_since_ns_(other.held_back_since_ns_),
      claimed_since_ns_(other.claimed_since_ns_),
      holdings_(std::move(other.holdings_)) {}

Ticket::~Ticket() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

Ticket::Entry Ticket::own() const {
    Entry out{name_, ::geteuid(), bytes_, process_, pid_namespace_};
    if (!in_turns_) return out;
    out.lately = in_turns_->lately;
    out.keeps_free = in_turns_->keeps_free;
    out.is_seldom_busy = in_turns_->is_seldom_busy;
    return out;
}

bool Ticket::write(State state) {
    state_ = state;
    Entry now = own();
    now.state = state;
    const std::string text = now.text();
    renewed_ns_ = now_ns();
    if (!path_.empty() && text_link::write(path_, text).empty()) return true;
    // The first time, or its folder is gone: a logout deletes the user's.
    const auto folder = is_public_ ? public_directory(places_, ::geteuid()) : runtime_directory(places_, ::geteuid());
    if (!folder) return false;
    path_ = folder->path + "/" + name_;
    return text_link::write(path_, text).empty();
}

void Ticket::renew() noexcept try {
    constexpr std::uint64_t kAgainNs = 1'000'000'000;
    const std::uint64_t now = now_ns();
    if (path_.empty() || now - renewed_ns_ < kAgainNs) return;
    renewed_ns_ = now;
    if (!text_link::touch(path_)) write(state_);
} catch (const std::bad_alloc &) {
    // Out of host memory: it tries again in a second.
}

std::vector<Ticket::Entry> Ticket::others() const {
    std::vector<Entry> all = Entry::all(places_, begins_, among_);
    std::erase_if(all, [&](const Entry &one) { return one.name == name_ && one.owner == ::geteuid(); });
    return all;
}

void Ticket::Holdings::read(const Places &places, const std::string &begins) {
    constexpr std::uint64_t kAgainNs = 500'000'000;
    const std::uint64_t now = now_ns();
    if (read_ns_ != 0 && now - read_ns_ < kAgainNs) return;
    all_.clear();
    for (const board::Posted &process : board::read_all(places))
        for (const board::Gpu &gpu : process.entry.gpus) {
            if (beginning(gpu.uuid) != begins) continue;
            const auto known = std::find_if(all_.begin(), all_.end(),
                                            [&](const Holding &holding) { return holding.user == process.owner; });
            Holding &holding = known != all_.end() ? *known : all_.emplace_back(Holding{process.owner});
            // A user who hides it counts as one who holds all, and always has.
            holding.bytes = policy::added(holding.bytes, gpu.held.value_or(policy::kUnbounded));
            holding.lately += gpu.held ? gpu.lately : std::chrono::hours(24);
        }
    read_ns_ = now_ns();
}

Ticket::Holdings::Holding Ticket::Holdings::of(uid_t user) const {
    const auto known =
        std::find_if(all_.begin(), all_.end(), [&](const Holding &holding) { return holding.user == user; });
    return known == all_.end() ? Holding{user} : *known;
}

bool Ticket::Holdings::goes_first(const Places &places, const std::string &begins, const Entry &a, const Entry &b) {
    const bool take_turns = a.lately && b.lately;
    const auto is_less = [](std::chrono::milliseconds less, std::chrono::milliseconds more) {
        return less + policy::turns::kAlike <= more;
    };
    if (a.owner != b.owner) {
        read(places, begins);
        const Holding of_a = of(a.owner), of_b = of(b.owner);
        if (take_turns && (is_less(of_a.lately, of_b.lately) || is_less(of_b.lately, of_a.lately)))
            return of_a.lately < of_b.lately;
        if (!take_turns && of_a.bytes != of_b.bytes) return of_a.bytes < of_b.bytes;
    }
    if (take_turns && is_less(*a.lately, *b.lately)) return true;
    if (take_turns && is_less(*b.lately, *a.lately)) return false;
    return a.came_before(b);
}

// Returns whether others have delayed this request for longer than they may.
bool Ticket::is_held_back_for_long(bool is_held_back) noexcept {
    const std::uint64_t now = now_ns();
    if (!is_held_back) held_back_since_ns_ = 0;
    if (is_held_back && held_back_since_ns_ == 0) held_back_since_ns_ = now;
    return is_held_back && now - held_back_since_ns_ >= kLongestNs;
}

// True while this request leaves what is free to a process whose turn it is. Not for ever: others may lie.
bool Ticket::heeds_claim(const std::vector<Entry> &all) noexcept {
    const std::uint64_t now = now_ns();
    const std::chrono::nanoseconds most = in_turns_ ? in_turns_->patience : std::chrono::milliseconds(kLongest);
    if (std::none_of(all.begin(), all.end(), [](const Entry &one) { return one.state == State::claims; })) {
        claimed_since_ns_ = 0;
        return false;
    }
    if (claimed_since_ns_ == 0) claimed_since_ns_ = now;
    return now - claimed_since_ns_ < static_cast<std::uint64_t>(most.count());
}

namespace {

// Returns `room` less the bytes that requests of `whom` have reserved.
template <class Entries, class Reserves>
Bytes unreserved(const Entries &all, Bytes room, Reserves reserves) {
    for (const auto &one : all)
        if (reserves(one)) room -= std::min(room, one.bytes);
    return room;
}

}  // namespace

bool Ticket::may_take(Bytes room) {
    if (path_.empty()) return true;
    renew();
    std::vector<Entry> all = others();
    const Entry own = this->own();
    const auto has_reserved = [](const Entry &one) { return one.state == State::has_reserved; };
    const Bytes need = std::min(room, bytes_);
    if (unreserved(all, room, [&](const Entry &one) { return one.owner == own.owner && has_reserved(one); }) < need)
        return false;
    if (std::any_of(all.begin(), all.end(),
                    [&](const Entry &one) { return one.state == State::claims && one.is_of_same_process(own); }))
        return true;
    if (heeds_claim(all)) return false;
    const auto is_first = [&](const Entry &one) {
        return one.state == State::waits && holdings_.goes_first(places_, begins_, one, own);
    };
    // Room that comes between this call and the attempt is for those that go first.
    if (bytes_ > room) return std::none_of(all.begin(), all.end(), is_first);
    // What is left when they have what they want.
    Bytes left = unreserved(all, room, has_reserved);
    for (const Entry &one : all)
        if (one.bytes <= left && is_first(one)) left -= one.bytes;
    const bool is_held_back = left < need;
    return is_held_back_for_long(is_held_back) || !is_held_back;
}

bool Ticket::reserve(Bytes room) {
    if (path_.empty()) return true;
    write(State::has_reserved);
    // Checked only now: of two that reserve at once, at least one finds the other here.
    const std::vector<Entry> all = others();
    const bool is_own_only = held_back_since_ns_ != 0 && now_ns() - held_back_since_ns_ >= kLongestNs;
    const Bytes left = unreserved(all, room, [&](const Entry &one) {
        return one.state == State::has_reserved && (!is_own_only || one.owner == ::geteuid());
    });
    const bool fits = bytes_ <= left;
    if (!fits) give_up_reservation();
    return fits;
}

void Ticket::give_up_reservation() {
    if (!path_.empty()) write(State::waits);
}

void Ticket::claim() {
    if (!path_.empty()) write(State::claims);
}

std::optional<Ticket::Lacking> Ticket::first_lacking(const Places &places, const std::string &uuid, Bytes room) {
    const std::string begins = beginning(uuid);
    const std::vector<Entry> all = Entry::all(places, begins, Among::all);
    const auto has_claim = [&](const Entry &one) {
        return std::any_of(all.begin(), all.end(), [&](const Entry &other) {
            return other.state == State::claims && other.is_of_same_process(one);
        });
    };
    Holdings holdings;
    const auto goes_first = [&](const Entry &a, const Entry &b) {
        return has_claim(a) != has_claim(b) ? has_claim(a) : holdings.goes_first(places, begins, a, b);
    };
    const Entry *first = nullptr;
    for (const Entry &one : all)
        if (one.state == State::waits && policy::added(one.bytes, one.keeps_free) > room &&
            (!first || goes_first(one, *first)))
            first = &one;
    if (!first) return std::nullopt;
    const auto stamp = policy::whole_number<std::uint64_t>(
        std::string_view(first->name).substr(std::min(begins.size(), first->name.size()), kStampDigits));
    const std::uint64_t now = now_ns(), began = std::min(now, stamp.value_or(now));
    return Lacking{first->owner,
                   first->process,
                   first->pid_namespace,
                   policy::added(first->bytes, first->keeps_free) - room,
                   first->is_seldom_busy,
                   std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(now - began))};
}

void Ticket::remove_stale(const Descriptor &folder, bool (*goes_on)() noexcept) {
    for (std::string &name : names_of_requests(folder, kTicket)) {
        if (!goes_on()) return;
        static_cast<void>(Entry::read(folder, std::move(name), ::geteuid()));
    }
}

bool Ticket::others_wait(const Places &places, const std::string &uuid, Among among) {
    const std::vector<Entry> all = Entry::all(places, beginning(uuid), among);
    const std::uint64_t own = text_link::own_pid_namespace();
    return std::any_of(all.begin(), all.end(), [&](const Entry &one) {
        return one.owner != ::geteuid() || one.process.pid != ::getpid() || one.pid_namespace != own;
    });
}

}  // namespace curb::control
