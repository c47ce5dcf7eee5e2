// The parent's side of one question: the child program, bare or under curb, and what it answered.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace conformance {

// The cap of every child: what one of 512 MiB fits under, beside a context, and two do not.
inline constexpr const char *kCap = "1280 MiB";

enum class Stubs { none, program, library };

// Where a child stands and how it asks.
struct Channel {
    std::string name;
    const char *how;
    const char *when = "main";
    bool linked = false;            // the program is linked with the driver
    Stubs stubs = Stubs::none;      // what is linked with libconformance_stubs.so instead
    const char *before = nullptr;   // a preload before curb
    const char *behind = nullptr;   // and one behind it
    bool behind_curb = false;       // what asks stands behind curb: curb is not meant
    bool bound_by_loader = false;   // references of the program's or a library's own
    const char *stubs_by = "name";  // how the stubs open the driver
};

struct Answer {
    std::string code;
    std::string place;   // object+offset, or null
    std::string symbol;  // of exactly that place
    bool error = false;
};

struct Outcome {
    std::vector<Answer> answers;
    int status = 0;
    std::string said;  // stderr
};

// What all children have in common.
struct Setting {
    std::filesystem::path curb;  // libcurb.so
    std::string library_paths;   // of the driver's libraries, by colons
};

// The folder of this program, where its children and their libraries are too.
std::filesystem::path here();

Outcome run(const Setting &setting, const Channel &channel, const std::vector<std::string> &requests, bool under_curb);

// The answer to a request; one without a place if there is none.
const Answer &answer(const Outcome &outcome, std::size_t request);

// The defined functions of a shared object's dynamic symbol table.
std::vector<std::string> exports_of(const std::filesystem::path &file);

}  // namespace conformance
