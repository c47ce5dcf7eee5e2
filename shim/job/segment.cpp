#include "job/segment.hpp"

#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

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

// Returns the id of the segment of this key, which it makes if there is none. Negative, with errno, if it cannot.
int find_or_make(std::int32_t key) noexcept {
    const int made = shared_memory(key, sizeof(Segment), IPC_CREAT | IPC_EXCL | 0600);
    if (made >= 0) remove_unused();
    return made < 0 && errno == EEXIST ? shared_memory(key, 0, 0600) : made;
}

// Returns why the segment is not the ledger of this job; null: it is.
const char *why_not_of(Segment &there, std::uint64_t job) noexcept {
    std::uint64_t layout = 0, name = 0;
    if (!there.layout.compare_exchange_strong(layout, Segment::kLayout) && layout != Segment::kLayout)
        return kOtherVersion;
    if (!there.job.compare_exchange_strong(name, job) && name != job)
        return "another job has the same key. Give the job another name (CURB_JOB)";
    return nullptr;
}

}  // namespace

std::string attach(std::int32_t key, std::uint64_t job, Segment *&attached, bool &again) {
    const int id = find_or_make(key);
    if (id < 0) {
        again = errno == ENOENT;
        if (errno == EACCES) return "it belongs to another user. ipcs -m lists it, its owner may remove it by ipcrm";
        return std::string("the system gives no shared memory for it: ") + std::strerror(errno);
    }
    shmid_ds found{};
    if (shared_memory_control(id, IPC_STAT, &found) != 0) {
        again = errno == EIDRM || errno == EINVAL;
        return std::strerror(errno);
    }
    if (!is_ours(found)) return "it belongs to another user, or others may write it";
    // What a version before an upgrade has left behind. A process that is about to attach it makes another one.
    const std::uint64_t left = found.shm_nattch == 0 ? layout_of(id, found) : 0;
    if (left != 0 && left != Segment::kLayout) {
        again = shared_memory_control(id, IPC_RMID, nullptr) == 0;
        return kOtherVersion;
    }
    if (found.shm_segsz != sizeof(Segment)) return kOtherVersion;
    void *at = attach_memory(id, 0);
    if (at == reinterpret_cast<void *>(-1)) {  // NOLINT(performance-no-int-to-ptr)
        again = errno == EIDRM || errno == EINVAL;
        return std::strerror(errno);
    }
    auto *const there = static_cast<Segment *>(at);
    if (const char *why = why_not_of(*there, job)) {
        detach_memory(at);
        return why;
    }
    attached = there;
    return {};
}

}  // namespace curb::shim::job
