// config/, policy/ and the lines of a trace throw nothing, except std::bad_alloc where a declaration says so. The 1st,
// 2nd, 3rd … allocation fails, until the work ends without a failure.
#include <cstdlib>
#include <new>

#include "catch.hpp"
#include "config/load.hpp"
#include "each_event.hpp"
#include "policy/values/size.hpp"
#include "temp_dir.hpp"

using namespace curb;

namespace {

long allocations_left = -1;  // until one fails; -1: none fails
bool fail_on = false;        // the later ones fail too

bool fails() {
    if (allocations_left < 0) return false;
    if (allocations_left > 0) return --allocations_left, false;
    if (!fail_on) allocations_left = -1;
    return true;
}

void *allocate(std::size_t size) {
    if (!fails()) {
        if (void *memory = std::malloc(size == 0 ? 1 : size)) return memory;
    }
    throw std::bad_alloc();
}

// Runs the work once for each of its allocations, which fails alone; then again, with all later ones failing too.
// Returns the number of allocations.
template <class Work>
long with_each_allocation_failing(Work work) {
    for (const bool on : {false, true}) {
        for (long nth = 0;; ++nth) {
            fail_on = on;
            allocations_left = nth;
            work();
            const bool failed = on ? allocations_left == 0 : allocations_left < 0;
            allocations_left = -1;
            if (!failed && on) return nth;
            if (!failed) break;
        }
    }
    return 0;
}

}  // namespace

// Visible to libstdc++ too: clang hides those that its <new> does not declare.
#pragma GCC visibility push(default)
void *operator new(std::size_t size) { return allocate(size); }
void *operator new[](std::size_t size) { return allocate(size); }
void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return fails() ? nullptr : std::malloc(size); }
void operator delete(void *memory, const std::nothrow_t &) noexcept { std::free(memory); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }
#pragma GCC visibility pop

TEST_CASE("If memory runs out, a wrong policy is still refused, without an exception") {
    for (const char *text :
         {R"({"version": 1, "gpu": {"*": {"cap": "8GiB"}, "cuda:0": {"cap": "a long text that is no size"},
                                 "0000:3B:00.0": {"report": "device"}, "GPU-8f3a1b2c-0d4e": {"report": "none"},
                                 "gpu:0": {}, "GPU-8g": {}, "3B:00.0": {},
                                 "nvml:0": {"growth": {"every": "a long text that is no time", "factor": "1.5"}}},
            "release": {"signal": "SIGUSR2", "steps": ["pools", "unknown"], "before_growth": "yes"},
            "frameworks": {"env": {"LD_A_LONG_NAME_THAT_IS_BARRED": "x", "a long name that is none": 1}},
            "rules": [{}, {"match": {"exe": 1, "env": {"A": "b"}}, "rules": []}], "unknown": [1, 2.5, null]})",
          R"({"version": 1, "gpu": {"*": {"cap": "8GiB", "growth": {"start": "9GiB", "step": "1GiB"}}},
            "rules": [{"name": "a name that is longer than a small string", "match": {},
                       "gpu": {"*": {"growth": {"start": "10GiB"}}}}]})"})
        CHECK(with_each_allocation_failing([&] {
                  if (config::parse(text, "a-file-name-too-long-for-a-small-string.json")) std::abort();
              }) > 20);
}

TEST_CASE("Out of memory is not reported as a wrong size") {
    CHECK(with_each_allocation_failing([] {
              try {
                  const auto size = policy::parse_size("a text that is no size and is not short either");
                  if (size || size.error().find("is not a size") == std::string::npos) std::abort();
              } catch (const std::bad_alloc &) {
                  return;
              }
          }) > 0);
}

TEST_CASE("If memory runs out, a policy file is refused whole, without an exception") {
    const TempDir dir;
    config::Source source;
    source.file = dir.write("a-name-that-is-longer-than-a-small-string.json",
                            R"({"version": 1, "gpu": {"*": {"cap": "80GiB"}}, "trace": {"file": "a/long/path/to/it"},
    "frameworks": {"env": {"A_NAME_THAT_IS_LONGER_THAN_A_SMALL_STRING": "and a value that is longer than one too"}},
    "rules": [{"match": {"args": "no such arguments"}}, {"match": {"user": "*"}, "gpu": {"*": {"cap": "2GiB"}}}]})");
    source.cap = "8GiB";
    source.ceiling.clear();
    const auto whole = config::load(source, config::this_process);
    REQUIRE(whole);
    CHECK(with_each_allocation_failing([&] {
              const auto some = config::load(source, config::this_process);
              if (some && (some->policy != whole->policy || some->rule != whole->rule)) std::abort();
              if (!some && !config::is_for_want_of_memory(some.error())) std::abort();
          }) > 50);
}

TEST_CASE("Out of memory while reading a ceiling is not taken for no ceiling") {
    const TempDir dir;
    config::Source source;
    source.ceiling = dir.write("a-name-that-is-longer-than-a-small-string.json", "{}");
    CHECK(with_each_allocation_failing([&] {
              if (config::load(source, config::this_process)) std::abort();
          }) > 5);
}

TEST_CASE("Out of memory while looking for a policy is not taken for no policy") {
    const auto environment = [](const char *name) -> const char * {
        return std::string_view(name) == "CURB_POLICY" ? "a-relative-path-that-needs-memory/policy.json" : nullptr;
    };
    const std::function<const char *(const char *)> look_up = environment;
    CHECK(with_each_allocation_failing([&] {
              try {
                  if (config::locate(look_up).none()) std::abort();
              } catch (const std::bad_alloc &) {
                  return;
              }
          }) > 0);
}

TEST_CASE("Out of memory in a trace's line is not taken for a whole line") {
    const auto line_of = [](const control::trace::Event &event) {
        std::string line;
        control::trace::append(line, event, 4711);
        control::trace::append_counters(line, event.ns, 0, {}, 4711);
        return line;
    };
    for (const control::trace::Event &event : each_event()) {
        const std::string whole = line_of(event);
        CHECK(with_each_allocation_failing([&] {
                  try {
                      if (line_of(event) != whole) std::abort();
                  } catch (const std::bad_alloc &) {
                      return;
                  }
              }) > 2);
    }
}
