// Traces of made-up runs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../fuzz/trace_read_checks.hpp"
#include "catch.hpp"
#include "trace/recording.hpp"

namespace curb::cli {

using control::trace::Event;
using fuzz::read_text;
using policy::GiB;
using policy::KiB;
using policy::MiB;

class Run;
using Happens = std::function<void(Run &)>;  // one event, made by the functions below

// A run on one GPU of 80 GiB.
class Run {
  public:
    explicit Run(const std::vector<Happens> &events = {}, std::string command = "python3 train.py") {
        header_ = {4711,   "0.1.0", 1'772'368'200'000'000'000, std::move(command), {{0, "GPU-1", "H100", 80 * GiB}},
                   "node7"};
        then(events);
    }
    Run &then(const std::vector<Happens> &events) {
        for (const Happens &event : events) event(*this);
        return *this;
    }

    // Adds an event so many seconds after the beginning, with the bytes held then.
    Event &add(double seconds, What what, int thread = 1) {
        Event &event = events_.emplace_back();
        event.ns = static_cast<std::uint64_t>(seconds * 1e9);
        event.what = what;
        event.thread = thread;
        event.held = held_;
        return event;
    }
    // Changes the bytes held by the kind of the event.
    void charge(Event &event, std::int64_t charge) {
        event.charge = charge;
        policy::Bytes &of_kind = kinds_[static_cast<std::size_t>(event.kind)];
        event.of_kind = of_kind += static_cast<policy::Bytes>(charge);
        event.held = held_ += static_cast<policy::Bytes>(charge);
    }
    [[nodiscard]] policy::Bytes of(policy::Kind kind) const { return kinds_[static_cast<std::size_t>(kind)]; }

    [[nodiscard]] std::string text() const {
        std::string out = control::trace::text(header_);
        for (const Event &event : events_) control::trace::append(out, event, header_.pid);
        return out;
    }
    [[nodiscard]] const std::vector<Event> &events() const { return events_; }
    [[nodiscard]] Recording recording() const;

  private:
    control::trace::Header header_;
    std::vector<Event> events_;
    policy::ByKind kinds_{};
    policy::Bytes held_ = 0;
};

inline Happens memory(double seconds, What what, std::uint64_t pointer, policy::Bytes bytes, std::int64_t charge,
                      int thread, policy::Kind kind) {
    return [=](Run &run) {
        Event &event = run.add(seconds, what, thread);
        event.kind = kind;
        event.pointer = pointer;
        event.bytes = static_cast<std::int64_t>(bytes);
        run.charge(event, charge);
    };
}
inline Happens alloc(double seconds, std::uint64_t pointer, policy::Bytes bytes, int thread = 1,
                     policy::Kind kind = policy::Kind::plain) {
    return memory(seconds, What::alloc, pointer, bytes, static_cast<std::int64_t>(bytes), thread, kind);
}
inline Happens alloc_charged(double seconds, std::uint64_t pointer, policy::Bytes bytes, policy::Bytes charge,
                             int thread, policy::Kind kind) {
    return memory(seconds, What::alloc, pointer, bytes, static_cast<std::int64_t>(charge), thread, kind);
}
inline Happens free(double seconds, std::uint64_t pointer, policy::Bytes bytes, int thread = 1,
                    policy::Kind kind = policy::Kind::plain) {
    const std::int64_t charge = kind == policy::Kind::pools ? 0 : -static_cast<std::int64_t>(bytes);
    return memory(seconds, What::free, pointer, bytes, charge, thread, kind);
}
// The call stack of the allocation before, on the same thread.
inline Happens stack(double seconds, std::uint64_t pointer, std::string text, int thread = 1) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::stack, thread);
        event.pointer = pointer;
        event.text = text;
    };
}
inline Happens books(double seconds, policy::Kind kind, policy::Bytes of_kind) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::books);
        event.kind = kind;
        run.charge(event, static_cast<std::int64_t>(of_kind) - static_cast<std::int64_t>(run.of(kind)));
        event.charge = 0;
    };
}
inline Happens stop(double seconds, What what, policy::Bytes bytes, policy::Limit why = policy::Limit::cap,
                    int thread = 1) {
    return [=](Run &run) {
        Event &event = run.add(seconds, what, thread);
        event.bytes = static_cast<std::int64_t>(bytes);
        event.why = what == What::granted ? policy::Limit() : why;
        if (what == What::granted) event.held += bytes;  // it is reserved
    };
}
inline Happens step(double seconds, policy::Step step, std::int64_t bytes, std::string trigger) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::step, 9);
        event.held = 0;
        event.duration_ns = kSecond / 100;
        event.step = step;
        event.bytes = bytes;
        event.text = trigger;
    };
}
inline Happens limits(double seconds, policy::Bytes cap, policy::Bytes allowance = policy::kUnbounded) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::policy);
        event.limit = cap;
        event.of_kind = allowance;
    };
}
inline Happens allowance(double seconds, policy::Bytes allowance) {
    return [=](Run &run) { run.add(seconds, What::allowance).limit = allowance; };
}
inline Happens leaves(double seconds, std::string how, policy::Bytes bytes, double took = 0) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::out);
        event.held = 0;
        event.bytes = static_cast<std::int64_t>(bytes);
        event.duration_ns = static_cast<std::uint64_t>(took * 1e9);
        event.text = how;
    };
}
inline Happens comes_back(double seconds, policy::Bytes bytes, double took) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::back);
        event.held = 0;
        event.bytes = static_cast<std::int64_t>(bytes);
        event.duration_ns = static_cast<std::uint64_t>(took * 1e9);
    };
}
inline Happens dropped(double seconds, std::int64_t how_many) {
    return [=](Run &run) {
        Event &event = run.add(seconds, What::dropped);
        event.held = 0;
        event.bytes = how_many;
    };
}

inline Recording Run::recording() const {
    auto out = read_text(text());
    if (!out) FAIL(out.error());
    return std::move(out).value();
}

inline Recording recorded(const std::vector<Happens> &events, std::string command = "python3 train.py") {
    return Run(events, std::move(command)).recording();
}

}  // namespace curb::cli
