// A model of a process on a shared device, under random histories. policy:: makes all its decisions; the model checks
// them by rules of its own, over plain sums.
#include <array>
#include <random>
#include <string>

#include "catch.hpp"
#include "policy/decisions/decide.hpp"
#include "policy/decisions/growth.hpp"

using namespace curb::policy;

namespace {

using Random = std::mt19937_64;

Bytes up_to(Random &random, Bytes most) { return random() % (most + 1); }
bool one_in(Random &random, unsigned n) { return random() % n == 0; }

// One device's part of a policy.
struct Rules {
    std::optional<Bytes> cap;
    Growth growth;
    bool release_before_growth = true;
};

Rules random_rules(Random &random, Bytes total) {
    Rules rules;
    if (!one_in(random, 4)) rules.cap = up_to(random, total);
    Growth &growth = rules.growth;
    if (!one_in(random, 4)) {
        growth.start = up_to(random, total / 2);
        const auto kind = random() % 8;  // 0: it never grows
        if (kind >= 1 && kind <= 4) growth.step = total / 64 + up_to(random, total / 8);
        if (kind >= 4) growth.factor = 1.01 + static_cast<double>(random() % 200) / 100;
        growth.every = Duration(one_in(random, 2) ? 0 : random() % 1'000);
    }
    if (one_in(random, 2)) growth.keep_free = up_to(random, total / 4);
    if (one_in(random, 2)) growth.wait = Duration(random() % 2'000);
    rules.release_before_growth = !one_in(random, 3);
    return rules;
}

class Model {
  public:
    explicit Model(std::uint64_t seed)
        : random_(seed),
          total_(256 * MiB + up_to(random_, 80 * GiB)),
          rules_(random_rules(random_, total_)),
          others_(up_to(random_, total_ / 2)),
          allowance_(first_allowance(rules_.growth)) {}

    // The first broken rule; empty if there is none.
    [[nodiscard]] const std::string &broken() const { return broken_; }
    [[nodiscard]] const std::array<int, 5> &verdicts() const { return verdicts_; }

    void random_event() {
        switch (random() % 10) {
            case 0:
            case 1:
            case 2:
            case 3: request(random_amount()); break;
            case 4: free(up_to(random_, used_)); break;
            case 5: set_aside(up_to(random_, used_)); break;
            case 6: release(); break;
            case 7: driver_takes(up_to(random_, 40 * MiB)); break;
            case 8: others_move(); break;
            default:
                if (one_in(random_, 4)) edit();
                now_ += random() % 500;
        }
    }

    // The other processes leave, the policy stays, and the program asks until it is served, or waits without a limit.
    void everything_that_fits_is_granted() {
        quiet_ = true;
        others_ = 0;
        free(used_);
        release();
        const Bytes fitting = most_that_fits();
        if (fitting == 0) return;
        const Bytes bytes = one_in(random_, 2) ? fitting : 1 + up_to(random_, fitting - 1);
        const bool held_as_long = one_in(random_, 2);
        if (held_as_long) rules_.growth.wait = kLongest;
        for (int tries = 1; !request(bytes); ++tries) {
            must(!held_as_long, "a request that fits is granted to one that waits without end");
            must(tries < 3'000, "a request that fits is granted to one that asks again");
            if (!broken_.empty()) return;
            now_ += static_cast<std::uint64_t>(rules_.growth.every.count());
        }
    }

  private:
    // ---- the books: bytes that requests use, idle ones, and those that the driver took by itself ----
    [[nodiscard]] Bytes held() const { return used_ + idle_ + driver_; }
    [[nodiscard]] Bytes device_free() const { return total_ - others_ - held(); }
    [[nodiscard]] Bytes ceiling() const { return std::min(allowance_, rules_.cap.value_or(kUnbounded)); }
    [[nodiscard]] bool can_grow() const {
        return rules_.growth.start && (rules_.growth.step != 0 || rules_.growth.factor > 1);
    }
    [[nodiscard]] Bytes kept_under(Bytes limit) const {
        return limit == kUnbounded ? 0 : driver_reserve(limit, driver_, 0);
    }
    [[nodiscard]] Bytes kept() const { return kept_under(ceiling()); }
    // All sums stay far below 2^64, except with kUnbounded.
    [[nodiscard]] bool under(Bytes limit, Bytes bytes) const {
        return limit == kUnbounded || held() + bytes + kept() <= limit;
    }
    [[nodiscard]] bool leaves_enough(Bytes bytes) const {
        return rules_.growth.keep_free == 0 || device_free() >= bytes + rules_.growth.keep_free;
    }
    [[nodiscard]] bool step_is_due() const {
        return can_grow() && now_ - stepped_ >= static_cast<std::uint64_t>(rules_.growth.every.count());
    }

    // Often exactly at a limit, or one byte beyond.
    Bytes random_amount() {
        const Bytes cap = rules_.cap.value_or(total_), allowance = std::min(allowance_, total_);
        const auto room_under = [&](Bytes limit) { return limit - std::min(limit, held() + kept()); };
        switch (random() % 8) {
            case 0: return room_under(cap) + random() % 2;
            case 1: return room_under(allowance) + random() % 2;
            case 2: return device_free() - std::min(device_free(), rules_.growth.keep_free) + random() % 2;
            case 3: return cap - std::min(cap, kept()) + random() % 2;
            default: return up_to(random_, total_ / (1 + random() % 16));
        }
    }

    // The most that this process could get alone on the device, with an allowance that is large enough.
    [[nodiscard]] Bytes most_that_fits() const {
        Bytes most = total_ - std::min(total_, rules_.growth.keep_free);
        if (rules_.cap) most = std::min(most, *rules_.cap - std::min(*rules_.cap, kept_under(*rules_.cap)));
        if (!can_grow() && allowance_ != kUnbounded) most = std::min(most, allowance_ - std::min(allowance_, kept()));
        return most - std::min(most, held());
    }

    // ---- events ----

    // Decides as the shim's admission does. True if granted.
    bool request(Bytes bytes) {
        const std::uint64_t began = now_;
        bool released = false;
        for (int turns = 0; broken_.empty(); ++turns) {
            must(turns < 20'000, "a request comes to an end");
            const auto wait = static_cast<std::uint64_t>(rules_.growth.wait.count());
            const Terms terms{
                .cap = rules_.cap,
                .allowance = allowance_,
                .kept_for_driver = kept(),
                .limit_beside_others = rules_.growth.keep_free == 0
                                           ? kUnbounded
                                           : held_beside(rules_.growth.keep_free, added(held(), device_free())),
                .release_before_growth = rules_.release_before_growth,
                .step_due = can_grow() && until_step(rules_.growth, now_, stepped_) == 0,
                .may_wait = now_ - began < wait,
                .released = released,
            };
            const Verdict verdict = decide(terms, held(), bytes);
            ++verdicts_[static_cast<std::size_t>(verdict)];
            if (bytes == 0) {
                must(verdict == Verdict::grant, "nothing is always granted");
                return true;
            }
            const bool fits = under(ceiling(), bytes) && leaves_enough(bytes);
            const bool never = rules_.cap && bytes + kept() > *rules_.cap;
            const bool may_grow = rules_.cap.value_or(kUnbounded) == kUnbounded || under(*rules_.cap, bytes);
            const bool step_helps = may_grow && leaves_enough(bytes) && step_is_due();
            must(fits == (verdict == Verdict::grant), "what fits is granted at once, and nothing else");
            switch (verdict) {
                case Verdict::grant:
                    if (bytes > device_free()) return false;  // the driver is out of memory
                    used_ += bytes;
                    must(ceiling() == kUnbounded || held() <= ceiling(), "a grant stays under cap and allowance");
                    must(rules_.growth.keep_free == 0 || device_free() >= rules_.growth.keep_free,
                         "a grant leaves the device what is to stay free");
                    return true;
                case Verdict::release_first:
                    must(!released, "what could be released is released once for an attempt");
                    must(!never, "nothing is released for a request that can never fit");
                    must(rules_.release_before_growth || !step_helps, "a step comes first where the policy says so");
                    idle_ = 0;
                    released = true;
                    break;
                case Verdict::grow:
                    must(step_helps, "a step is taken only when it is due, and the allowance alone is in the way");
                    must(released || !rules_.release_before_growth, "a release comes first where the policy says so");
                    step();
                    break;
                case Verdict::wait:
                    must(released && !never && !step_helps, "waiting comes when nothing else can be done");
                    must(now_ - began < wait, "no request waits longer than the policy says");
                    now_ += 1 + random() % (one_in(random_, 4) ? 1'000 : 50);
                    if (quiet_) now_ += static_cast<std::uint64_t>(rules_.growth.every.count());
                    if (!quiet_ && one_in(random_, 2)) others_move();
                    if (!quiet_ && one_in(random_, 20)) edit();
                    released = false;
                    break;
                case Verdict::refuse:
                    must(never || (released && !step_helps && now_ - began >= wait),
                         "a refusal comes when nothing more can be done");
                    return false;
            }
        }
        return false;
    }

    void step() {
        must(now_ - stepped_ >= static_cast<std::uint64_t>(rules_.growth.every.count()), "one step in `every`");
        allowance_ = after_step(rules_.growth, allowance_);
        stepped_ = now_;
    }

    void free(Bytes bytes) { used_ -= bytes; }
    void set_aside(Bytes bytes) {
        used_ -= bytes;
        idle_ += bytes;
    }
    void driver_takes(Bytes bytes) { driver_ += std::min(bytes, device_free()); }
    void others_move() {
        if (one_in(random_, 2))
            others_ -= up_to(random_, others_);
        else
            others_ += up_to(random_, device_free());
    }

    // growth_test checks how far the allowance falls or rises.
    void release() {
        idle_ = 0;
        allowance_ = fallen_back(rules_.growth, allowance_, held());
    }

    void edit() {
        rules_ = random_rules(random_, total_);
        allowance_ = after_edit(rules_.growth, allowance_, held());
    }

    std::uint64_t random() { return random_(); }
    void must(bool holds, const char *what) {
        if (!holds && broken_.empty()) broken_ = std::string("it should hold that ") + what;
    }

    Random random_;
    Bytes total_;
    Rules rules_;
    Bytes others_;  // held by other processes
    Bytes used_ = 0, idle_ = 0, driver_ = 0;
    Bytes allowance_;
    std::uint64_t now_ = 0, stepped_ = 0;
    bool quiet_ = false;
    std::string broken_;
    std::array<int, 5> verdicts_{};
};

}  // namespace

TEST_CASE("The process stays within its policy, and in the end gets every request that fits") {
    std::array<int, 5> verdicts{};
    for (std::uint64_t seed = 1; seed <= 20'000; ++seed) {
        Model model(seed);
        for (int event = 0; event < 60 && model.broken().empty(); ++event) model.random_event();
        if (model.broken().empty()) model.everything_that_fits_is_granted();
        for (std::size_t i = 0; i < verdicts.size(); ++i) verdicts[i] += model.verdicts()[i];
        if (model.broken().empty()) continue;  // Catch2's assertions are slow
        INFO("seed " << seed);
        FAIL(model.broken());
    }
    for (const int often : verdicts) CHECK(often > 10'000);  // else the model tries too little
}
