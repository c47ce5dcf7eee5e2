#include "books.hpp"

#include <unistd.h>

#include <cstdlib>

#include "sim.h"

namespace load {

namespace {

namespace control = curb::control;
namespace policy = curb::policy;

// Kinds that curb and the simulated driver count under the same name.
constexpr policy::Kind kAlike[] = {policy::Kind::plain, policy::Kind::pools, policy::Kind::graphs, policy::Kind::vmm,
                                   policy::Kind::managed};

std::string line(const char *what, std::uint64_t said, std::uint64_t is) {
    if (said == is) return {};
    return std::string(what) + ": curb says " + std::to_string(said) + ", the driver has " + std::to_string(is) + "\n";
}

std::string differences(bool pools_end) {
    const auto said = status();
    if (!said) return "no answer at a quiet point\n";
    const auto of = [&](policy::Kind kind) { return said->kinds[static_cast<std::size_t>(kind)]; };
    std::string out;
    std::uint64_t said_measured = 0, measured = 0;
    // With BLOCKS the policy has light naps, and large plain blocks are virtual memory to the driver.
    const bool has_blocks = std::getenv("BLOCKS") != nullptr;
    if (has_blocks)
        out += line("plain and vmm", of(policy::Kind::plain) + of(policy::Kind::vmm),
                    curb_sim_held_for(0, "plain") + curb_sim_held_for(0, "vmm"));
    for (const policy::Kind kind : kAlike) {
        if (has_blocks && (kind == policy::Kind::plain || kind == policy::Kind::vmm)) continue;
        const std::uint64_t is = curb_sim_held_for(0, policy::kind_name(kind));
        if (kind != policy::Kind::pools || !pools_end) {
            out += line(policy::kind_name(kind), of(kind), is);
        } else {
            said_measured = of(kind);
            measured = is;
        }
    }
    // Only NVML's figure shows how the driver packs small arrays into granules.
    const std::uint64_t arrays = curb_sim_held_for(0, "arrays");
    const bool unseen = std::getenv("CURB_SIM_NVML") != nullptr && of(policy::Kind::arrays) <= arrays;
    return out + line("arrays, contexts and code",
                      said_measured + (unseen ? arrays : of(policy::Kind::arrays)) + of(policy::Kind::contexts) +
                          of(policy::Kind::stack) + of(policy::Kind::overhead),
                      measured + arrays + curb_sim_held_for(0, "context") + curb_sim_held_for(0, "modules"));
}

}  // namespace

std::optional<control::GpuStatus> status() {
    control::Reply reply = control::ask(getpid(), control::StatusRequest(), kPatience);
    const auto *said = std::get_if<control::Status>(&reply);
    if (!said || said->gpus.empty() || said->releasing) return std::nullopt;
    return said->gpus.front();
}

std::string differences_that_stay(std::chrono::milliseconds patience, bool pools_end) {
    std::string left;
    within(patience, [&] { return (left = differences(pools_end)).empty(); });
    return left;
}

std::string of_driver() {
    std::string out;
    for (const char *use : {"context", "modules", "arrays"})
        out += std::string(use) + " " + std::to_string(curb_sim_held_for(0, use)) + ", ";
    for (const policy::Kind kind : kAlike)
        out += std::string(policy::kind_name(kind)) + " " +
               std::to_string(curb_sim_held_for(0, policy::kind_name(kind))) + ", ";
    return out;
}

bool release() {
    const control::Reply reply = control::ask(getpid(), policy::ReleaseRequest(), kPatience);
    if (!std::holds_alternative<control::ReleaseReport>(reply)) return false;
    const auto after = status();
    return after && after->cached == 0;
}

}  // namespace load
