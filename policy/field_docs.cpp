// The meaning of the fields. A file of its own, so that libcurb.so, which does not need these texts, is linked without
// them.
#include "policy/fields.hpp"

namespace curb::policy {
namespace {

constexpr std::string_view kDocs[] = {
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) doc,
#define CURB_JOB_FIELD CURB_GPU_FIELD
#define CURB_RULE_FIELD(pointer, type, member, doc) doc,
#define CURB_FILE_FIELD(pointer, type, doc) doc,
#include "policy/fields.def"
};

}  // namespace

std::string_view doc_of(const Field &field) noexcept { return kDocs[&field - fields().data()]; }

}  // namespace curb::policy
