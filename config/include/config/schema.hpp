// The schema of policy files (JSON Schema, draft 2020-12), made from the table of fields.
#pragma once

#include <string>

namespace curb::config {

// Its text, as config/policy.schema.json holds it. Throws std::bad_alloc alone.
std::string schema();

}  // namespace curb::config
