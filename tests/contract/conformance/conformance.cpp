// Checks look-ups under curb: a program must find the functions that curb hooks in curb, and all others where they are
// without curb. It tries every way to look a function up, at every time of a process's life.
//
//   conformance [--driver DIR] [--curb FILE]
//
// The same child program answers each request bare and under curb (conformance_probe.hpp), on the driver that the
// loader finds: in LD_LIBRARY_PATH, or DIR. The answer that is due under curb follows from the bare one and the kind of
// the row in shim/driver/tables/entry_points.def. Exit status: 0 all cases hold, 1 not all, 2 could not be run, 77 no
// driver in DIR.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "conformance_probe.hpp"
#include "conformance_rows.hpp"
#include "conformance_run.hpp"

namespace fs = std::filesystem;
using namespace conformance;

namespace {

struct Options {
    Setting setting{.curb = here() / "../lib/libcurb.so", .library_paths = {}};
    fs::path driver;
    bool has_nvml = true;
};
Options options;

constexpr const char *kNext = "libconformance_next.so", *kEarly = "libconformance_early.so";

// Look-ups by the export's name, at the start of main.
const Channel kLinked{.name = "linked program", .how = "linked", .linked = true, .bound_by_loader = true};
const Channel kHandle{.name = "dlsym of dlopen", .how = "handle"};
const Channel kStubs{
    .name = "library linked with stubs", .how = "stubs-linked", .stubs = Stubs::library, .bound_by_loader = true};
const Channel kOthers[] = {
    {.name = "linked library", .how = "linked", .when = "constructor", .behind = kEarly, .bound_by_loader = true},
    {.name = "dlsym of dlopen by path", .how = "path"},
    {.name = "dlsym of dlopen, linked program", .how = "handle", .linked = true},
    {.name = "dlsym of dlopen(null)", .how = "self"},
    {.name = "dlsym of dlopen(null), linked program", .how = "self", .linked = true},
    {.name = "RTLD_DEFAULT, driver global", .how = "default"},
    {.name = "RTLD_DEFAULT, driver local", .how = "default-local"},
    {.name = "RTLD_DEFAULT, no driver", .how = "default-none"},
    {.name = "RTLD_DEFAULT, linked program", .how = "default", .linked = true},
    {.name = "dlvsym", .how = "versioned"},
    {.name = "dlvsym of RTLD_DEFAULT", .how = "versioned-default"},
    {.name = "RTLD_NEXT, no driver", .how = "next-none", .before = kNext},
    {.name = "in a library's constructor", .how = "handle", .when = "constructor", .behind = kEarly},
    {.name = "in the constructor of a library before curb", .how = "handle", .when = "constructor", .before = kEarly},
    {.name = "in a library's destructor", .how = "handle", .when = "destructor", .behind = kEarly},
    {.name = "program linked with stubs", .how = "stubs-linked", .stubs = Stubs::program, .bound_by_loader = true},
    {.name = "RTLD_DEFAULT, program linked with stubs", .how = "stubs-default", .stubs = Stubs::program},
    {.name = "dlsym of stubs", .how = "stubs-handle", .stubs = Stubs::program},
    {.name = "RTLD_DEFAULT, library linked with stubs", .how = "stubs-default", .stubs = Stubs::library},
};

std::vector<Channel> symbol_channels() {
    std::vector<Channel> all{kLinked, kHandle, kStubs};
    all.insert(all.end(), std::begin(kOthers), std::end(kOthers));
    // At other times of a process's life.
    constexpr const char *kTimes[][2] = {{"fork", "after fork"},
                                         {"exec", "after fork and exec"},
                                         {"at-exit", "in an exit handler"},
                                         {"static-destructor", "in a static object's destructor"}};
    for (const auto &[when, name] : kTimes)
        for (Channel channel : {kLinked, kHandle, kStubs}) {
            channel.name += std::string(", ") + name;
            channel.when = when;
            all.push_back(channel);
        }
    // Another preload, on either side of curb.
    for (const char *how : {"next", "versioned-next"})
        for (const bool behind : {false, true}) {
            Channel channel{
                .name = std::string("RTLD_NEXT of a preload ") + (behind ? "behind" : "before") + " curb, " + how,
                .how = how,
                .linked = true};
            (behind ? channel.behind : channel.before) = kNext;
            channel.behind_curb = behind;
            all.push_back(channel);
        }
    Channel by_path = kStubs;
    by_path.name += " that open the driver by path";
    by_path.stubs_by = "path";
    all.push_back(by_path);
    return all;
}

// Look-ups by cuGetProcAddress.
const Channel kProcChannels[] = {
    {.name = "cuGetProcAddress", .how = "v1"},
    {.name = "cuGetProcAddress_v2", .how = "v2"},
    {.name = "cuGetProcAddress_v2, legacy flag", .how = "v2-legacy"},
    {.name = "cuGetProcAddress_v2, no status", .how = "v2-no-status"},
    {.name = "cuGetProcAddress_v2 of itself", .how = "v2-nested"},
    {.name = "cuGetProcAddress_v2, linked program", .how = "v2", .linked = true},
    {.name = "cuGetProcAddress_v2 in a library's constructor", .how = "v2", .when = "constructor", .behind = kEarly},
    {.name = "cuGetProcAddress_v2 in an exit handler", .how = "v2", .when = "at-exit"},
    {.name = "cuGetProcAddress_v2 of stubs", .how = "v2-stubs", .stubs = Stubs::library},
};

// Counts the cases of each channel, and prints those that fail.
class Cases {
  public:
    void begin(const std::string &channel) {
        finish();
        channel_ = channel;
        held_ = made_ = 0;
    }
    void check(bool holds, const std::string &what, const std::string &why) {
        ++made_;
        held_ += holds;
        constexpr int kShown = 12;
        if (holds) return;
        if (made_ - held_ <= kShown) std::printf("  %s: %s: %s\n", channel_.c_str(), what.c_str(), why.c_str());
        if (made_ - held_ == kShown + 1) std::printf("  %s: and more\n", channel_.c_str());
    }
    void note(const std::string &text) { note_ = text; }
    void finish() {
        if (made_ || !note_.empty()) std::printf("%-55s %5d of %5d%s\n", channel_.c_str(), held_, made_, note_.c_str());
        all_held_ += held_, all_made_ += made_;
        held_ = made_ = 0;
        note_.clear();
    }
    bool sum_up() {
        finish();
        std::printf("%d of %d cases hold\n", all_held_, all_made_);
        return all_made_ > 0 && all_held_ == all_made_;
    }

  private:
    std::string channel_, note_;
    int held_ = 0, made_ = 0, all_held_ = 0, all_made_ = 0;
};
Cases cases;

bool is_curbs(const Answer &answer) {
    return answer.place.rfind(options.setting.curb.filename().string() + "+", 0) == 0;
}
std::string written(const Answer &answer) {
    if (answer.place.empty()) return "no answer";
    return answer.code + " " + answer.place + (answer.symbol.empty() ? "" : " (" + answer.symbol + ")") +
           (answer.error ? ", an error" : "");
}

// The places and names of the driver's exports that curb hooks. Two may be in one place.
std::multimap<std::string, std::string> stood_in_front_of;

bool is_wrapper_for(const Answer &curbed, const std::string &place) {
    const auto [begin, end] = stood_in_front_of.equal_range(place);
    return is_curbs(curbed) &&
           std::any_of(begin, end, [&](const auto &entry) { return entry.second == curbed.symbol; });
}

bool asks_for_proc_address(const Channel &channel) {
    return std::any_of(std::begin(kProcChannels), std::end(kProcChannels),
                       [&](const Channel &one) { return std::string_view(one.how) == channel.how; });
}
// True if the program or a preload of it is linked with NVML.
bool needs_nvml(const Channel &channel) { return channel.linked || channel.before || channel.behind; }
bool without_driver(const Channel &channel) {
    return std::string_view(channel.how).find("none") != std::string_view::npos;
}
// True if the channel finds glibc's own functions and not those in front of them: it asks glibc itself, or for a
// version, which only glibc's definitions have.
bool finds_glibc(const Channel &channel) {
    const std::string_view how = channel.how;
    return how == "handle" || how == "path" || how.substr(0, 7) == "version";
}

// Each child must exit with 0.
void check_end(const char *which, const Outcome &outcome) {
    if (outcome.status == 0) return;
    cases.check(false, std::string("the program ") + which,
                "exit status " + std::to_string(outcome.status) + ": " + outcome.said);
}
void check_ends(const Outcome &bare, const Outcome &curbed) {
    check_end("bare", bare);
    check_end("under curb", curbed);
}

// The driver answers these also while the process is moved out of its GPUs, so they need no gate.
bool needs_no_gate(std::string_view symbol) {
    return symbol.starts_with("cuCheckpointProcess") || symbol.starts_with("cuGetError") ||
           symbol == "cuCtxGetCurrent" || symbol == "cuDriverGetVersion" || symbol == "cuGetExportTable";
}
// True if the function is behind the gate under curb: its export is curb's, or its address a thunk of it.
bool is_gated(std::string_view symbol, const Answer &bare, const Answer &curbed) {
    return (is_curbs(curbed) && curbed.symbol == symbol) || curbed.place == "thunk of " + bare.place ||
           (needs_no_gate(symbol) && curbed.place == bare.place);
}
// True for a function of the CUDA driver, or a stub of one. (libcuda has other exports for debuggers, the simulated one
// for tests.)
bool is_drivers(std::string_view symbol, const Answer &bare) {
    return bare.place != "null" && symbol.starts_with("cu") && std::isupper(symbol[2]);
}

// True for a function of NVML without a row that the look-up finds as a thunk. In the global scope a look-up finds the
// function itself.
bool is_passed_nvml(std::string_view symbol, const Answer &bare, const Answer &curbed) {
    return symbol.starts_with("nvml") && curbed.error == bare.error && curbed.place == "thunk of " + bare.place;
}

// True if a symbol is where it must be under curb.
bool is_in_place(const Channel &channel, const std::string &symbol, const Answer &bare, const Answer &curbed) {
    const bool untouched = curbed.place == bare.place && curbed.error == bare.error;
    const Row *row = row_of(symbol);
    const bool of_stubs = std::string_view(channel.how) == "stubs-handle";  // the stubs reach curb when they are called
    if (channel.behind_curb || of_stubs) return untouched;
    if (!row || row->kind == Kind::pass || row->kind == Kind::call) {
        if (is_drivers(symbol, bare)) return is_gated(symbol, bare, curbed) && curbed.error == bare.error;
        if (is_passed_nvml(symbol, bare, curbed)) return true;
        return row && channel.bound_by_loader ? is_gated(symbol, bare, curbed) : untouched;
    }
    if (row->kind == Kind::libc && finds_glibc(channel)) return untouched;
    const bool replaced = is_curbs(curbed) && curbed.symbol == symbol;
    // A sanitizer's interceptor stands before curb, or behind it.
    if (row->kind == Kind::libc && bare.place.rfind("libc.so.6", 0) != 0) return untouched || replaced;
    // The driver lacks it. The loader still binds a reference to curb's export, which curb cannot prevent.
    if (bare.place == "null") return channel.bound_by_loader ? replaced : untouched;
    return replaced && curbed.error == bare.error;
}

// "cuMemAlloc" of "proc cuMemAlloc 3020 0".
std::string request_name(const std::string &request) {
    const std::size_t begin = request.find(' ') + 1;
    return request.substr(begin, request.find(' ', begin) - begin);
}

void compare_places(const Channel &channel, const std::vector<std::string> &requests) {
    const Outcome bare = run(options.setting, channel, requests, false),
                  curbed = run(options.setting, channel, requests, true);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Answer &without = answer(bare, i), &with = answer(curbed, i);
        bool holds = !without.place.empty() && with.code == without.code;
        if (!asks_for_proc_address(channel))
            holds = holds && is_in_place(channel, requests[i].substr(std::strlen("symbol ")), without, with);
        else if (stood_in_front_of.count(without.place))
            holds = holds && is_wrapper_for(with, without.place);
        else if (const std::string name = request_name(requests[i]); is_drivers(name, without))
            holds = holds && is_gated(name, without, with);
        else
            holds = holds && with.place == without.place;
        cases.check(holds, requests[i], "bare " + written(without) + ", under curb " + written(with));
    }
    check_ends(bare, curbed);
}

// Neither cuInit nor a context was found: the look-ups have shown that this channel finds nothing here.
constexpr const char *kNotToBeHad = "777 777 777";

// Returns the answer that a call must give under curb, from the bare one.
std::string due(const std::string &request, const std::string &bare) {
    if (request.rfind("allocate ", 0) == 0 && bare == "0 0 0") return "0 2 0";
    if (request.rfind("figures ", 0) == 0 && bare.rfind("0 ", 0) == 0) return std::string("0 ") + kCap;
    return bare;
}

void compare_calls(const Channel &channel, const std::vector<std::string> &requests) {
    const Outcome bare = run(options.setting, channel, requests, false);
    if (answer(bare, 0).code == kNotToBeHad) return cases.note("  not to be had on this driver");
    const Outcome curbed = run(options.setting, channel, requests, true);
    int idle = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const std::string &without = answer(bare, i).code, &with = answer(curbed, i).code;
        const std::string expected = due(requests[i], without);
        bool holds = !without.empty() && with == expected;
        // The driver lacks the function of the reference or the stub: the call must do nothing and return an error.
        const bool lacks = (without == "absent" && channel.bound_by_loader) || without.rfind("7777", 0) == 0;
        if (lacks) holds = !with.empty() && with[0] != '0';
        idle += i != 0 && expected == without;
        cases.check(holds, requests[i], "bare " + without + ", under curb " + with + ", due " + expected);
    }
    if (idle) cases.note("  (" + std::to_string(idle) + " not to be had on this driver)");
    check_ends(bare, curbed);
}

// Names that look like rows but are not.
const char *const kForeign[] = {"cu",
                                "cuMemAlloc_v9",
                                "cuMemAlloc_v2_ptsz",
                                "cuNoSuchFunction",
                                "cudaMalloc",
                                "cudnnCreate",
                                "cublasCreate_v2",
                                "cufftExecC2C",
                                "curl_easy_init",
                                "cumsum",
                                "cuMemAlloc_V2",
                                "nvmlNoSuchFunction",
                                "nvmlInit_v9",
                                "nvml"};

// Every row, every export of the driver's libraries, and the foreign names.
std::vector<std::string> symbol_requests() {
    std::set<std::string> names(std::begin(kForeign), std::end(kForeign));
    for (const Row &row : kRows) names.insert(row.symbol);
    const Outcome where = run(options.setting, {.name = "", .how = "handle"},
                              {"library libcuda.so.1", "library libnvidia-ml.so.1"}, false);
    for (std::size_t i = 0; i < 2; ++i) {
        const std::string &path = answer(where, i).code;
        options.setting.library_paths += (i ? ":" : "") + path;
        for (const std::string &name : exports_of(path)) names.insert(name);
    }
    std::vector<std::string> requests;
    for (const std::string &name : names) requests.push_back("symbol " + name);
    return requests;
}

// The table's rows alone: the programs here are linked with no others.
std::vector<std::string> row_requests(bool (*wanted)(const Row &)) {
    std::vector<std::string> requests;
    for (const Row &row : kRows)
        if (wanted(row)) requests.push_back(std::string("symbol ") + row.symbol);
    return requests;
}

// Each name of the table with each flag, at the version that brought each of its forms, right before it, and now.
std::vector<std::string> proc_requests() {
    std::set<std::string> requests;
    for (const Row &row : kRows)
        for (const int version : {0, row.since - 1, row.since, 13000})
            for (const int flags : {0, 1, 2, 4})
                if (*row.base)
                    requests.insert(std::string("proc ") + row.base + ' ' + std::to_string(version) + ' ' +
                                    std::to_string(flags));
    for (const char *name : kForeign) requests.insert(std::string("proc ") + name + " 13000 0");
    return {requests.begin(), requests.end()};
}

std::vector<std::string> recorded_requests() {
    const fs::path name_of_file = here() / "cudart13_requests.txt";
    std::ifstream file(name_of_file);
    std::vector<std::string> requests;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        std::string name, flags;
        int version = 0;
        fields >> name >> version >> flags;
        if (name == "\"\"") name.clear();
        requests.push_back("proc " + name + ' ' + std::to_string(version) + ' ' + flags.substr(1));
    }
    if (requests.empty()) {
        std::fprintf(stderr, "conformance: no requests in %s\n", name_of_file.c_str());
        std::exit(2);
    }
    return requests;
}

std::vector<std::string> call_requests(bool with_nvml) {
    std::vector<std::string> requests{"init"};
    for (const Row &row : kRows) {
        if (row.kind == Kind::wrap && allocates(row.symbol)) requests.push_back(std::string("allocate ") + row.symbol);
        if (tells_memory(row.symbol) && (row.kind == Kind::wrap || (row.kind == Kind::nvml && with_nvml)))
            requests.push_back(std::string("figures ") + row.symbol);
    }
    return requests;
}

[[noreturn]] void usage() {
    std::fputs("usage: conformance [--driver DIR] [--curb FILE] [--nvml no]\n", stderr);
    std::exit(2);
}

void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const std::string_view option = argv[i];
        if (i + 1 == argc) usage();
        if (option == "--driver")
            options.driver = argv[i + 1];
        else if (option == "--curb")
            options.setting.curb = argv[i + 1];
        else if (option == "--nvml" && std::string_view(argv[i + 1]) == "no")
            options.has_nvml = false;
        else
            usage();
    }
    options.setting.curb = fs::weakly_canonical(options.setting.curb);
}

}  // namespace

int main(int argc, char **argv) {
    read_options(argc, argv);
    if (!fs::exists(options.setting.curb)) {
        std::fprintf(stderr, "conformance: no %s\n", options.setting.curb.c_str());
        return 2;
    }
    if (!options.driver.empty()) {
        if (!fs::exists(options.driver / "libcuda.so.1")) {
            std::printf("skipped: no libcuda.so.1 in %s\n", options.driver.c_str());
            return 77;
        }
        // In front of the folders that are set, since a driver's folder may lack NVML.
        const char *path = options.has_nvml ? std::getenv("LD_LIBRARY_PATH") : nullptr;
        setenv("LD_LIBRARY_PATH", (options.driver.string() + (path ? std::string(":") + path : "")).c_str(), 1);
    }

    const std::vector<std::string> symbols = symbol_requests();
    const Outcome there = run(options.setting, {.name = "", .how = "handle"}, symbols, false);
    for (std::size_t i = 0; i < symbols.size(); ++i) {
        const Row *row = row_of(symbols[i].substr(std::strlen("symbol ")));
        if (row && (row->kind == Kind::wrap || row->kind == Kind::nvml) && answer(there, i).place != "null")
            stood_in_front_of.emplace(answer(there, i).place, row->symbol);
    }
    if (stood_in_front_of.empty()) {
        std::fprintf(stderr, "conformance: no driver: %s\n", there.said.c_str());
        return 2;
    }

    const auto rows = row_requests([](const Row &) { return true; });
    std::vector<Channel> by_symbol = symbol_channels(), by_proc{std::begin(kProcChannels), std::end(kProcChannels)};
    for (auto *channels : {&by_symbol, &by_proc})
        std::erase_if(*channels, [](const Channel &channel) { return !options.has_nvml && needs_nvml(channel); });
    for (const Channel &channel : by_symbol) {
        cases.begin(channel.name);
        compare_places(channel, channel.bound_by_loader ? rows : symbols);
    }
    const auto own = row_requests([](const Row &row) { return *row.base != 0; });
    auto swept = proc_requests(), recorded = recorded_requests();
    for (const Channel &channel : by_proc) {
        cases.begin(channel.name);
        compare_places(channel, own);
        compare_places(channel, swept);
    }
    // The runtime's own requests, before cuInit and after it.
    for (const bool initialised : {false, true}) {
        cases.begin(initialised ? "what libcudart 13.0 asks, after cuInit" : "what libcudart 13.0 asks");
        if (initialised) recorded.insert(recorded.begin(), "init");
        compare_places(kProcChannels[1], recorded);
    }
    for (const Channel &channel : by_symbol) {
        if (channel.behind_curb || without_driver(channel)) continue;
        cases.begin("calls, " + channel.name);
        compare_calls(channel, call_requests(options.has_nvml));
    }
    for (const Channel &channel : by_proc) {
        cases.begin("calls, " + channel.name);
        compare_calls(channel, call_requests(false));
    }
    return cases.sum_up() ? 0 : 1;
}
