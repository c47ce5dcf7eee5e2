// The schema of policy files (JSON Schema, draft 2020-12), made from the table of fields.
#pragma once

#include <string>

namespace curb::config {

// Returns the text of config/policy.schema.json. May throw std::bad_alloc.
std::string schema();

}  // namespace curb::config
