// The schema of policies, made from the table of fields: tests/schema holds policies against it.
#include "config/schema.hpp"

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "policy/fields.hpp"

using namespace curb;
using Json = nlohmann::json;

namespace {

// What the schema says of a value, wherever that stands.
const Json &resolved(const Json &all, const Json &one) {
    if (!one.contains("$ref")) return one;
    return resolved(all, all.at(Json::json_pointer(one.at("$ref").get<std::string>().substr(1))));
}

// What it says of the member of that name; of "*", of all that are not named, and of the items of an array.
const Json *within(const Json &object, const std::string &name) {
    if (name != "*")
        return object.contains("properties") && object["properties"].contains(name) ? &object["properties"][name]
                                                                                    : nullptr;
    for (const char *others : {"items", "additionalProperties"})
        if (object.contains(others) && object[others].is_object()) return &object[others];
    if (object.contains("patternProperties")) return &object["patternProperties"].begin().value();
    return nullptr;
}

}  // namespace

TEST_CASE("Every field of the table stands in the schema, with what is said of it") {
    const Json all = Json::parse(config::schema());
    for (const policy::Field &field : policy::fields()) {
        const std::string pointer(field.pointer);
        INFO(pointer);
        const Json *at = &all;
        for (std::size_t begin = 1; begin < pointer.size();) {
            const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
            at = within(resolved(all, *at), pointer.substr(begin, end - begin));
            REQUIRE(at != nullptr);
            begin = end + 1;
        }
        CHECK_THAT(at->value("description", ""), contains(std::string(field.doc).substr(0, 20)));
    }
}
