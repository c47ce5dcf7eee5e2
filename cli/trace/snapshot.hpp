// Reads memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot) as recordings: each tensor's memory is an
// allocation, with its recorded Python stack.
// Source of the format: https://pytorch.org/docs/stable/torch_cuda_memory.html, "Snapshot API Reference".
#pragma once

#include <string>
#include <string_view>

#include "trace/recording.hpp"

namespace curb::cli {

// True if the file may be a snapshot: it begins as pickles do.
inline bool begins_as_pickle(std::string_view bytes) { return bytes.starts_with('\x80'); }

// Returns the snapshot as a recording. `name`: of the file. The error is a sentence with the name. Pure.
policy::Result<Recording, std::string> read_snapshot(std::string_view bytes, const std::string &name);

}  // namespace curb::cli
