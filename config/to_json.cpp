#include "config/to_json.hpp"

#include <nlohmann/json.hpp>

namespace curb::config {

std::string to_json(const Diagnostics &diagnostics) {
    using json = nlohmann::ordered_json;
    json list = json::array();
    for (const Diagnostic &one : diagnostics) {
        json item = json::object();
        item["file"] = one.file;
        item["line"] = one.line;
        item["column"] = one.column;
        item["pointer"] = one.pointer;
        item["message"] = one.message;
        list.push_back(std::move(item));
    }
    json out = json::object();
    out["valid"] = diagnostics.empty();
    out["diagnostics"] = std::move(list);
    return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace curb::config
