// The build that the tests judge: its programs and libraries, and how it was made. It is the build in which the running
// test lies, unless CURB_TESTED names another one. So one compiled test judges the builds with sanitizers too.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace tested {

inline const std::string kBuild = [] {
    const char *named = std::getenv("CURB_TESTED");
    return named ? named : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string();
}();

// Returns what tests/tested.txt of the build says about this; CMake writes it.
inline std::string said(const std::string &of) {
    std::ifstream file(kBuild + "/tests/tested.txt");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(of + "=")) return line.substr(of.size() + 1);
    throw std::runtime_error(kBuild + "/tests/tested.txt does not name the " + of);
}

inline const std::string kSanitizers = said("sanitizers");     // as in -fsanitize=; empty: none
inline const std::string kSanitizerRuntime = said("runtime");  // to preload before libcurb.so; empty: none
inline const std::string kVersion = said("version");
inline const std::string kPython = said("python");
inline const std::string kSources = said("sources");
inline bool has_sanitizer() { return !kSanitizers.empty(); }

inline const std::string kCurb = kBuild + "/bin/curb";
inline const std::string kBooks = kBuild + "/bin/curb-sim-books";
inline const std::string kLibrary = kBuild + "/lib/libcurb.so";
inline const std::string kSim = kBuild + "/sim";
inline const std::string kScenarios = kBuild + "/tests/scenarios";
inline const std::string kNoCuda = kBuild + "/tests/no_cuda_scenarios";
inline const std::string kPressureScenarios = kBuild + "/tests/pressure_scenarios";
inline const std::string kPluginHost = kBuild + "/tests/plugin_host";
inline const std::string kStubHost = kBuild + "/tests/stub_host";
inline const std::string kWaits = kBuild + "/tests/waits";
inline const std::string kStaticWaits = kBuild + "/tests/waits_static";
inline const std::string kPlugins = kBuild + "/tests/plugins";
inline const std::string kPacedClock = kBuild + "/tests/libpaced_clock.so";
inline const std::string kSecondPreload = kBuild + "/tests/libsecond_preload.so";
inline const std::string kSlowWrites = kBuild + "/tests/libslow_writes.so";
inline const std::string kScarceMemory = kBuild + "/tests/libscarce_memory.so";
inline const std::string kTardyThreads = kBuild + "/tests/libtardy_threads.so";
inline const std::string kC10Cuda = kBuild + "/tests/stand_ins/libc10_cuda.so";
inline const std::string kPythonPrograms = kSources + "/tests/process/python";
inline const std::string kTraceFormat = kSources + "/tests/process/traces/trace_format.py";

}  // namespace tested
