// An event of each kind that a trace may hold, with all its members.
#pragma once

#include <vector>

#include "control/trace.hpp"

namespace curb {

inline std::vector<control::trace::Event> each_event() {
    using control::trace::Event;
    using control::trace::What;
    Event alloc{1'234'567, What::alloc, policy::Kind::pools};
    alloc.gpu = 1;
    alloc.thread = 42;
    alloc.pointer = 0x7f0123456000;
    alloc.bytes = 1000;
    alloc.charge = 2 << 20;
    alloc.of_kind = 3 << 20;
    alloc.held = std::uint64_t{5} << 40;
    Event freed = alloc;
    freed.what = What::free;
    freed.charge = -freed.charge;
    freed.reused = true;
    Event stack = alloc;
    stack.what = What::stack;
    stack.kind = {};
    stack.charge = 0;
    stack.of_kind = 0;
    stack.text = "cudaMalloc+0x1f (libcudart.so.12) < main+0x20 (train)";
    Event books{999, What::books, policy::Kind::overhead};
    Event heap{1'000, What::heap};
    heap.bytes = 64 << 20;
    Event refused{86'400'000'000'123, What::refuse};
    refused.why = policy::Limit::keep_free;
    refused.limit = 7;
    Event waits = refused;
    waits.what = What::wait;
    Event granted{5'000, What::granted};
    granted.duration_ns = 1'001;
    Event allowance{0, What::allowance};
    allowance.limit = policy::kUnbounded;
    Event step{10'000, What::step};
    step.step = policy::Step::frameworks;
    step.duration_ns = 9'999;
    step.bytes = -3;
    step.text = "SIGUSR1 \"x\"\n\t\\";
    Event policy{1, What::policy};
    policy.limit = policy.of_kind = policy::kUnbounded;
    policy.text = "job.json, rule 1";
    Event out{3'000'000'000, What::out};
    out.bytes = std::int64_t{3} << 30;
    out.duration_ns = 150'000'000;
    out.text = "light nap";
    Event back{9'000'000'000, What::back};
    back.bytes = out.bytes;
    back.duration_ns = 731'000'000;
    Event end{9'000'000'001, What::end};
    Event dropped{2, What::dropped};
    dropped.bytes = 17;
    return {alloc,     stack, freed,  books, heap, refused, waits,  granted,
            allowance, step,  policy, out,   back, end,     dropped};
}

}  // namespace curb
