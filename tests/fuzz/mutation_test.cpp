// Policies, valid and invalid, cut off at every byte and changed at random: the parser must return a policy, or errors
// with their places. CURB_SEED=N repeats a run.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <set>
#include <sstream>

#include "../unit/helpers/bad_policies.hpp"
#include "corpus.hpp"
#include "policy/fields.hpp"
#include "policy_parse_checks.hpp"

using namespace curb;

namespace {

#ifdef CURB_SANITIZED
constexpr bool kCounts = true;
#else
constexpr bool kCounts = false;  // a read beyond the text may go unseen: the test makes fewer, and does not report them
#endif
constexpr std::size_t kLongest = 2'000;  // of a text to begin with: a few of the bad ones have a megabyte

std::uint64_t seed() {
    const char *said = std::getenv("CURB_SEED");
    return said ? std::strtoull(said, nullptr, 10) : std::random_device()();
}

std::vector<std::string> beginnings() {
    std::set<std::string> out;
    for (const auto &[name, text] : fuzz::corpus({CURB_CORPUS "/policy", CURB_EXAMPLES})) out.insert(text);
    out.insert(kWhole);
    for (const Bad &bad : kBad) out.insert(bad.text);
    std::erase_if(out, [](const std::string &text) { return text.size() > kLongest; });
    return {out.begin(), out.end()};
}

// Returns words of policies, valid and invalid.
std::vector<std::string> words() {
    std::istringstream list(R"({ } [ ] : , " \ /* */ // null true false 0 1 -1 1.5 1e999 -0 1e-400 NaN
        "*" "0s" "1ms" "8GiB" "" "75%" "101%" "0%" "365d" "366d" "cuda:0" "CUDA:0" "3B:00.0" "GPU-8f3a" "pools" "SIGUSR1"
        "none" "%p" "version":1 18446744073709551616 "match":{} \u0000 \ud83d)");
    std::vector<std::string> out{std::istream_iterator<std::string>(list), {}};
    for (const char *one : {"\n", "\r", "\t", " ", "\xC3\xA4", "\xFF", "\xE2\x82", "\xEF\xBB\xBF"})
        out.emplace_back(one);
    out.emplace_back(1, '\0');
#define CURB_FILE_FIELD(pointer, ...) out.emplace_back(pointer);
#define CURB_GPU_FIELD(pointer, ...) out.emplace_back(pointer);
#define CURB_JOB_FIELD(pointer, ...) out.emplace_back(pointer);
#define CURB_RULE_FIELD(pointer, ...) out.emplace_back(pointer);
#include "policy/fields.def"
    for (std::string &word : out)
        if (word.starts_with('/') && word.size() > 2) word = "\"" + word.substr(word.rfind('/') + 1) + "\": ";
    return out;
}

class Mutation {
  public:
    Mutation(std::vector<std::string> from, std::uint64_t seed) : from_(std::move(from)), random_(seed) {
        for (const std::string &text : from_)
            if (config::parse(text, fuzz::kName)) good_.push_back(text);
    }
    // Half of the texts begin as valid policies, half as any, most of which are invalid.
    std::string operator()() {
        std::string text = one_of(below(2) == 0 ? good_ : from_);
        for (std::size_t rounds = 1 + below(4); rounds != 0; --rounds) change(text);
        return text;
    }

  private:
    std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }
    const std::string &one_of(const std::vector<std::string> &all) { return all[below(all.size())]; }
    void change(std::string &text) {
        const std::size_t at = below(text.size() + 1), length = below(std::min<std::size_t>(text.size() - at, 40) + 1);
        switch (below(8)) {
            case 0:
                if (at < text.size()) text[at] = static_cast<char>(below(256));
                break;
            case 1:
                if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
                break;
            case 2: text.erase(at, length); break;
            case 3: text.insert(at, text.substr(at, length)); break;
            case 4: text.insert(at, one_of(words_)); break;
            case 5: text.replace(at, length, one_of(words_)); break;
            case 6: text.resize(at); break;
            default:  // the rest of another
                const std::string &other = one_of(from_);
                text = text.substr(0, at) + other.substr(below(other.size() + 1));
        }
    }

    std::vector<std::string> from_, good_, words_ = words();
    std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("A policy, valid or not, that is cut off or changed anywhere is a policy or has errors with their places") {
    const std::uint64_t seeded = seed(), wanted = matrix::figure(matrix::Name::mutated_policies) / (kCounts ? 1 : 10);
    CAPTURE(seeded);
    const std::vector<std::string> from = beginnings();
    REQUIRE(from.size() >= 250);
    std::uint64_t policies = 0, errors = 0;
    const auto tried = [&](const std::string &text) {
        const std::string wrong = fuzz::broken(text);
        if (!wrong.empty()) {  // Catch2's assertions are slow for so many rounds
            INFO("CURB_SEED=" << seeded << ": " << text);
            FAIL(wrong);
        }
        ++(config::parse(text, fuzz::kName) ? policies : errors);
    };
    std::uint64_t cut = 0;
    for (const std::string &text : from)
        for (std::size_t length = 0; length < text.size(); ++length, ++cut) tried(text.substr(0, length));
    Mutation mutated(from, seeded);
    policies = errors = 0;
    // Goes on until enough texts, some 3 in 100, were valid policies: else it might try the same few errors.
    while (policies + errors < wanted || (policies < wanted / 50 && errors < 10 * wanted)) tried(mutated());
    CHECK(policies >= wanted / 50);
    CHECK(errors >= wanted / 2);
    if (kCounts) matrix::report(matrix::Name::mutated_policies, cut + policies + errors);
}
