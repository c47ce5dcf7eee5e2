#include "machine.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>

#include "environment.hpp"
#include "latency.hpp"
#include "meminfo.hpp"

namespace curb::sim {

namespace {

constexpr uint64_t kMagic = 0x3730'6d69'7362'7275;  // changes with the layout of Books
constexpr const char *kNotOurs = "not the state of a simulated machine of this version; remove it";
constexpr int kManaged = static_cast<int>(Use::managed);

// A program that has closed its standard streams may still write to them, so our file must not have their numbers.
int above_standard(int file) {
    if (file < 0 || file > STDERR_FILENO) return file;
    const int above = ::fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    ::close(file);
    return above;
}

// Returns the clock ticks by which /proc shows starts too late in this process's namespace of time.
int64_t ticks_ahead() {
    static const int64_t value = [] {
        long long seconds = 0;
        std::FILE *file = std::fopen("/proc/self/timens_offsets", "re");
        for (char line[128]; file && std::fgets(line, sizeof line, file);) std::sscanf(line, "boottime %lld", &seconds);
        if (file) std::fclose(file);
        return seconds * ::sysconf(_SC_CLK_TCK);
    }();
    return value;
}

// Returns a path in the /proc that shows the machine's processes: CURB_SIM_PROC, else /proc.
std::string proc_path(const std::string &rest) {
    static const char *const set = environment("CURB_SIM_PROC");
    return (*set == '\0' ? "/proc" : set) + ("/" + rest);
}
bool exists(int pid) {
    if (*environment("CURB_SIM_PROC") == '\0') return ::kill(pid, 0) == 0 || errno != ESRCH;
    return ::access(proc_path(std::to_string(pid)).c_str(), F_OK) == 0;
}

// Returns field 22 of /proc/PID/stat, the start in clock ticks since boot, which differs between processes with the
// same pid. 0 if there is no such process, or only a zombie (its GPU memory is gone by then).
uint64_t start_time(int pid) {
    const int file = ::open(proc_path(std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    char text[1024];
    const ssize_t length = ::read(file, text, sizeof text - 1);
    ::close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *field = std::strrchr(text, ')');  // the name before it may hold spaces and parentheses
    if (!field || field[1] != ' ') return 0;
    ++field;  // before field 3
    const char state = field[1];
    const auto skip = [&](int fields) {
        for (; field && fields > 0; --fields) field = std::strchr(field + 1, ' ');
    };
    skip(17);
    // A process whose first thread has left is a zombie while other threads live.
    const long threads = field ? std::strtol(field, nullptr, 10) : 0;
    if (state == 'X' || (state == 'Z' && threads <= 1)) return 0;
    skip(2);
    return field ? std::strtoull(field, nullptr, 10) - static_cast<uint64_t>(ticks_ahead()) : 0;
}

// Stays on a device when a process is moved out (docs/results/driver.md).
constexpr uint64_t kLeftBehind = 4 * kMiB;

constexpr uint64_t kMovedAtOnce = 256 * kMiB;

constexpr uint64_t kBetweenLooksMs = 5;

uint64_t now_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

constexpr auto kNextLook = std::chrono::milliseconds(1);

}  // namespace

int own_pid() {
    if (*environment("CURB_SIM_PROC") == '\0') return ::getpid();
    char pid[16] = {};
    return ::readlink(proc_path("self").c_str(), pid, sizeof pid - 1) > 0 ? std::atoi(pid) : 0;
}

struct Machine::Books {
    struct Process {
        int32_t pid;  // 0: the slot is free
        uint64_t start;
        uint32_t state;  // a ProcessState; atomic, as is the next
        uint32_t calls;  // of the driver, in progress
        Holding devices[kMaxDevices];
        uint64_t high[kMaxDevices];
        Holding moved_out[kMaxDevices];  // to the host's memory

        std::atomic_ref<uint32_t> atomic_state() { return std::atomic_ref(state); }
        std::atomic_ref<uint32_t> atomic_calls() { return std::atomic_ref(calls); }

        void note_high(int device) { high[device] = std::max(high[device], devices[device].all()); }
    };

    // Memory that other processes than its maker may have open.
    struct SharedMemory {
        uint64_t id;  // 0: none
        int32_t device;
        int32_t maker;  // its slot; kGone
        uint32_t use;
        uint64_t bytes;
        std::array<uint64_t, kMaxProcesses / 64> users;  // bits, by slot

        static constexpr int32_t kGone = -1;
        static uint64_t bit(int slot) { return uint64_t{1} << (slot % 64); }
        uint64_t &word(int slot) { return users[static_cast<size_t>(slot) / 64]; }
        bool is_user(int slot) { return (word(slot) & bit(slot)) != 0; }
        int count_users() const {
            int out = 0;
            for (const uint64_t some : users) out += std::popcount(some);
            return out;
        }
        // Its maker has ended or freed it, and others have it.
        bool is_left() const { return id != 0 && maker == kGone; }
    };

    uint64_t magic;
    pthread_mutex_t mutex;
    int32_t device_count;
    uint64_t total[kMaxDevices];
    uint64_t firm[kMaxDevices];  // taken by processes, managed memory left out
    uint64_t overlaps[kMaxDevices];
    Machine::Clock::time_point engines_free_at[kMaxDevices][2];  // those that copy to the device, and to the host
    uint64_t high[kMaxDevices];     // the most that living processes have held at once, if CURB_SIM_HIGH asks for it
    uint64_t looked_ms;             // when /proc was last searched for dead processes; atomic
    uint64_t managed[kMaxDevices];  // may exceed the device: the rest of it lives on the host
    Process processes[kMaxProcesses];
    SharedMemory shared[kMaxShared];

    void initialise(const Wanted &wanted) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&mutex, &attributes);
        pthread_mutexattr_destroy(&attributes);

        device_count = std::max(wanted.gpus, 1);
        for (uint64_t &bytes : total) bytes = wanted.memory ? wanted.memory : 80 * kGiB;
        magic = kMagic;
    }

    // Under the lock, so that no peak is missed. Leaves out dead processes that reap() has not found yet.
    void note_device_high(int device) {
        if (firm[device] + managed[device] <= high[device]) return;
        uint64_t living = 0;
        for (const Process &process : processes)
            if (lives(process)) living += process.devices[device].all();
        for (SharedMemory &one : shared) {
            if (one.id == 0 || one.device != device || (one.maker >= 0 && lives(processes[one.maker]))) continue;
            bool is_used = false;
            for (int slot = 0; slot < kMaxProcesses; ++slot)
                is_used = is_used || (one.is_user(slot) && lives(processes[slot]));
            if (is_used) living += one.bytes;
        }
        high[device] = std::max(high[device], living);
    }
    static bool lives(const Process &process) { return process.pid && start_time(process.pid) == process.start; }

    [[nodiscard]] DeviceMemory memory(int device) const {
        return {total[device], firm[device] + std::min(managed[device], total[device] - firm[device])};
    }
    // After each change: the GPU's memory is the host's.
    void show_in_meminfo() const {
        static char *const meminfo = Meminfo::map();
        if (meminfo) Meminfo::write(meminfo, total[0], memory(0).free());
    }

    // Sums up the processes again: one may have died between changing its own figure and the sum.
    void add_up() {
        for (int device = 0; device < kMaxDevices; ++device) {
            firm[device] = managed[device] = 0;
            for (const Process &process : processes) {
                firm[device] += process.devices[device].held();
                managed[device] += process.devices[device].bytes[kManaged];
            }
        }
        for (const SharedMemory &one : shared)
            if (one.is_left()) firm[one.device] += one.bytes;
    }

    void forget(Process &process) {
        const int slot = static_cast<int>(&process - processes);
        process = {};
        for (SharedMemory &one : shared) {
            if (one.id == 0) continue;
            one.word(slot) &= ~SharedMemory::bit(slot);
            if (one.maker == slot) one.maker = SharedMemory::kGone;
            end_if_unused(one);
        }
        add_up();
    }

    SharedMemory *find_shared(uint64_t id) {
        const auto found =
            std::find_if(std::begin(shared), std::end(shared), [=](const SharedMemory &one) { return one.id == id; });
        return found == std::end(shared) ? nullptr : found;
    }
    // True if nothing of it is left.
    static bool end_if_unused(SharedMemory &one) {
        if (one.maker != SharedMemory::kGone) return false;
        if (one.count_users() != 0 && !environment_is("CURB_SIM_SHARED", "ends")) return false;
        one = {};
        return true;
    }
    // Returns the memory on this device that NVML counts for the only process that still has it open.
    std::vector<SharedMemory *> left_to_one(int device) {
        std::vector<SharedMemory *> out;
        if (environment_is("CURB_SIM_SHARED", "uncounted")) return out;
        for (SharedMemory &one : shared)
            if (one.is_left() && one.device == device && one.count_users() == 1 &&
                one.use != static_cast<uint32_t>(Use::pools))  // docs/results/driver.md
                out.push_back(&one);
        return out;
    }
    // Returns what a process holds by NVML's figure. `left`: of left_to_one().
    Holding holding_of(int slot, int device, const std::vector<SharedMemory *> &left) {
        Holding out = processes[slot].devices[device];
        for (SharedMemory *one : left)
            if (one->is_user(slot)) out.bytes[one->use] += one->bytes;
        return out;
    }

    Process *find(int pid) {
        if (pid <= 0) return nullptr;
        for (Process &process : processes)
            if (process.pid == pid) return &process;
        return nullptr;
    }
};

class Machine::Lock {
  public:
    explicit Lock(Books *books) : books_(books) {
        if (pthread_mutex_lock(&books_->mutex) == EOWNERDEAD) {
            books_->add_up();
            pthread_mutex_consistent(&books_->mutex);
        }
    }
    ~Lock() {
        books_->show_in_meminfo();
        pthread_mutex_unlock(&books_->mutex);
    }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;

  private:
    Books *books_;
};

const char *use_name(Use use) {
    static constexpr const char *kNames[kUses] = {"context", "plain",  "pools",   "vmm",
                                                  "arrays",  "graphs", "modules", "managed"};
    return kNames[static_cast<int>(use)];
}

bool Machine::Wanted::read_environment() {
    const std::string gpu_text = environment("CURB_SIM_GPUS"), memory_text = environment("CURB_SIM_MEMORY");
    if (!gpu_text.empty()) {
        const bool is_number = gpu_text.size() <= 2 && gpu_text.find_first_not_of("0123456789") == std::string::npos;
        gpus = is_number ? std::stoi(gpu_text) : 0;
        if (gpus < 1 || gpus > kMaxDevices) {
            std::fprintf(stderr, "curb sim: CURB_SIM_GPUS=%s: write a number from 1 to %d\n", gpu_text.c_str(),
                         kMaxDevices);
            return false;
        }
    }
    if (!memory_text.empty()) {
        constexpr std::size_t kLongest = 10;  // so that the product stays far below 2^64
        memory = memory_text.size() <= kLongest && memory_text.ends_with("iB") ? parse_size(memory_text) : 0;
        if (memory == 0) {
            std::fprintf(stderr, "curb sim: CURB_SIM_MEMORY=%s: write a number and KiB, MiB or GiB, as in 80GiB\n",
                         memory_text.c_str());
            return false;
        }
    }
    return true;
}

uint64_t parse_size(const std::string &text) {
    char *unit = nullptr;
    const uint64_t number = std::strtoull(text.c_str(), &unit, 10);
    const std::string name = unit;
    if (text.empty() || text[0] < '0' || text[0] > '9') return 0;
    if (name.empty()) return number;
    if (name == "KiB") return number * kKiB;
    if (name == "MiB") return number * kMiB;
    if (name == "GiB") return number * kGiB;
    return 0;
}

std::unique_ptr<Machine> Machine::open(const std::string &state_file, bool may_create) {
    const auto refuse = [&](const char *what) {
        std::fprintf(stderr, "curb sim: %s: %s\n", state_file.c_str(), what);
        return nullptr;
    };
    Wanted wanted;
    if (may_create && !wanted.read_environment()) return nullptr;
    int file = -1;
    if (!state_file.empty()) {
        file = above_standard(::open(state_file.c_str(), O_RDWR | O_CLOEXEC | (may_create ? O_CREAT : 0), 0666));
        if (file < 0) return refuse(std::strerror(errno));
        // Only for initialisation: a second process must not find half a machine.
        ::flock(file, LOCK_EX);
        struct stat status {};
        ::fstat(file, &status);
        if (status.st_size == 0 && may_create) {
            // Not ftruncate(): on a full disk the first use of a page would end the process by SIGBUS.
            if (const int error = ::posix_fallocate(file, 0, sizeof(Books)); error != 0) {
                ::close(file);
                return refuse(std::strerror(error));
            }
            status.st_size = sizeof(Books);
        }
        if (status.st_size != sizeof(Books)) {
            ::close(file);
            return refuse(kNotOurs);
        }
    }
    void *address = ::mmap(nullptr, sizeof(Books), PROT_READ | PROT_WRITE,
                           file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (address == MAP_FAILED) {
        if (file >= 0) ::close(file);
        return refuse(std::strerror(errno));
    }
    auto *books = static_cast<Books *>(address);
    if (books->magic == 0) books->initialise(wanted);
    const bool usable = books->magic == kMagic;
    const bool has_other_gpus = wanted.gpus != 0 && wanted.gpus != books->device_count;
    const bool has_other_memory = wanted.memory != 0 && wanted.memory != books->total[0];
    if (file >= 0) ::flock(file, LOCK_UN);
    std::unique_ptr<Machine> machine(new Machine(books, file));
    machine->looks_closely_ = !may_create;
    machine->notes_high_ = *environment("CURB_SIM_HIGH") != '\0';
    if (!usable) return refuse(kNotOurs);
    if (is_unified() && books->device_count != 1) return refuse("CURB_SIM_UNIFIED is for a machine of one GPU");
    if (has_other_gpus) return refuse("CURB_SIM_GPUS says another number than this machine has; remove the file");
    if (has_other_memory) return refuse("CURB_SIM_MEMORY says another size than this machine has; remove the file");
    return machine;
}

std::unique_ptr<Machine> Machine::open_from_environment() { return open(environment("CURB_SIM_STATE")); }

Machine::~Machine() {
    ::munmap(books_, sizeof(Books));
    if (file_ >= 0) ::close(file_);
}

int Machine::device_count() const { return books_->device_count; }

bool Machine::join() {
    const int pid = own_pid();
    const uint64_t start = start_time(pid);
    reap(Look::closely);
    const Lock lock(books_);
    Books::Process *slot = nullptr;
    for (Books::Process &process : books_->processes) {
        // The same process before exec: that image's memory is gone.
        const bool same = process.pid == pid && process.start == start;
        if (same || (process.pid == 0 && !slot)) slot = &process;
        if (same) break;
    }
    if (!slot) return false;
    books_->forget(*slot);
    slot->pid = pid;
    slot->start = start;
    slot_ = static_cast<int>(slot - books_->processes);
    return true;
}

bool Machine::take(int device, Use use, uint64_t bytes) {
    for (const bool reaped : {false, true}) {
        if (reaped) reap(Look::closely);
        const Lock lock(books_);
        uint64_t &firm = books_->firm[device];
        if (use == Use::managed) {
            books_->managed[device] += bytes;
        } else {
            if (bytes > books_->total[device] - firm) continue;
            firm += bytes;
        }
        Books::Process &own = books_->processes[slot_];
        own.devices[device].bytes[static_cast<int>(use)] += bytes;
        own.note_high(device);
        if (notes_high_) books_->note_device_high(device);
        return true;
    }
    return false;
}

void Machine::give(int device, Use use, uint64_t bytes) {
    const Lock lock(books_);
    books_->processes[slot_].devices[device].bytes[static_cast<int>(use)] -= bytes;
    (use == Use::managed ? books_->managed : books_->firm)[device] -= bytes;
}

bool Machine::share(uint64_t id, int device, Use use, uint64_t bytes) {
    const Lock lock(books_);
    if (books_->find_shared(id)) return true;
    Books::SharedMemory *free = books_->find_shared(0);
    if (!free) return false;
    *free = {
        .id = id, .device = device, .maker = slot_, .use = static_cast<uint32_t>(use), .bytes = bytes, .users = {}};
    return true;
}

bool Machine::open_shared(uint64_t id) {
    reap(Look::closely);
    const Lock lock(books_);
    Books::SharedMemory *found = books_->find_shared(id);
    if (found) found->word(slot_) |= Books::SharedMemory::bit(slot_);
    return found != nullptr;
}

void Machine::close_shared(uint64_t id) {
    const Lock lock(books_);
    Books::SharedMemory *found = books_->find_shared(id);
    if (!found) return;
    found->word(slot_) &= ~Books::SharedMemory::bit(slot_);
    if (Books::end_if_unused(*found)) books_->add_up();
}

void Machine::give_shared(uint64_t id, int device, Use use, uint64_t bytes) {
    reap(Look::closely);
    const Lock lock(books_);
    books_->processes[slot_].devices[device].bytes[static_cast<int>(use)] -= bytes;
    if (Books::SharedMemory *found = books_->find_shared(id)) {
        found->maker = Books::SharedMemory::kGone;
        Books::end_if_unused(*found);
    }
    books_->add_up();
}

Holding Machine::own(int device) const {
    const Lock lock(books_);
    return slot_ < 0 ? Holding{} : books_->holding_of(slot_, device, books_->left_to_one(device));
}

uint64_t Machine::own_high(int device) const {
    const Lock lock(books_);
    return slot_ < 0 ? 0 : books_->processes[slot_].high[device];
}

void Machine::note_overlap(int device) {
    const Lock lock(books_);
    ++books_->overlaps[device];
}

uint64_t Machine::overlaps(int device) const {
    const Lock lock(books_);
    return books_->overlaps[device];
}

Machine::Clock::time_point Machine::end_of_copy(int device, bool to_host, Clock::time_point begin,
                                                std::chrono::nanoseconds duration) {
    const Lock lock(books_);
    Clock::time_point &free_at = books_->engines_free_at[device][to_host ? 1 : 0];
    return free_at = std::max(free_at, begin) + duration;
}

uint64_t Machine::high(int device) const {
    const Lock lock(books_);
    return books_->high[device];
}

DeviceMemory Machine::memory(int device) {
    reap();
    const Lock lock(books_);
    return books_->memory(device);
}

std::vector<ProcessHolding> Machine::processes(int device, bool forget_highs) {
    reap();
    std::vector<ProcessHolding> found;
    const Lock lock(books_);
    const std::vector<Books::SharedMemory *> left = books_->left_to_one(device);
    for (Books::Process &process : books_->processes) {
        const int slot = static_cast<int>(&process - books_->processes);
        const Holding holding = process.pid ? books_->holding_of(slot, device, left) : Holding{};
        if (process.pid && (holding.held() || holding.bytes[kManaged]))
            found.push_back(
                {process.pid, holding, process.high[device], static_cast<ProcessState>(process.atomic_state().load())});
        if (forget_highs) process.high[device] = holding.all();
    }
    return found;
}

void Machine::begin_call() {
    if (slot_ < 0) return;
    Books::Process &own = books_->processes[slot_];
    for (;;) {
        // In this order: a process that locks this one sets the state first and then reads the calls.
        ++own.atomic_calls();
        if (own.atomic_state() == static_cast<uint32_t>(ProcessState::running)) return;
        --own.atomic_calls();
        std::this_thread::sleep_for(kNextLook);
    }
}

void Machine::keep_call() {
    if (slot_ >= 0) ++books_->processes[slot_].atomic_calls();
}

void Machine::end_call() {
    if (slot_ >= 0) --books_->processes[slot_].atomic_calls();
}

bool Machine::is_out() {
    return slot_ >= 0 && books_->processes[slot_].atomic_state() == static_cast<uint32_t>(ProcessState::checkpointed);
}

bool Machine::is_locked(int pid) {
    const Lock lock(books_);
    Books::Process *process = books_->find(pid);
    return process && process->atomic_state() != static_cast<uint32_t>(ProcessState::running);
}

bool Machine::find(int pid, ProcessState *state) {
    reap();
    const Lock lock(books_);
    Books::Process *process = books_->find(pid);
    if (process) *state = static_cast<ProcessState>(process->atomic_state().load());
    return process != nullptr;
}

// `act` may change the state; it runs under the lock.
template <class Do>
Step Machine::step(int pid, ProcessState from, Do &&act) {
    reap();
    const Lock lock(books_);
    Books::Process *process = books_->find(pid);
    if (!process) return Step::unknown_process;
    if (process->atomic_state() != static_cast<uint32_t>(from)) return Step::wrong_state;
    return act(*process);
}

Step Machine::lock_process(int pid, unsigned milliseconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    const auto to = [](ProcessState state) {
        return [=](Books::Process &process) {
            process.atomic_state() = static_cast<uint32_t>(state);
            return Step::done;
        };
    };
    if (const Step locked = step(pid, ProcessState::running, to(ProcessState::locked)); locked != Step::done)
        return locked;
    const auto look = [](Books::Process &process) { return process.atomic_calls() ? Step::timed_out : Step::done; };
    for (;;) {
        const Step drained = step(pid, ProcessState::locked, look);
        if (drained != Step::timed_out) return drained;
        if (milliseconds && std::chrono::steady_clock::now() >= until) {
            step(pid, ProcessState::locked, to(ProcessState::running));
            return Step::timed_out;
        }
        std::this_thread::sleep_for(kNextLook);
    }
}

// Moves a process piece by piece, so that it takes as long as on the card and others see it happen. `piece` moves at
// most the given bytes of one use on one device. It returns the bytes moved; nullopt if there is no room.
template <class Piece>
Step Machine::move(int pid, ProcessState from, ProcessState to, const char *call, Piece piece) {
    for (uint64_t moved = 1; moved;) {
        moved = 0;
        const Step done = step(pid, from, [&](Books::Process &process) {
            for (int device = 0; device < kMaxDevices; ++device)
                for (int use = 0; use < kUses; ++use) {
                    const std::optional<uint64_t> bytes = piece(process, device, use, kMovedAtOnce - moved);
                    if (!bytes) {
                        process.atomic_state() = static_cast<uint32_t>(ProcessState::failed);
                        return Step::no_room;
                    }
                    moved += *bytes;
                }
            books_->add_up();
            if (!moved) process.atomic_state() = static_cast<uint32_t>(to);
            return Step::done;
        });
        if (done != Step::done) return done;
        spend_time_of(call, moved);
    }
    return Step::done;
}

Step Machine::move_out(int pid) {
    const auto managed = [](const Holding &holding) { return holding.bytes[kManaged] != 0; };
    const Step allowed = step(pid, ProcessState::locked, [&](Books::Process &process) {
        return std::any_of(std::begin(process.devices), std::end(process.devices), managed) ? Step::not_supported
                                                                                            : Step::done;
    });
    if (allowed != Step::done) return allowed;
    const auto piece = [](Books::Process &process, int device, int use, uint64_t most) {
        uint64_t &there = process.devices[device].bytes[use];
        const uint64_t left = use == static_cast<int>(Use::context) ? std::min(there, kLeftBehind) : 0;
        const uint64_t bytes = std::min(there - left, most);
        there -= bytes;
        process.moved_out[device].bytes[use] += bytes;
        return std::optional(bytes);
    };
    return move(pid, ProcessState::locked, ProcessState::checkpointed, "cuCheckpointProcessCheckpoint", piece);
}

Step Machine::move_back(int pid) {
    const auto piece = [&](Books::Process &process, int device, int use, uint64_t most) -> std::optional<uint64_t> {
        uint64_t &away = process.moved_out[device].bytes[use];
        const uint64_t bytes = std::min(away, most);
        if (bytes > books_->total[device] - books_->firm[device]) return std::nullopt;
        away -= bytes;
        process.devices[device].bytes[use] += bytes;
        process.note_high(device);
        books_->firm[device] += bytes;
        return bytes;
    };
    return move(pid, ProcessState::checkpointed, ProcessState::locked, "cuCheckpointProcessRestore", piece);
}

Step Machine::unlock_process(int pid) {
    return step(pid, ProcessState::locked, [](Books::Process &process) {
        process.atomic_state() = static_cast<uint32_t>(ProcessState::running);
        return Step::done;
    });
}

void Machine::reap(Look look) {
    struct Entered {
        int slot, pid;
        uint64_t start;
    };
    std::vector<Entered> entered;
    {
        const Lock lock(books_);
        for (int slot = 0; slot < kMaxProcesses; ++slot) {
            const Books::Process &process = books_->processes[slot];
            if (process.pid && slot != slot_) entered.push_back({slot, process.pid, process.start});
        }
    }
    // Reading /proc for hundreds of processes takes milliseconds, which the real driver does not need. So only a close
    // look reads /proc; the others find zombies some milliseconds later. The pause grows with the number of processes,
    // and one process looks: else hundreds of them that start at once on a busy machine all read /proc for each call.
    const std::atomic_ref looked(books_->looked_ms);
    const uint64_t now = now_ms(), pause = std::max<uint64_t>(kBetweenLooksMs, entered.size() / 10);
    uint64_t last = looked.load();  // may be later than `now`
    const bool is_due = now >= last + pause && looked.compare_exchange_strong(last, now);
    const bool closely = look == Look::closely || looks_closely_ || is_due;
    for (const Entered &entry : entered) {  // reading /proc without the lock
        if (closely ? start_time(entry.pid) == entry.start : exists(entry.pid)) continue;
        const Lock lock(books_);
        Books::Process &process = books_->processes[entry.slot];
        if (process.pid == entry.pid && process.start == entry.start) books_->forget(process);
    }
}

}  // namespace curb::sim
