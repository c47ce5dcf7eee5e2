// What the fuzzer of traces began with and what it found, with any compiler.
#include <algorithm>

#include "catch.hpp"
#include "corpus.hpp"
#include "matrix.hpp"
#include "trace_read_checks.hpp"

using namespace curb;

namespace {

std::vector<fuzz::Input> corpus() { return fuzz::corpus({CURB_TRACE_CORPUS}); }

}  // namespace

TEST_CASE("Of every trace of the corpus all holds that must hold of any file") {
    const auto files = corpus();
    REQUIRE(files.size() >= 12);
    for (const auto &[name, text] : files) {
        INFO(name);
        CHECK(fuzz::broken_trace(text) == "");
    }
    matrix::report(matrix::Name::fuzz_inputs, files.size());
}

TEST_CASE("Of every trace of the corpus cut off anywhere all holds too") {
    for (const auto &[name, text] : corpus()) {
        if (name.find("/found/") != std::string::npos) continue;
        for (std::size_t length = 0; length < std::min<std::size_t>(text.size(), 2'500); length += 3) {
            const std::string wrong = fuzz::broken_trace(text.substr(0, length));
            if (wrong.empty()) continue;  // Catch2's assertions are slow for so many rounds
            INFO(name << " cut off at " << length);
            FAIL(wrong);
        }
    }
}

TEST_CASE("The checks tell where the two readers of lines differ") {
    const std::string line =
        R"({"ph":"i","s":"t","name":"alloc","ts":1.000,"pid":1,"tid":1,"args":{"gpu":0,"bytes":1}},)";
    cli::Moment moment;
    std::string_view text;
    REQUIRE(cli::scan(line, moment, text));
    CHECK(fuzz::disagreement(line) == "");
    CHECK(fuzz::broken_trace("[\n" + line) == "");
}
