// Runs in capped processes too.
#include "control/ticket.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "control/board.hpp"
#include "control/text_link.hpp"
#include "policy/values/words.hpp"

namespace curb::control {
namespace {

using policy::Bytes;
using text_link::Life;

constexpr std::size_t kStampDigits = 20;
constexpr std::size_t kMostOfUser = 1024;
constexpr std::string_view kReserved = " reserved";  // ends the text of a request that has reserved its bytes
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

}  // namespace

// The request behind one file: "4194304 4711 123456 4026531836 reserved": bytes, pid, start, pid namespace.
struct Ticket::Entry {
    std::string name;
    uid_t owner = 0;
    Bytes bytes = 0;
    ProcessName process{};
    std::uint64_t pid_namespace = 0;
    bool has_reserved = false;

    static std::optional<Entry> parse(std::string name, uid_t owner, std::string_view text);
    // The living requests of these processes whose names begin so. Deletes the files of this user's dead ones.
    static std::vector<Entry> all(const Places &places, const std::string &begins, Among among);
    // In the order of their names, which the time begins.
    [[nodiscard]] bool came_before(const Entry &other) const { return name < other.name; }
};

std::optional<Ticket::Entry> Ticket::Entry::parse(std::string name, uid_t owner, std::string_view text) {
    Entry out{std::move(name), owner};
    out.has_reserved = text.ends_with(kReserved);
    if (out.has_reserved) text.remove_suffix(kReserved.size());
    const auto word = [&] {
        const std::string_view first = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), first.size() + 1));
        return first;
    };
    const auto bytes = policy::whole_number<Bytes>(word());
    const auto pid = policy::whole_number<int>(word());
    const auto start = policy::whole_number<std::uint64_t>(word());
    const auto pid_namespace = policy::whole_number<std::uint64_t>(word());
    if (!bytes || !pid || *pid <= 0 || !start || !pid_namespace || !text.empty()) return std::nullopt;
    out.bytes = *bytes;
    out.process = {*pid, *start};
    out.pid_namespace = *pid_namespace;
    return out;
}

std::vector<Ticket::Entry> Ticket::Entry::all(const Places &places, const std::string &begins, Among among) {
    const uid_t own = ::geteuid();
    const std::uint64_t pid_namespace = text_link::own_pid_namespace();
    std::vector<Folder> folders = folders_of(places, own);
    if (among == Among::all)
        for (Folder &folder : public_folders(places)) folders.push_back(std::move(folder));
    std::vector<Entry> out;
    for (const Folder &folder : folders) {
        const auto opened = open_folder(folder, false);
        if (!opened) continue;
        std::size_t left = kMostOfUser;
        for (const std::string &name : names_in(*opened, [&](const std::string &one) {
                 return one.starts_with(begins) && !one.ends_with(text_link::kUnfinished) && left > 0 && left-- > 0;
             })) {
            const auto found = text_link::read(*opened, name, folder.owner);
            auto entry = found ? parse(name, folder.owner, found->text) : std::nullopt;
            if (!entry) continue;
            const Life life =
                text_link::life_of(entry->process, entry->pid_namespace, folder.owner, found->age_ms, pid_namespace);
            if (life == Life::dead && folder.owner == own) ::unlinkat(opened->number(), name.c_str(), 0);
            // What is reserved is in use: its process may be within a long call of the driver.
            const bool is_in_use = entry->has_reserved && found->age_ms <= text_link::kDeadMs;
            if (life == Life::lives || (life == Life::silent && is_in_use)) out.push_back(*std::move(entry));
        }
    }
    return out;
}

Ticket::Ticket(Places places, const std::string &uuid, Bytes bytes, Among among, bool shown)
    : places_(std::move(places)), among_(among), begins_(beginning(uuid)), bytes_(bytes) {
    const uid_t user = ::geteuid();
    const bool is_public = among == Among::all && shown;
    const auto folder = is_public ? public_directory(places_, user) : runtime_directory(places_, user);
    if (!folder) return;
    pid_namespace_ = text_link::own_pid_namespace();
    name_ = name_of(begins_);
    path_ = folder->path + "/" + name_;
    if (!write(false)) path_.clear();
}

Ticket::Ticket(Ticket &&other) noexcept
    : places_(std::move(other.places_)),
      among_(other.among_),
      begins_(std::move(other.begins_)),
      name_(std::move(other.name_)),
      path_(std::exchange(other.path_, {})),
      bytes_(other.bytes_),
      pid_namespace_(other.pid_namespace_),
      renewed_ns_(other.renewed_ns_),
      held_back_since_ns_(other.held_back_since_ns_),
      holdings_(std::move(other.holdings_)),
      holdings_read_ns_(other.holdings_read_ns_) {}

Ticket::~Ticket() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

bool Ticket::write(bool reserved) {
    const auto self = control::name_of(::getpid());
    const std::string text = std::to_string(bytes_) + " " + std::to_string(::getpid()) + " " +
                             std::to_string(self ? self->start : 0) + " " + std::to_string(pid_namespace_) +
                             std::string(reserved ? kReserved : "");
    renewed_ns_ = now_ns();
    return text_link::write(path_, text).empty();
}

void Ticket::renew() noexcept {
    constexpr std::uint64_t kAgainNs = 1'000'000'000;
    const std::uint64_t now = now_ns();
    if (path_.empty() || now - renewed_ns_ < kAgainNs) return;
    renewed_ns_ = now;
    text_link::touch(path_);
}

std::vector<Ticket::Entry> Ticket::others() const {
    std::vector<Entry> all = Entry::all(places_, begins_, among_);
    std::erase_if(all, [&](const Entry &one) { return one.name == name_ && one.owner == ::geteuid(); });
    return all;
}

// True if the other request goes before this one. Reads the board, if the other one is another user's.
bool Ticket::goes_first(const Entry &other, const Entry &own) {
    if (other.owner == own.owner) return other.came_before(own);
    constexpr std::uint64_t kAgainNs = 500'000'000;
    const std::uint64_t now = now_ns();
    if (holdings_read_ns_ == 0 || now - holdings_read_ns_ >= kAgainNs) {
        holdings_.clear();
        for (const board::Posted &process : board::read_all(places_))
            for (const board::Gpu &gpu : process.entry.gpus) {
                if (beginning(gpu.uuid) != begins_) continue;
                const auto known = std::find_if(holdings_.begin(), holdings_.end(),
                                                [&](const Holding &holding) { return holding.user == process.owner; });
                Holding &holding = known != holdings_.end() ? *known : holdings_.emplace_back(Holding{process.owner});
                // A user who hides it counts as one who holds all.
                constexpr Bytes kAll = std::numeric_limits<Bytes>::max();
                const Bytes held = gpu.held.value_or(kAll);
                holding.bytes = held > kAll - holding.bytes ? kAll : holding.bytes + held;
            }
        holdings_read_ns_ = now_ns();
    }
    const auto held_by = [&](uid_t user) {
        const auto known = std::find_if(holdings_.begin(), holdings_.end(),
                                        [&](const Holding &holding) { return holding.user == user; });
        return known == holdings_.end() ? 0 : known->bytes;
    };
    const Bytes theirs = held_by(other.owner), ours = held_by(own.owner);
    return theirs != ours ? theirs < ours : other.came_before(own);
}

// Returns whether others have delayed this request for longer than they may.
bool Ticket::is_held_back_for_long(bool is_held_back) noexcept {
    const std::uint64_t now = now_ns();
    if (!is_held_back) held_back_since_ns_ = 0;
    if (is_held_back && held_back_since_ns_ == 0) held_back_since_ns_ = now;
    return is_held_back && now - held_back_since_ns_ >= kLongestNs;
}

namespace {

// Returns `room` less the bytes that requests of `whom` have reserved.
template <class Entries, class Whom>
Bytes unreserved(const Entries &all, Bytes room, Whom whom) {
    for (const auto &one : all)
        if (one.has_reserved && whom(one)) room -= std::min(room, one.bytes);
    return room;
}

}  // namespace

bool Ticket::may_take(Bytes room) {
    if (path_.empty()) return true;
    renew();
    const std::vector<Entry> all = others();
    const Entry own{name_, ::geteuid(), bytes_};
    const Bytes need = std::min(room, bytes_);
    if (unreserved(all, room, [&](const Entry &one) { return one.owner == own.owner; }) < need) return false;
    const auto is_first = [&](const Entry &one) { return !one.has_reserved && goes_first(one, own); };
    // Room that comes between this call and the attempt is for those that go first.
    if (bytes_ > room) return std::none_of(all.begin(), all.end(), is_first);
    // What is left when they have what they want.
    Bytes left = unreserved(all, room, [](const Entry &) { return true; });
    for (const Entry &one : all)
        if (one.bytes <= left && is_first(one)) left -= one.bytes;
    const bool is_held_back = left < need;
    return is_held_back_for_long(is_held_back) || !is_held_back;
}

bool Ticket::reserve(Bytes room) {
    if (path_.empty()) return true;
    write(true);
    // Checked only now: of two that reserve at once, at least one finds the other here.
    const std::vector<Entry> all = others();
    const bool is_own_only = held_back_since_ns_ != 0 && now_ns() - held_back_since_ns_ >= kLongestNs;
    const Bytes left =
        unreserved(all, room, [&](const Entry &one) { return !is_own_only || one.owner == ::geteuid(); });
    const bool fits = bytes_ <= left;
    if (!fits) give_up_reservation();
    return fits;
}

void Ticket::give_up_reservation() {
    if (!path_.empty()) write(false);
}

void Ticket::remove_stale(const Places &places) {
    static_cast<void>(Entry::all(places, std::string(kTicket), Among::all));
}

bool Ticket::others_wait(const Places &places, const std::string &uuid, Among among) {
    const std::vector<Entry> all = Entry::all(places, beginning(uuid), among);
    const std::uint64_t own = text_link::own_pid_namespace();
    return std::any_of(all.begin(), all.end(), [&](const Entry &one) {
        return one.owner != ::geteuid() || one.process.pid != ::getpid() || one.pid_namespace != own;
    });
}

}  // namespace curb::control
