// Collects the errors in a text while it is read. Private to config/.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.hpp"
#include "document.hpp"

namespace curb::config {

// A value of a policy file, with its place.
struct Value {
    const Node &node;
    std::string pointer;  // as the text spells it
    std::string place;    // with device keys in their one spelling: its key in Document::places
};

// "the number 30", "an array"
std::string shown(const Node &node);

class Faults {
  public:
    Faults(std::string_view text, std::string_view file) : lines_(text), file_(file) {}

    void add(std::size_t at, std::string pointer, std::string message);
    // Adds a fault for a value of another type: `right`, then the value, then `remedy`. For example: "a time is a
    // string with a unit, not the number 30; write "30s"".
    void wrong_kind(const Value &value, const std::string &right, const std::string &remedy = {});

    [[nodiscard]] bool none() const { return faults_.empty(); }
    // True if `holds` is true for the pointer of every fault.
    template <class Holds>
    [[nodiscard]] bool all_of(Holds holds) const {
        return std::all_of(faults_.begin(), faults_.end(), [&](const Fault &fault) { return holds(fault.pointer); });
    }
    [[nodiscard]] Place place(std::size_t at) const;
    [[nodiscard]] std::string place_text(std::size_t at) const { return lines_.place(at).text(); }  // "3:10"

    // In the order of the text.
    [[nodiscard]] Diagnostics faults() const;

  private:
    Lines lines_;
    std::string file_;
    std::vector<Fault> faults_;
};

// Returns the members of an object, in the order of the text. Adds a fault for a key that stands there twice.
std::vector<Value> members(const Value &object, Faults &faults);

}  // namespace curb::config
