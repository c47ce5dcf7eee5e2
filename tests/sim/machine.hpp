// The simulated machine: what each device has and what each process holds of it. All figures live in one mapping, of a
// file when CURB_SIM_STATE names one, so that processes share the machine as they would a real one.
//
// Rules: every access to the mapping is under its process-shared robust mutex, held for arithmetic only, never across a
// system call that can block; but for the state of a process and the number of its calls in progress, which every call
// looks at and which are atomic. A process that died without a word is found by its pid and start time, and its memory
// goes back to the device, as the real driver does it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace curb::sim {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr int kMaxDevices = 16;
inline constexpr int kMaxProcesses = 512;
inline constexpr int kMaxShared = 1024;  // memory that is shared between processes

// What device memory is held for. Managed memory is apart: it can be evicted, and NVML does not count it for the
// process (docs/results/driver.md).
enum class Use { context, plain, pools, vmm, arrays, graphs, modules, managed };
inline constexpr int kUses = 8;
const char *use_name(Use);

struct Holding {
    uint64_t bytes[kUses];

    // NVML's figure for the process: all but managed memory.
    uint64_t held() const {
        uint64_t sum = 0;
        for (int use = 0; use < kUses; ++use)
            if (use != static_cast<int>(Use::managed)) sum += bytes[use];
        return sum;
    }
    uint64_t all() const { return held() + bytes[static_cast<int>(Use::managed)]; }
};

struct DeviceMemory {
    uint64_t total;
    uint64_t used;  // managed memory that fits included
    uint64_t free() const { return total - used; }
};

// As the driver tells it of a process (CUprocessState).
enum class ProcessState : uint32_t { running, locked, checkpointed, failed };
struct ProcessHolding {
    int pid;
    Holding holding;
    uint64_t high;  // the most that it has held at once, managed memory included
    ProcessState state = ProcessState::running;
};

// How a step from one state to another ended.
enum class Step { done, unknown_process, wrong_state, timed_out, not_supported, no_room };

class Machine {
  public:
    // The machine of `state_file`, made from CURB_SIM_GPUS and CURB_SIM_MEMORY if the file is new; an empty name gives
    // a machine for this process alone. Null, with the reason on stderr, when the file cannot be used.
    static std::unique_ptr<Machine> open(const std::string &state_file, bool may_create = true);
    // The same with the name in CURB_SIM_STATE.
    static std::unique_ptr<Machine> open_from_environment();

    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;
    ~Machine();

    int device_count() const;

    // Enters this process in the table with nothing held; false when the table is full. Before take() and give().
    bool join();
    // False: the device has no room. Managed memory always fits: the driver evicts it when others need the room.
    bool take(int device, Use use, uint64_t bytes);
    void give(int device, Use use, uint64_t bytes);
    // Memory that others may open, by an id that is its own on this machine. It stays on the device until its maker and
    // all who have opened it have ended or given it back (sim.h, CURB_SIM_SHARED).
    // By its maker, who holds the bytes. False: the table is full.
    bool share(uint64_t id, int device, Use use, uint64_t bytes);
    // By its maker, in place of give().
    void give_shared(uint64_t id, int device, Use use, uint64_t bytes);
    // By another process, once for as often as it likes. False: it is gone, or of another machine.
    bool open_shared(uint64_t id);
    void close_shared(uint64_t id);
    Holding own(int device) const;
    // The most that this process has held at once, managed memory included.
    uint64_t own_high(int device) const;
    // The most that all living processes have held of the device at once, managed memory included; 0 unless
    // CURB_SIM_HIGH asks for it.
    uint64_t high(int device) const;
    // A kernel ran on a block that another one still had (running.hpp). How often that happened since the machine was
    // made, also in processes that have ended.
    void note_overlap(int device);
    uint64_t overlaps(int device) const;

    // These look for dead processes first.
    DeviceMemory memory(int device);
    // Those that hold anything there. Forgetting highs: what each holds now is the most from here on.
    std::vector<ProcessHolding> processes(int device, bool forget_highs = false);

    // Around every call of the driver: waits until this process is not locked, or for good once it has failed.
    void begin_call();
    void end_call();

    // This process is out of its GPUs. Without a lock.
    bool is_out();
    // A process is locked, or out of its GPUs.
    bool is_locked(int pid);
    // Whole processes, this one or others, by the pid. Managed memory cannot be moved out.
    bool find(int pid, ProcessState *state);
    // Waits until no call is in progress; on a time-out the process runs on. 0 ms: no time-out.
    Step lock_process(int pid, unsigned milliseconds);
    Step move_out(int pid);
    // With too little room the process has failed, for good.
    Step move_back(int pid);
    Step unlock_process(int pid);

  private:
    struct Books;
    class Lock;
    // What the environment says of a new machine, or of one that is there already. 0: nothing.
    struct Wanted {
        int gpus = 0;
        uint64_t memory = 0;
        // False if a setting is wrong, which it prints.
        bool read_environment();
    };
    template <class Do>
    Step step(int pid, ProcessState from, Do &&act);
    template <class Piece>
    Step move(int pid, ProcessState from, ProcessState to, const char *call, Piece piece);
    Machine(Books *books, int file) : books_(books), file_(file) {}
    enum class Look { at_times, closely };
    void reap(Look look = Look::at_times);

    Books *books_;
    int file_;
    int slot_ = -1;
    bool notes_high_ = false;
    bool looks_closely_ = false;  // who only reads the books is to find them right
};

// "80GiB", "512MiB", "4096": bytes, or 0 when it is no size.
uint64_t parse_size(const std::string &text);

}  // namespace curb::sim
