#include "json.hpp"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "policy/values/words.hpp"

namespace curb::control {
namespace {

constexpr std::size_t kDepth = 8;      // messages have four
constexpr std::size_t kMembers = 256;  // of one object; those of messages have some twenty. Searched one by one.

// Builds the tree from nlohmann's SAX events.
class Builder {
  public:
    using json = nlohmann::json;

    bool null() { return add({nullptr}); }
    bool boolean(bool value) { return add({value}); }
    bool number_integer(json::number_integer_t value) { return add({std::int64_t{value}}); }
    bool number_unsigned(json::number_unsigned_t value) { return add({std::uint64_t{value}}); }
    bool number_float(json::number_float_t value, const std::string & /*text*/) { return add({double{value}}); }
    bool string(std::string &value) { return add({std::move(value)}); }
    bool binary(json::binary_t & /*value*/) { return false; }  // JSON has none
    bool start_object(std::size_t /*size*/) { return open({Json::Object()}); }
    bool start_array(std::size_t /*size*/) { return open({Json::Array()}); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }

    bool key(std::string &name) {
        const auto &members = std::get<Json::Object>(open_.back().value);
        if (members.size() == kMembers) {
            fault_ = "an object in it has more than " + std::to_string(kMembers) + " members";
            return false;
        }
        if (std::any_of(members.begin(), members.end(), [&](const auto &one) { return one.name == name; })) {
            fault_ = "the name " + policy::quote(name, '"') + " stands in it twice";
            return false;
        }
        keys_.back() = std::move(name);
        return true;
    }
    bool parse_error(std::size_t place, const std::string & /*token*/, const json::exception & /*error*/) {
        fault_ = "it is not JSON, from byte " + std::to_string(place) + " on";
        return false;
    }

    policy::Result<Json, std::string> result(bool ok) && {
        if (ok) return std::move(root_);
        return fault_.empty() ? std::string("it is not JSON") : std::move(fault_);
    }

  private:
    bool add(Json value) {
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (auto *array = std::get_if<Json::Array>(&open_.back().value)) {
            array->push_back(std::move(value));
        } else {
            std::get<Json::Object>(open_.back().value).push_back({std::move(keys_.back()), std::move(value)});
        }
        return true;
    }
    bool open(Json container) {
        if (open_.size() == kDepth) {
            fault_ = "it is nested too deeply";
            return false;
        }
        open_.push_back(std::move(container));
        keys_.emplace_back();
        return true;
    }
    bool close() {
        Json done = std::move(open_.back());
        open_.pop_back();
        keys_.pop_back();
        return add(std::move(done));
    }

    Json root_;
    std::vector<Json> open_;         // the containers around the value to come
    std::vector<std::string> keys_;  // of each of them, the name of that value
    std::string fault_;
};

}  // namespace

const Json *Json::member(std::string_view name) const {
    const auto *members = get<Object>();
    if (members == nullptr) return nullptr;
    const auto found =
        std::find_if(members->begin(), members->end(), [&](const auto &one) { return one.name == name; });
    return found == members->end() ? nullptr : &found->value;
}

policy::Result<Json, std::string> parse_json(std::string_view text) {
    Builder builder;
    const bool ok = nlohmann::json::sax_parse(text, &builder);
    return std::move(builder).result(ok);
}

}  // namespace curb::control
