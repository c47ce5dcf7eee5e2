// Finds the driver's own functions behind a preload.

#include "driver.hpp"
#include "symbols.hpp"

namespace bench {

namespace {

Direct load() {
    Direct own{.functions = driver(), .missing = ""};
#define BENCH_FIND(name)                                                                         \
    own.functions.name = reinterpret_cast<decltype(&::name)>(own_symbol("libcuda.so.1", #name)); \
    if (!own.functions.name && own.missing.empty()) own.missing = "no " #name " in libcuda.so.1";
    BENCH_FUNCTIONS(BENCH_FIND)
#undef BENCH_FIND
    return own;
}

}  // namespace

const Direct &direct() {
    static const Direct own = load();
    return own;
}

}  // namespace bench
