// The parent's side: runs the child program, bare or under curb, and reads its answers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace conformance {

// The cap of every child: a context and one piece of 512 MiB fit under it, two pieces do not.
inline constexpr const char *kCap = "1280 MiB";

enum class Stubs { none, program, library };

// How a child is started, and how it looks functions up.
struct Channel {
    std::string name;
    const char *how;
    const char *when = "main";
    bool linked = false;            // the program is linked with the driver
    Stubs stubs = Stubs::none;      // the part that is linked with libconformance_stubs.so instead
    const char *before = nullptr;   // a preload before curb
    const char *behind = nullptr;   // and one behind it
    bool behind_curb = false;       // the look-up starts behind curb, so it must not find curb
    bool bound_by_loader = false;   // by references that the loader binds
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

// The same for all children.
struct Setting {
    std::filesystem::path curb;  // libcurb.so
    std::string library_paths;   // of the driver's libraries, separated by colons
};

// Returns the folder of this program, its children and their libraries.
std::filesystem::path here();

Outcome run(const Setting &setting, const Channel &channel, const std::vector<std::string> &requests, bool under_curb);

// Returns the answer to a request; an empty one if there is none.
const Answer &answer(const Outcome &outcome, std::size_t request);

// Returns the functions that a shared object's dynamic symbol table defines.
std::vector<std::string> exports_of(const std::filesystem::path &file);

}  // namespace conformance
