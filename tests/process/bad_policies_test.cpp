// A running process whose policy file is made wrong in every way that is known: the policy in force stays in force.
#include "../unit/bad_policies.hpp"
#include "steered.hpp"

using namespace steered;

TEST_CASE("no wrong policy replaces the one in force, whatever is wrong with it, and each is told with its place") {
    const TempDir runtime;
    const std::string file = runtime / "job.json";
    Capped process(runtime.path(), under(runtime, capped_at("2GiB")));
    process("fill");
    const Bytes held = status(process).gpus.at(0).held;
    for (const Bad &bad : kBad) {
        INFO(bad.text.substr(0, 200));
        runtime.write("job.json.new", bad.text);
        fs::rename(runtime / "job.json.new", file);
        const ReloadReport report = reload(process);
        CHECK(report.changes.empty());
        REQUIRE(!report.errors.empty());
        const std::string place = file + ":" + std::to_string(bad.line) + ":" + std::to_string(bad.column) + ": ";
        CHECK(report.errors.front().starts_with(place));
        CHECK(status(process).gpus.at(0).cap == 2 * GiB);
    }
    CHECK(process("take") == "refused");
    CHECK(status(process).gpus.at(0).held == held);
    CHECK(held <= 2 * GiB);
    CHECK(status(process).policy.error.find(file) == 0);
    // It was not deaf: a right one is in force at once.
    runtime.write("job.json", capped_at("3GiB"));
    CHECK(reload(process).errors.empty());
    CHECK(status(process).gpus.at(0).cap == 3 * GiB);
    CHECK(process("take") == "ok");
}
