// One nap, from its beginning to its end, on the thread curb-nap. It is light first: curb moves what it can move itself
// (move/). It becomes deep when it has lasted the policy's suspend.deep, or at once if that frees too little: then the
// driver moves the rest, by a helper.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "nap/helper.hpp"
#include "policy/policy.hpp"

namespace curb::shim::nap {

class OneNap : NoCopy {
  public:
    // The gate is open again when it returns, unless the process is then suspended, or about to end.
    void take();
    // Out of host memory: brings the process back from any state of a nap.
    static void come_back_at_any_cost() noexcept;

  private:
    using Clock = std::chrono::steady_clock;
    // A step out. Returns nullopt if the next step may follow, else why there is no nap. An empty text is no refusal:
    // the process is used again, or a command moves it.
    using Refusal = std::optional<std::string>;
    using Step = Refusal (OneNap::*)();
    static const Step kLeaving[];

    Refusal prepare();
    Refusal close_gate();
    Refusal wait_for_calls();
    Refusal wait_for_all_calls();
    Refusal leave();
    Refusal move_lightly();
    Refusal move_deeply();
    void note_out(std::uint64_t took_ms) const;
    [[nodiscard]] std::string host_limit(const std::optional<policy::Size> &most) const;
    [[nodiscard]] policy::Bytes host_budget() const;

    // False if a command keeps the process out.
    bool wait_until_needed();
    [[nodiscard]] bool is_due_to_deepen() const;
    bool deepens();
    bool leaves_host_memory();
    // True if `is_short` says so of the host memory that is free and of the whole. Asks at most once in an interval,
    // since others take memory too.
    bool host_is_short(std::chrono::milliseconds interval, bool (*is_short)(policy::Bytes, policy::Bytes) noexcept);
    bool stay_out();
    void wait_for_resume();
    void come_back_deeply();
    bool come_back_lightly();
    void read_lines();
    void take_line(const std::string &line);
    void note_back() const;

    policy::SuspendPolicy policy_;
    std::optional<policy::Size> ceiling_;  // of host memory
    std::string not_light_, not_deep_;     // why; empty: it is possible
    bool by_turn_ = false;                 // others wait, and the process is busy
    bool is_light_ = false, is_deep_ = false;
    policy::Bytes light_bytes_ = 0, copied_ = 0, deep_bytes_ = 0;
    Clock::time_point out_since_, host_seen_;
    Helper helper_;
    std::string last_;  // what the helper said last
};

// Records why an attempt has ended without a nap, for status() and the log. Doubles the time to the next one, unless it
// was of a request. May throw std::bad_alloc.
void note_refused(const std::string &why);

// Returns why the process can never leave its GPUs, why it cannot in any way now, and why the driver could not move it.
// Empty if no reason is known. Thread-safe. May throw std::bad_alloc.
std::string why_never();
std::string why_no_nap();
std::string why_not_deep();
// True if another process waits for memory of a GPU that this one uses.
bool others_wait() noexcept;

}  // namespace curb::shim::nap
