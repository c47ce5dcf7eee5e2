// Collects the errors in a text while it is read. Private to config/.
#pragma once

#include <algorithm>
#include <functional>
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
    // True if the rest of the text is not worth reading. To name the key that was meant by each of 80,000 unknown ones
    // takes seconds, and each fault below a key of half a megabyte has that key in its pointer.
    [[nodiscard]] bool full() const { return faults_.size() >= kMost || bytes_ >= kMostBytes; }
    // True if `holds` is true for the pointer of every fault.
    template <class Holds>
    [[nodiscard]] bool all_of(Holds holds) const {
        return std::all_of(faults_.begin(), faults_.end(), [&](const Fault &fault) { return holds(fault.pointer); });
    }
    [[nodiscard]] Place place(std::size_t at) const;
    [[nodiscard]] std::string place_text(std::size_t at) const { return lines_.place(at).text(); }  // "3:10"

    // In the order of the text. If there are too many, the last one says so.
    [[nodiscard]] Diagnostics faults() const;

  private:
    static constexpr std::size_t kMost = 100, kMostBytes = std::size_t{1} << 20;

    Lines lines_;
    std::string file_;
    std::vector<Fault> faults_;
    std::size_t bytes_ = 0;  // of their pointers and messages
};

// Calls `each` with the members of an object, in the order of the text, until the faults are full. Adds a fault for a
// key that stands there twice.
void each_member(const Value &object, Faults &faults, const std::function<void(Value &)> &each);

}  // namespace curb::config
