// The child's side of the conformance suite: it looks functions up in one way, calls them, and prints the results.
// conformance.cpp runs the same child bare and under curb, and compares.
//
// Requests are lines on stdin, each answered by one line on stdout:
//
//   init                         cuInit, with the primary context of device 0 current
//   symbol NAME                  where the export NAME is
//   proc NAME VERSION FLAGS      the answer of cuGetProcAddress
//   allocate NAME                512 MiB by this export, twice; all given back; once more
//   figures NAME                 the device's memory as this function returns it
//   library SONAME               the path of the library that is loaded under this name, as the code
//
// An answer is `code TAB place TAB symbol TAB error`: the code is "result/status" or "-", the place "object+offset" or
// "null", the symbol the name of the export at exactly this place, and the error 1 if dlerror has one.
#pragma once

#include <string>
#include <string_view>

namespace conformance {

// Answers all requests. `how` is the way to look up:
//   linked                       references bound by the loader
//   handle, path, self           dlsym of dlopen("libcuda.so.1"), of its full path, of dlopen(null)
//   default, default-local       dlsym(RTLD_DEFAULT), the driver opened RTLD_GLOBAL or RTLD_LOCAL
//   default-none, next-none      the driver not opened at all
//   versioned, versioned-default dlvsym
//   next, versioned-next         RTLD_NEXT, asked by libconformance_next.so
//   v1, v2, v2-no-status         cuGetProcAddress, _v2, and _v2 without a status
//   v2-nested, v2-legacy         a _v2 that _v2 itself gave out, and with the flag for the legacy stream
// Where the driver is not opened, but linked with libconformance_stubs.so:
//   stubs-linked, stubs-default  references, and RTLD_DEFAULT
//   stubs-handle, v2-stubs       dlsym of that library, and _v2 by its stub
void answer_requests(const char *how);

// Answers when `when` says: now (main), in a child or a new program (fork, exec), or at the end (at-exit,
// static-destructor: after cuInit now). Returns the exit status of the program.
int answer_when(std::string_view when, const char *how, char **argv);

// Returns the reference of this program or library to a row's export. Null unless it is linked with
// conformance_references.cpp.
extern void *(*reference)(const char *symbol);
void *linked_reference(const char *symbol);

// Looks up a driver function. Returns null if this way does not find it.
using Find = void *(*)(const char *symbol);

// Returns whether a family of memory allocates by this export.
bool allocates(std::string_view symbol);
// Returns whether it reports the device's memory.
bool tells_memory(std::string_view symbol);

std::string allocate(Find find, const std::string &symbol);
std::string figures(Find find, const std::string &function);
std::string initialise(Find find);

}  // namespace conformance
