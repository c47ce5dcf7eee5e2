#include "faults.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "policy/values/words.hpp"

namespace curb::config {

std::string shown(const Node &node) {
    using Kind = Node::Kind;
    switch (node.kind) {
        case Kind::null: return "null";
        case Kind::boolean: return node.text;
        case Kind::number: return "the number " + node.text;
        case Kind::string: return "the string " + policy::quote(node.text, '"');
        case Kind::object: return "an object";
        case Kind::array: return "an array";
    }
    return "?";
}

void Faults::add(std::size_t at, std::string pointer, std::string message) {
    bytes_ += pointer.size() + message.size();
    faults_.push_back({at, std::move(pointer), std::move(message)});
}

void Faults::wrong_kind(const Value &value, const std::string &right, const std::string &remedy) {
    add(value.node.at, value.pointer, right + ", not " + shown(value.node) + remedy);
}

Place Faults::place(std::size_t at) const {
    const auto [line, column] = lines_.place(at);
    return {file_, line, column};
}

Diagnostics Faults::faults() const {
    std::vector<Fault> faults = faults_;
    std::stable_sort(faults.begin(), faults.end(), [](const Fault &a, const Fault &b) { return a.at < b.at; });
    Diagnostics out;
    out.reserve(faults.size());
    for (Fault &fault : faults) {
        const auto [line, column] = lines_.place(fault.at);
        out.push_back({file_, line, column, std::move(fault.pointer), std::move(fault.message)});
    }
    if (full()) {
        std::string most = "there are " + std::to_string(out.size()) + " errors up to here, and the rest was not read";
        out.push_back({file_, out.back().line, out.back().column, {}, std::move(most)});
    }
    return out;
}

void each_member(const Value &object, Faults &faults, const std::function<void(Value &)> &each) {
    std::map<std::string_view, std::size_t> seen;  // key -> where it stands
    for (const Node &child : object.node.children) {
        if (faults.full()) return;
        const std::string token = "/" + policy::pointer_token(child.key);
        Value member{child, object.pointer + token, object.place + token};
        if (const auto [first, fresh] = seen.emplace(child.key, child.key_at); !fresh) {
            faults.add(child.key_at, member.pointer,
                       "the key " + policy::quote(child.key, '"') + " stands twice; first at " +
                           faults.place_text(first->second));
        }
        each(member);
    }
}

}  // namespace curb::config
