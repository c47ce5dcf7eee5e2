// Checks the corpus of the fuzzer of traces, with any compiler.

#include "corpus.hpp"
#include "trace_read_checks.hpp"

using namespace curb;

TEST_CASE("Every trace of the corpus, whole or cut off, passes the checks of any file") {
    const auto files = fuzz::corpus({CURB_CORPUS "/trace"});
    fuzz::check_all(files, 12, fuzz::broken);
    fuzz::check_all_cut_off(files, 2'500, fuzz::broken);
}
