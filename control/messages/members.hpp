// Writes structs as JSON objects and reads them back. describe(io, value) lists the members of a struct once; Writing
// and Reading walk that list. Private to control/.
//
// A member must be there when it is read. Exceptions: a std::optional, which is absent while it is empty, and members
// of io.where_set(). A later version adds members in these two ways, so that both sides understand each other.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "json.hpp"
#include "policy/decisions/limit.hpp"
#include "policy/fields.hpp"
#include "policy/kinds.hpp"
#include "policy/names.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"

namespace curb::control {

// The type of the value of describe(io, value): const for Writing. These functions are in this namespace, not in an
// anonymous one, because they are found by their arguments:
//
//   template <class Io>
//   void describe(Io &io, Is<Refusal> auto &value) { io("bytes", value.bytes); … }
template <class T, class Struct>
concept Is = std::is_same_v<std::remove_const_t<T>, Struct>;

// Values that have a name on the wire.
inline std::string_view wire_name(policy::Step value) { return policy::step_name(value); }
inline std::string_view wire_name(policy::Kind value) { return policy::kind_name(value); }
inline std::string_view wire_name(policy::Limit value) { return policy::limit_name(value); }
inline std::string wire_name(const policy::Size &value) { return policy::format(value); }

// An array with an element for each value of an enumeration. On the wire it is an object: {"plain":1,"pools":2}.
template <class Enum, class Array>
struct EachOf {
    Array &values;
};
template <class Enum, class Array>
EachOf<Enum, Array> each_of(Array &values) {
    return {values};
}

// The largest time in milliseconds on the wire, 46 days: a larger one with six decimals would not come back as the same
// number.
inline constexpr double kMostMilliseconds = 4e9;

// Who reads an object: the other side of the socket, or readers of `curb … --json`, who find every member, null if it
// is not known.
enum class For : bool { the_wire, readers };

// Times are in milliseconds on the wire. Readers find each in seconds too, under the second name; those of instants
// count from 1970.
inline constexpr std::pair<std::string_view, const char *> kInSeconds[] = {
    {"milliseconds", "seconds"},
    {"out_ms", "out_seconds"},
    {"back_ms", "back_seconds"},
    {"waited_ms", "waited_seconds"},
    {"waited_total_ms", "waited_total_seconds"},
    {"length_ms", "length_seconds"},
    {"moved_ms", "moved_seconds"},
    {"since", "since_unix_seconds"},
    {"no_room_since", "no_room_since_unix_seconds"},
    {"at", "at_unix_seconds"},
    {"until", "until_unix_seconds"},
    {"step", "step_unix_seconds"},
};

class Writing {
  public:
    explicit Writing(For whom = For::the_wire) : whom_(whom) {}
    template <class T>
    void operator()(const char *name, const T &value) {
        begin(name);
        write(value);
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
            if (const char *seconds = in_seconds(name)) {
                begin(seconds);
                write(static_cast<double>(value) / 1000);
            }
    }
    template <class T>
    void operator()(const char *name, const std::optional<T> &value) {
        if (value) return (*this)(name, *value);
        if (whom_ == For::readers) null(name);
    }
    // A number that is 0 if it is not known.
    template <class T>
    void where_known(const char *name, const T &value) {
        if (whom_ == For::readers && value == T()) return null(name);
        (*this)(name, value);
    }
    // Written only if it differs from the default.
    template <class T>
    void where_set(const char *name, const T &value) {
        if (value != T() || whom_ == For::readers) (*this)(name, value);
    }
    // A limit. Version 0.1 does not know the limit of a job, and would discard the whole status: it gets a cap, and
    // later versions find the exact name beside it.
    void limit(const char *name, const char *exact_name, policy::Limit value) {
        const bool is_new = value == policy::Limit::job && whom_ == For::the_wire;
        (*this)(name, is_new ? policy::Limit::cap : value);
        if (is_new) (*this)(exact_name, value);
    }
    [[nodiscard]] std::string text() && { return (out_.empty() ? "{" : std::move(out_)) + "}"; }

  private:
    void begin(const char *name) {
        out_ += out_.empty() ? "{\"" : ",\"";
        out_ += name;
        out_ += "\":";
    }
    void null(const char *name) {
        begin(name);
        out_ += "null";
        if (const char *seconds = in_seconds(name)) null(seconds);
    }
    // Returns the name of the member in seconds. null if there is none.
    [[nodiscard]] const char *in_seconds(std::string_view name) const {
        const auto *found = std::find_if(std::begin(kInSeconds), std::end(kInSeconds),
                                         [=](const auto &one) { return one.first == name; });
        return whom_ == For::readers && found != std::end(kInSeconds) ? found->second : nullptr;
    }
    void write(const std::string &value) {
        out_ += value.empty() && whom_ == For::readers ? "null" : policy::json_text(policy::valid_utf8(value));
    }
    void write(bool value) { out_ += value ? "true" : "false"; }
    void write(double value) {
        out_ += policy::json_text(std::isfinite(value) && value > 0 ? std::min(value, kMostMilliseconds) : 0.0);
    }
    template <class T>
    requires std::is_integral_v<T>
    void write(T value) { out_ += std::to_string(value); }
    template <class T>
    void write(const std::vector<T> &values) {
        out_ += '[';
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (i != 0) out_ += ',';
            write(values[i]);
        }
        out_ += ']';
    }
    template <class Enum, class Array>
    void write(const EachOf<Enum, Array> &each) {
        Writing inner;
        for (std::size_t i = 0; i < each.values.size(); ++i)
            inner(std::string(wire_name(static_cast<Enum>(i))).c_str(), each.values[i]);
        out_ += std::move(inner).text();
    }
    template <class T>
    requires requires(const T &value) { wire_name(value); }
    void write(const T &value) { write(std::string(wire_name(value))); }
    template <class T>
    requires requires(Writing &io, const T &value) { describe(io, value); }
    void write(const T &value) {
        Writing inner(whom_);
        describe(inner, value);
        out_ += std::move(inner).text();
    }

    const For whom_;
    std::string out_;
};

// Keeps the first fault only.
class Reading {
  public:
    Reading(const Json &object, std::string &fault) : object_(object), fault_(fault) {
        if (!object.get<Json::Object>()) fail("it is not an object");
    }

    template <class T>
    void operator()(const char *name, T &&out) {
        known_.push_back(name);
        if (!fault_.empty()) return;
        if (const Json *value = object_.member(name))
            read(name, *value, out);
        else
            fail(name, "is not there");
    }
    template <class T>
    void operator()(const char *name, std::optional<T> &out) {
        known_.push_back(name);
        if (object_.member(name)) (*this)(name, out.emplace());
    }
    template <class T>
    void where_known(const char *name, T &out) {
        (*this)(name, out);
    }
    template <class T>
    void where_set(const char *name, T &out) {
        known_.push_back(name);
        if (object_.member(name)) (*this)(name, out);
    }
    void limit(const char *name, const char *exact_name, policy::Limit &out) {
        (*this)(name, out);
        std::string exact;
        where_set(exact_name, exact);
        if (const auto known = policy::parse_limit(exact)) out = *known;
    }
    [[nodiscard]] bool has(std::string_view name) const { return object_.member(name) != nullptr; }

    // Any other member of the object is a fault.
    void nothing_more() {
        const auto *members = object_.get<Json::Object>();
        if (members == nullptr || !fault_.empty()) return;
        for (const auto &[name, value] : *members)
            if (std::find(known_.begin(), known_.end(), name) == known_.end())
                return fail(policy::quote(name, '"') + " is not known to this version of curb");
    }
    void fail(std::string what) {
        if (fault_.empty()) fault_ = std::move(what);
    }

  private:
    void read(const char *name, const Json &value, std::string &out) {
        if (const auto *text = value.get<std::string>())
            out = *text;
        else
            fail(name, "is not a string");
    }
    void read(const char *name, const Json &value, bool &out) {
        if (const auto *flag = value.get<bool>())
            out = *flag;
        else
            fail(name, "is neither true nor false");
    }
    template <class Number>
    requires std::is_integral_v<Number>
    void read(const char *name, const Json &value, Number &out) {
        const auto *positive = value.get<std::uint64_t>();
        const auto *negative = value.get<std::int64_t>();
        if (positive != nullptr && std::in_range<Number>(*positive))
            out = static_cast<Number>(*positive);
        else if (negative != nullptr && std::in_range<Number>(*negative))
            out = static_cast<Number>(*negative);
        else
            fail(name, "is not a whole number from " + std::to_string(std::numeric_limits<Number>::min()) + " to " +
                           std::to_string(std::numeric_limits<Number>::max()));
    }
    void read(const char *name, const Json &value, double &out) {
        const auto *fraction = value.get<double>();
        const auto *whole = value.get<std::uint64_t>();
        const double number = whole ? static_cast<double>(*whole) : fraction ? *fraction : -1;
        if (!(number >= 0)) return fail(name, "is not a number from 0 on");
        if (number > kMostMilliseconds) return fail(name, "is more than any release takes");
        out = number;
    }
    template <class T>
    void read(const char *name, const Json &value, std::vector<T> &out) {
        const auto *array = value.get<Json::Array>();
        if (array == nullptr) return fail(name, "is not an array");
        for (const Json &one : *array)
            if (fault_.empty()) read(name, one, out.emplace_back());
    }
    // Ignores values that this version does not know.
    template <class Enum, class Array>
    void read(const char * /*name*/, const Json &value, EachOf<Enum, Array> &out) {
        Reading inner(value, fault_);
        for (std::size_t i = 0; i < out.values.size(); ++i)
            inner.where_set(std::string(wire_name(static_cast<Enum>(i))).c_str(), out.values[i]);
    }
    void read(const char *name, const Json &value, policy::Step &out) { set(name, value, out, policy::parse_step); }
    void read(const char *name, const Json &value, policy::Size &out) { set(name, value, out, policy::parse_size); }
    void read(const char *name, const Json &value, policy::Kind &out) {
        set(name, value, out, [](const std::string &text) -> policy::Result<policy::Kind, std::string> {
            if (const auto kind = policy::parse_kind(text)) return *kind;
            return policy::quote(text) + " is no kind of memory";
        });
    }
    void read(const char *name, const Json &value, policy::Limit &out) {
        set(name, value, out, [](const std::string &text) -> policy::Result<policy::Limit, std::string> {
            if (const auto limit = policy::parse_limit(text)) return *limit;
            return policy::quote(text) + " is no limit that a request can hit";
        });
    }
    template <class T>
    requires requires(Reading &io, T &value) { describe(io, value); }
    void read(const char * /*name*/, const Json &value, T &out) {
        Reading inner(value, fault_);
        describe(inner, out);
    }
    template <class T, class Parse>
    void set(const char *name, const Json &value, T &out, Parse parse) {
        std::string text;
        read(name, value, text);
        if (!fault_.empty()) return;
        if (auto parsed = parse(text))
            out = std::move(parsed).value();
        else
            fail(parsed.error());
    }
    void fail(const char *name, const std::string &what) { fail('"' + std::string(name) + "\" " + what); }

    const Json &object_;
    std::string &fault_;
    std::vector<std::string> known_;
};

}  // namespace curb::control
