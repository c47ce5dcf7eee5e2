// The traces of a job's processes: which of their GPUs are the same one, and one recording of all. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trace/replay.hpp"

namespace curb::cli {

// A GPU that processes of a job use.
struct JobGpu : control::trace::Gpu {  // `gpu`: its number in together()
    std::string key;                   // as options and policies name it: "GPU-…", "cuda:0"
    std::vector<std::size_t> of;       // the recordings that use it
    std::vector<Rank> ranks;           // in the same order; without limits
};
// Returns the GPUs that the recordings use, in the order of their first use. The same UUID is the same GPU; without
// UUIDs the same ordinal is. The result has pointers to the recordings.
std::vector<JobGpu> gpus_of_job(std::span<const Recording> recordings);

// Returns one recording of all processes, in the order of their clocks. What is held is the sum. Without the limits of
// the single processes.
Recording together(std::span<const Recording> recordings, std::span<const JobGpu> gpus);

// Returns sentences about what the traces lack for a replay, or for being read together.
std::vector<std::string> what_they_lack(std::span<const Recording> recordings);

// Sums up one process. Each GPU that it used has the smallest cap that serves it, and the option to paste.
Summary summarise_with_caps(const Recording &recording);

// Returns an option to paste, with the cap rounded up: "--cap 5.92GiB", "--cap cuda:1=5.92GiB". `key`: "" for all GPUs.
std::string paste_of(const char *option, const std::string &key, policy::Bytes cap);

}  // namespace curb::cli
