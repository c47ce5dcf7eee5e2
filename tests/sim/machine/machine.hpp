// The simulated machine: the memory of each device, and what each process holds of it. All figures live in one mapping.
// If CURB_SIM_STATE names a file, it is that file's, so that processes share the machine.
//
// Rules: every access to the mapping is under its process-shared robust mutex, held for arithmetic only, never across a
// system call that can block. The state of a process and the number of its calls in progress are atomic instead, since
// every call reads them. A process that died is found by its pid and start time, and its memory goes back to the
// device, as with the real driver.
#pragma once

#include <chrono>
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

// Uses of device memory. Managed memory is separate: it can be evicted, and NVML does not count it for the
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
    uint64_t used;  // includes managed memory that fits
    uint64_t free() const { return total - used; }
};

// As the driver returns it (CUprocessState).
enum class ProcessState : uint32_t { running, locked, checkpointed, failed };
struct ProcessHolding {
    int pid;
    Holding holding;
    uint64_t high;  // the most that it has held at once, managed memory included
    ProcessState state = ProcessState::running;
};

// The pid of this process as the machine's books have it: CURB_SIM_PROC says in which pid namespace.
int own_pid();

// How a step from one state to another ended.
enum class Step { done, unknown_process, wrong_state, timed_out, not_supported, no_room };

class Machine {
  public:
    // Opens the machine of `state_file`. Makes it from CURB_SIM_GPUS and CURB_SIM_MEMORY if the file is new. An empty
    // name gives a machine for this process alone. Returns null, and prints why, if the file cannot be used.
    static std::unique_ptr<Machine> open(const std::string &state_file, bool may_create = true);
    // The same with the name in CURB_SIM_STATE.
    static std::unique_ptr<Machine> open_from_environment();

    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;
    ~Machine();

    int device_count() const;

    // Enters this process in the table, before take() and give(). False if the table is full.
    bool join();
    // False if the device has no room. Managed memory always fits: the driver evicts it when others need the room.
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
    // Counts a kernel that ran on a block that another one still had (running.hpp).
    void note_overlap(int device);
    // Returns that count, with the kernels of processes that have ended.
    uint64_t overlaps(int device) const;
    // A device has one engine for copies to the host and one for copies from it, which all processes share. Returns
    // when it has made a copy that may begin at `begin` and takes `duration` (CLOCK_MONOTONIC).
    using Clock = std::chrono::steady_clock;
    Clock::time_point end_of_copy(int device, bool to_host, Clock::time_point begin, std::chrono::nanoseconds duration);

    // These two first give back the memory of dead processes.
    DeviceMemory memory(int device);
    // Returns the processes that hold memory there. `forget_highs` then sets the high of each to what it holds now.
    std::vector<ProcessHolding> processes(int device, bool forget_highs = false);

    // Around every call of the driver. Waits until this process is unlocked; for ever once it has failed.
    void begin_call();
    // Counts a call that has begun once more: its work goes on when it returns.
    void keep_call();
    void end_call();

    // Returns whether this process is moved out of its GPUs. Takes no lock.
    bool is_out();
    // Returns whether a process is locked, or moved out of its GPUs.
    bool is_locked(int pid);
    // The checkpoint calls, on this process or another. Managed memory cannot be moved out.
    bool find(int pid, ProcessState *state);
    // Waits until no call is in progress. After a time-out the process runs on. 0 ms: no time-out.
    Step lock_process(int pid, unsigned milliseconds);
    Step move_out(int pid);
    // If there is too little room, the process fails for good.
    Step move_back(int pid);
    Step unlock_process(int pid);

  private:
    struct Books;
    class Lock;
    // The machine that the environment asks for. 0: any.
    struct Wanted {
        int gpus = 0;
        uint64_t memory = 0;
        // Prints a wrong setting, and returns false.
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
    bool looks_closely_ = false;  // for readers of the books alone: they must be exact
};

// Returns the bytes of "80GiB", "512MiB", "4096"; 0 if it is not a size.
uint64_t parse_size(const std::string &text);

}  // namespace curb::sim
