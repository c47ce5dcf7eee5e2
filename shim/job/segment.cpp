#include "job/segment.hpp"

#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace curb::shim::job {
namespace {

// The system calls themselves: each function of the C library that the library names costs every program of the machine
// a look-up at its start, in a job or not.
int shared_memory(key_t key, std::size_t bytes, int flags) noexcept {
    return static_cast<int>(syscall(SYS_shmget, key, bytes, flags));
}
int shared_memory_control(int id, int command, void *out) noexcept {
    return static_cast<int>(syscall(SYS_shmctl, id, command, out));
}
void *attach_memory(int id, int flags) noexcept {
    return reinterpret_cast<void *>(syscall(SYS_shmat, id, nullptr, flags));  // NOLINT(performance-no-int-to-ptr)
}
void detach_memory(void *at) noexcept { syscall(SYS_shmdt, at); }

bool is_ours(const shmid_ds &found) noexcept {
    return found.shm_perm.uid == geteuid() && found.shm_perm.cuid == geteuid() && (found.shm_perm.mode & 077) == 0;
}

// Returns the layout of the ledger in a segment, whichever version of curb made it; 0 if the segment is not one.
std::uint64_t layout_of(int id, const shmid_ds &found) noexcept {
    if (found.shm_segsz < sizeof(Segment::layout)) return 0;
    void *at = attach_memory(id, SHM_RDONLY);
    if (at == reinterpret_cast<void *>(-1)) return 0;  // NOLINT(performance-no-int-to-ptr)
    const std::uint64_t layout = static_cast<Segment *>(at)->layout.load();
    detach_memory(at);
    return layout >> 8 == Segment::kLayout >> 8 ? layout : 0;
}

// Removes ledgers of this user that no process has had attached for a minute: the system has room for 4,096 segments.
void remove_unused() noexcept {
    constexpr std::time_t kUnused = 60;
    shm_info system{};
    const int last = shared_memory_control(0, SHM_INFO, &system);
    for (int index = 0; index <= last; ++index) {
        shmid_ds found{};
        const int id = shared_memory_control(index, SHM_STAT, &found);
        if (id < 0 || found.shm_nattch != 0 || found.shm_segsz != sizeof(Segment) || !is_ours(found)) continue;
        if (std::time(nullptr) - std::max(found.shm_ctime, found.shm_dtime) < kUnused) continue;
        if (layout_of(id, found) == Segment::kLayout) shared_memory_control(id, IPC_RMID, nullptr);
    }
}

constexpr const char *kOtherVersion =
    "a process of another version of curb made it. Let all processes of the job run under one version";

constexpr const char *kChanging = "other processes set it up at this moment";

// Returns how far this key is from a job's first one.
std::uint32_t distance(std::int32_t first, std::int32_t key) noexcept {
    return static_cast<std::uint32_t>(key) - static_cast<std::uint32_t>(first);
}

// A segment that this process has attached, until its end.
class Attached {
  public:
    explicit Attached(int id) noexcept : id_(id), at_(attach_memory(id, 0)) {}
    Attached(Attached &&other) noexcept : id_(other.id_), at_(std::exchange(other.at_, nowhere())) {}
    Attached &operator=(Attached &&other) noexcept {
        std::swap(id_, other.id_);
        std::swap(at_, other.at_);
        return *this;
    }
    ~Attached() {
        if (*this) detach_memory(at_);
    }
    explicit operator bool() const noexcept { return at_ != nowhere(); }
    Segment *operator->() const noexcept { return static_cast<Segment *>(at_); }
    [[nodiscard]] Segment *keep() noexcept { return static_cast<Segment *>(std::exchange(at_, nowhere())); }
    // False if it is a job's by now.
    [[nodiscard]] bool give_up() const noexcept {
        std::uint64_t before = 0;
        if (!(*this)->job.compare_exchange_strong(before, Segment::kGivenUp) && before != Segment::kGivenUp)
            return false;
        shared_memory_control(id_, IPC_RMID, nullptr);
        return true;
    }

  private:
    static void *nowhere() noexcept { return reinterpret_cast<void *>(-1); }  // NOLINT(performance-no-int-to-ptr)
    int id_;
    void *at_;
};

// What is there for one job. Each segment is open until a process sets its `job`. Two processes can make two segments,
// if another user gives up a key meanwhile. So a process sets it only once it has looked at all keys while the segment
// was there, and has given up the other open ones; both by a compare-and-swap. Of two processes that have made one
// each, the later one sees both.
class Look {
  public:
    Look(std::int32_t first, std::uint64_t job) : first_(first), job_(job) {
        shm_info system{};
        const int last = shared_memory_control(0, SHM_INFO, &system);
        for (int index = 0; index <= last; ++index) {
            shmid_ds found{};
            const int id = shared_memory_control(index, SHM_STAT, &found);
            if (id >= 0 && found.shm_perm.__key != IPC_PRIVATE && distance(first, found.shm_perm.__key) < kKeys)
                take(id, found);
        }
    }
    std::optional<Attached> of_job{};
    std::vector<std::pair<std::uint32_t, Attached>> open{};  // with the distance of the key from the first one
    bool other_version = false, changed = false;
    [[nodiscard]] bool is_empty() const { return !of_job && open.empty() && !other_version && !changed; }

    // Makes a segment under the first key that is free, unless it finds one of the job on the way. Returns why there is
    // none.
    std::string make();

  private:
    // True if the segment is the job's, or may become it.
    bool take(int id, const shmid_ds &found);

    std::int32_t first_;
    std::uint64_t job_;
};

bool Look::take(int id, const shmid_ds &found) {
    if (!is_ours(found)) return false;
    const std::uint64_t left = found.shm_nattch == 0 || found.shm_segsz != sizeof(Segment) ? layout_of(id, found) : 0;
    if (left != 0 && left != Segment::kLayout) {
        // What a version before an upgrade has left behind. A process that is about to attach it makes another one.
        if (found.shm_nattch == 0 && shared_memory_control(id, IPC_RMID, nullptr) == 0) return false;
        other_version = true;
        return true;
    }
    if (found.shm_segsz != sizeof(Segment)) return false;  // of another program
    Attached there(id);
    if (!there) {
        changed = true;  // it was removed just now
        return true;
    }
    std::uint64_t layout = 0;
    if (!there->layout.compare_exchange_strong(layout, Segment::kLayout) && layout != Segment::kLayout) {
        other_version = true;
        return true;
    }
    const std::uint64_t job = there->job.load();
    if (job == job_)
        of_job = std::move(there);
    else if (job == 0)
        open.emplace_back(distance(first_, found.shm_perm.__key), std::move(there));
    return job == job_ || job == 0;
}

// "4,090 by user 1001, 6 by user 0": who has the segments of this machine.
std::string holders_text() {
    constexpr int kStatAny = 15;  // SHM_STAT_ANY; glibc has it since 2.28, Linux since 4.17
    constexpr std::size_t kMost = 3;
    shm_info system{};
    std::map<uid_t, int> counts;
    const int last = shared_memory_control(0, SHM_INFO, &system);
    for (int index = 0; index <= last; ++index) {
        shmid_ds found{};
        if (shared_memory_control(index, kStatAny, &found) >= 0) ++counts[found.shm_perm.uid];
    }
    std::vector<std::pair<int, uid_t>> most;
    most.reserve(counts.size());
    for (const auto &[user, count] : counts) most.emplace_back(count, user);
    std::sort(most.rbegin(), most.rend());
    if (most.size() > kMost) most.resize(kMost);
    std::string out;
    for (const auto &[count, user] : most)
        out += (out.empty() ? ": " : ", ") + std::to_string(count) + " by user " + std::to_string(user);
    return std::to_string(system.used_ids) + " segments are in use" + out +
           ". ipcs -m lists them, root can remove them by ipcrm, and sysctl kernel.shmmni is their limit";
}

std::string refused(const char *call) {
    return std::string("the system refuses ") + call + " for it: " + std::strerror(errno);
}

// Returns an error if the filter of a sandbox refuses shmctl or shmat. Asks for the segment -1, which no process has,
// so that it makes none: without a filter both calls fail with EINVAL.
std::string refused_call() {
    shmid_ds none{};
    if (shared_memory_control(-1, IPC_STAT, &none) != 0 && errno != EINVAL && errno != EIDRM) return refused("shmctl");
    attach_memory(-1, 0);
    return errno != EINVAL && errno != EIDRM ? refused("shmat") : std::string();
}

std::string Look::make() {
    if (std::string why = refused_call(); !why.empty()) return why;
    for (std::uint32_t offset = 0; offset < kKeys; ++offset) {
        const auto key = static_cast<std::int32_t>(static_cast<std::uint32_t>(first_) + offset);
        if (key == IPC_PRIVATE) continue;
        const int made = shared_memory(key, sizeof(Segment), IPC_CREAT | IPC_EXCL | 0600);
        if (made < 0 && errno != EEXIST) {
            const int error = errno;
            return std::string("the system gives no shared memory for it: ") + std::strerror(error) +
                   (error == ENOSPC ? "; " + holders_text() : "");
        }
        if (made >= 0) remove_unused();
        // Another user's, or of another program: the next key.
        const int id = made >= 0 ? made : shared_memory(key, 0, 0600);
        shmid_ds found{};
        if (id < 0 || shared_memory_control(id, IPC_STAT, &found) != 0) {
            changed |= errno == ENOENT || errno == EIDRM || errno == EINVAL;
            if (changed) return {};
            if (made < 0) continue;
            std::string why = refused("shmctl");
            shared_memory_control(made, IPC_RMID, nullptr);
            return why;
        }
        if (take(id, found)) return {};
    }
    return "other users have all its keys";
}

// Begins the job in the lowest of its open segments, which `first` had seen too, and gives up the others. Returns why
// not; empty: it has.
std::string begin_in_lowest(const Look &first, Look &look, std::uint64_t job, Segment *&attached) {
    const auto by_key = [](const auto &one, const auto &other) { return one.first < other.first; };
    std::sort(look.open.begin(), look.open.end(), by_key);
    const auto has_seen = [&](std::uint32_t lowest) {
        return std::any_of(first.open.begin(), first.open.end(), [&](const auto &one) { return one.first == lowest; });
    };
    if (look.changed || look.open.empty() || !has_seen(look.open.front().first)) return kChanging;
    for (std::size_t i = look.open.size(); i-- > 1;)
        if (!look.open[i].second.give_up()) return kChanging;
    Attached &lowest = look.open.front().second;
    std::uint64_t before = 0;
    if (!lowest->job.compare_exchange_strong(before, job) && before != job) return kChanging;
    attached = lowest.keep();
    return {};
}

}  // namespace

std::string attach(std::int32_t key, std::uint64_t job, Segment *&attached, bool &again) {
    Look first(key, job);
    std::string why = first.is_empty() ? first.make() : "";
    if (!why.empty()) return why;
    std::optional<Look> second;
    if (!first.of_job && !first.other_version) second.emplace(key, job);
    // Where the system lists no segments, the first look has found the only one.
    Look &look = second && !second->is_empty() ? *second : first;
    if (look.other_version) return kOtherVersion;
    if (look.of_job)
        attached = look.of_job->keep();
    else
        why = begin_in_lowest(first, look, job, attached);
    again = !why.empty();
    return why;
}

}  // namespace curb::shim::job
