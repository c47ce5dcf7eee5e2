#include "ask.hpp"

#include "json.hpp"

namespace curb::cli {

std::string error_json(int pid, const std::string &error) {
    return json::object({{"pid", std::to_string(pid)}, {"error", json::text(error)}});
}

}  // namespace curb::cli
