// What --help says below the options of each command: exit status, what is not obvious, examples. Beside main.cpp, so
// that both can be read.
#pragma once

namespace curb::cli::help {

extern const char *const kExamples;
extern const char *const kRun;
extern const char *const kPs;
extern const char *const kRelease;
extern const char *const kCap;
extern const char *const kPolicy;
extern const char *const kCheck;
extern const char *const kShow;
extern const char *const kExplain;
extern const char *const kSchema;
extern const char *const kReload;
extern const char *const kSuspend;
extern const char *const kResume;
extern const char *const kReport;
extern const char *const kReplay;
extern const char *const kMetrics;
extern const char *const kDoctor;

}  // namespace curb::cli::help
