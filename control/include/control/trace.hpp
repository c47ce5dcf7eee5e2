// The trace of a process: each change of its memory is one event, in a file that Chrome and Perfetto can show and that
// `curb report` and `curb replay` read.
//
// The file is a JSON array in their format: one event a line, each with a comma behind it. The closing bracket is left
// out, because the process may end at any moment. The first line is "[", the second the header (an event with the name
// "curb"). Events of two threads may stand in another order than their times.
//
//   [
//   {"ph":"M","name":"curb","ts":0,"pid":4711,"tid":4711,"args":{"trace":1,"version":"0.1.0","unix_ns":…,
//    "command":"python3 train.py","host":"node7","gpus":[{"gpu":0,"uuid":"GPU-…","name":"NVIDIA H100","total":…}]}},
//   {"ph":"i","s":"t","name":"alloc","ts":12.345,"pid":4711,"tid":4713,"args":{"gpu":0,"kind":"plain",
//    "pointer":"0x7f…","bytes":…,"charge":…,"of_kind":…,"held":…}},
//   {"ph":"X","name":"step",…,"dur":4100.5,"args":{"text":"SIGUSR1","step":"pools","bytes":…}},
//   {"ph":"C","name":"cuda:0","ts":…,"pid":4711,"args":{"plain":…,"pools":…}},        for viewers; parse() ignores it
//
// Members that are 0 or empty are left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/decisions/limit.hpp"
#include "policy/kinds.hpp"
#include "policy/policy.hpp"
#include "policy/values/result.hpp"

namespace curb::control::trace {

inline constexpr int kVersion = 1;

enum class What : std::uint8_t {
#define CURB_TRACE_EVENT(name, text) name,
#include "control/trace_events.def"
};
const char *name_of(What what) noexcept;
// Returns nullopt if there is no such event.
std::optional<What> parse_what(std::string_view name) noexcept;

// One event. The members that each kind of event uses:
//
//   alloc, free   gpu kind pointer bytes (asked for) charge of_kind held
//                 reused (taken from curb's cache, or put into it)
//   stack         gpu pointer bytes held, text (the calls, innermost first: "f+0x1 (lib.so) < main+0x2 (train)")
//   books         gpu kind of_kind held
//   heap          gpu bytes (above the driver's default: curb keeps them free) held
//   refuse, wait  gpu kind bytes held limit why
//   granted       gpu kind bytes held, duration_ns (of the wait)
//   allowance     gpu limit (the new one; policy::kUnbounded: none) held
//   step          step bytes (freed) duration_ns text (the trigger)
//   policy        gpu limit (the cap; policy::kUnbounded: none) of_kind (the allowance, the same) held
//                 text (file, rule)
//   out           bytes (moved to host memory), duration_ns (of the move; 0: not known), text: "nap", "suspend",
//                 "turn" (others have theirs), "light nap" (what only the driver can move stays), or later "deep" (the
//                 driver moves that too)
//   back          bytes, duration_ns (what the call waited that ended a nap, or the resume took)
//   end           nothing more
//   dropped       bytes (how many events)
//
// step, out, back, end and dropped concern the process, not one device: their gpu is 0.
struct Event {
    std::uint64_t ns = 0;  // since the trace began; of an event with a duration, its end
    What what{};
    policy::Kind kind{};
    policy::Limit why{};
    policy::Step step{};
    bool reused = false;
    int gpu = 0;  // ordinal
    int thread = 0;
    std::uint64_t pointer = 0;
    std::int64_t bytes = 0;
    std::int64_t charge = 0;    // the change of the held memory
    policy::Bytes of_kind = 0;  // held of this kind after the event
    policy::Bytes held = 0;     // held of the device after the event
    policy::Bytes limit = 0;
    std::uint64_t duration_ns = 0;
    std::string text{};
    friend bool operator==(const Event &, const Event &) = default;
};

struct Gpu {
    int gpu = 0;
    std::string uuid;
    std::string name;
    policy::Bytes total = 0;
    friend bool operator==(const Gpu &, const Gpu &) = default;
};

struct Header {
    int pid = 0;
    std::string version;       // of curb
    std::int64_t unix_ns = 0;  // since 1970, when the trace began
    std::string command;
    std::vector<Gpu> gpus;
    std::string host{};  // name of the machine; empty in older traces
    friend bool operator==(const Header &, const Header &) = default;
};

// Returns the first two lines, each with its newline. May throw std::bad_alloc, as all functions here.
std::string text(const Header &header);
// Appends the event's line, newline included.
void append(std::string &out, const Event &event, int pid);

// Appends the counters of one device for viewers: the held bytes by kind. With a newline.
void append_counters(std::string &out, std::uint64_t ns, int gpu, const policy::ByKind &kinds, int pid);

// One line of a trace.
struct Line {
    std::optional<Header> header;
    std::optional<Event> event;  // neither: the line is for viewers alone, or not known to this version
};
// The error says what is wrong with the line.
policy::Result<Line, std::string> parse(std::string_view line);

}  // namespace curb::control::trace
