// What trace.cpp writes and trace_read.cpp reads. Private to control/.
#pragma once

#include "control/trace.hpp"
#include "members.hpp"

namespace curb::control {

// The header's arguments, for Writing and Reading.
struct HeaderArguments {
    int trace = trace::kVersion;
    trace::Header header{};
};
template <class Io>
void describe(Io &io, Is<trace::Gpu> auto &value) {
    io("gpu", value.gpu);
    io("uuid", value.uuid);
    io.where_set("name", value.name);
    io("total", value.total);
}
template <class Io>
void describe(Io &io, Is<HeaderArguments> auto &value) {
    io("trace", value.trace);
    io("version", value.header.version);
    io("unix_ns", value.header.unix_ns);
    io("command", value.header.command);
    io.where_set("host", value.header.host);
    io("gpus", value.header.gpus);
}

namespace trace {

inline constexpr std::string_view kInstant = R"({"ph":"i","s":"t","name":")";
inline constexpr std::string_view kLasting = R"({"ph":"X","name":")";

}  // namespace trace
}  // namespace curb::control
