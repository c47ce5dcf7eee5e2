// The board: one small file of each process that uses a GPU under curb, which all users of the machine may read. It
// says what the process holds, its cap, its state, and what it waits for; no names and no arguments.
//
//   curb 1 4711 123456 4026531836 waiting 1790000000000 1790000000123      pid, start, pid namespace, state, since,
//   used GPU-8f3a… 1073741824 8589934592 2097152 1790000000000                  held, cap, waits for, since
//   … turns 536870912 1790000000456 30000          of a process that takes turns: what can leave, end of turn, lately
//
// "-" stands for a figure that the process does not tell, "none" for no cap. Times are milliseconds since 1970. The
// file is PID-START in a public folder of the process's user (runtime_dir.hpp), and a text link (text_link.hpp), by
// whose time a reader in another pid namespace knows that the process lives. A reader believes nothing else: a process
// that lies here lies about itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/runtime_dir.hpp"
#include "control/status.hpp"
#include "control/text_link.hpp"
#include "policy/values/size.hpp"

namespace curb::control::board {

// `napping`: out of its GPUs, by itself or by curb suspend.
enum class State : std::uint8_t { running, waiting, napping };
const char *state_name(State state) noexcept;

struct Gpu {
    std::string uuid{};                   // "GPU-…", "MIG-…"
    std::optional<policy::Bytes> held{};  // nullopt: not posted
    std::optional<policy::Bytes> cap{};   // nullopt: none, or `held` is not posted
    policy::Bytes wants = 0;              // the request that has waited longest; 0: none waits
    UnixMs since = 0;                     // it has waited since then
    // Of a process that takes turns (suspend.turn).
    struct Turn {
        policy::Bytes leaves = 0;  // that it takes out of the GPU for others; 0: it is out
        UnixMs ends = 0;
        friend bool operator==(const Turn &, const Turn &) = default;
    };
    std::optional<Turn> turn{};
    std::chrono::milliseconds lately{};  // on the GPU (policy/decisions/turns.hpp)
    friend bool operator==(const Gpu &, const Gpu &) = default;
};
struct Entry {
    ProcessName process{};            // as the process sees itself
    std::uint64_t pid_namespace = 0;  // in which it does
    State state{};
    UnixMs since = 0;  // it is in this state
    UnixMs used = 0;   // it last used a GPU
    std::vector<Gpu> gpus{};
    friend bool operator==(const Entry &, const Entry &) = default;
};

inline constexpr std::size_t kMostGpus = 16;  // of one process; more are left out

// Returns the text of the file, at most text_link::kLongest bytes. May throw std::bad_alloc, as all functions here.
std::string text_of(const Entry &entry);
// Returns nullopt if the text is no entry.
std::optional<Entry> parse(std::string_view text);

// Deletes the files of dead processes in this folder of our own, as long as `goes_on` returns true.
void remove_stale(const Descriptor &folder, bool (*goes_on)() noexcept);
// Returns the name of the process's file.
std::string name_of(const ProcessName &process);

// A living process on the board.
struct Posted {
    Entry entry;
    uid_t owner = 0;
    bool here = false;  // its pid is one of this pid namespace
};
// Returns the living processes of all users, at most 1,024 of each.
std::vector<Posted> read_all(const Places &places);

}  // namespace curb::control::board
