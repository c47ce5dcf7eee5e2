// The log that RMM's logging_resource_adaptor writes: a line a request, "Thread,Time,Action,Pointer,Size,Stream". Its
// columns are found by the header, since the first versions had no Thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "policy/result.hpp"
#include "recording.hpp"

namespace curb::cli {

struct RmmRow {
    enum class Action : std::uint8_t { allocate, free, failure };
    Action action{};
    int thread = 0;
    std::uint64_t ns = 0;       // of the day; of versions that write seconds, since whenever
    std::uint64_t pointer = 0;  // of `failure`: 0
    policy::Bytes bytes = 0;
};

class RmmColumns {
  public:
    // None: this is no header of such a log.
    static std::optional<RmmColumns> of(std::string_view header);
    // The error says what is wrong with the row.
    [[nodiscard]] policy::Result<RmmRow, std::string> row(std::string_view line) const;

  private:
    int thread_ = -1, time_ = -1, action_ = -1, pointer_ = -1, size_ = -1;
    int count_ = 0;
};

}  // namespace curb::cli
