// Traces made in a few words for tests.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../fuzz/trace_read_checks.hpp"
#include "catch.hpp"
#include "recording.hpp"

namespace curb::cli {

using control::trace::Event;
using fuzz::read_text;
using policy::GiB;
using policy::KiB;
using policy::MiB;

// A run on one GPU of 80 GiB. Each call is one event, `seconds` after the beginning.
class Run {
  public:
    explicit Run(std::string command = "python3 train.py") {
        header_ = {4711, "0.1.0", 1'772'368'200'000'000'000, std::move(command), {{0, "GPU-1", "H100", 80 * GiB}}};
    }

    Run &alloc(double seconds, std::uint64_t pointer, policy::Bytes bytes, int thread = 1,
               policy::Kind kind = policy::Kind::plain) {
        return alloc_charged(seconds, pointer, bytes, bytes, thread, kind);
    }
    Run &alloc_charged(double seconds, std::uint64_t pointer, policy::Bytes bytes, policy::Bytes charge, int thread,
                       policy::Kind kind) {
        Event &event = add(seconds, What::alloc, thread);
        event.kind = kind;
        event.pointer = pointer;
        event.bytes = static_cast<std::int64_t>(bytes);
        return charged(event, static_cast<std::int64_t>(charge));
    }
    Run &free(double seconds, std::uint64_t pointer, policy::Bytes bytes, int thread = 1,
              policy::Kind kind = policy::Kind::plain) {
        Event &event = add(seconds, What::free, thread);
        event.kind = kind;
        event.pointer = pointer;
        event.bytes = static_cast<std::int64_t>(bytes);
        return charged(event, kind == policy::Kind::pools ? 0 : -static_cast<std::int64_t>(bytes));
    }
    Run &books(double seconds, policy::Kind kind, policy::Bytes of_kind) {
        Event &event = add(seconds, What::books, 1);
        event.kind = kind;
        charged(event, static_cast<std::int64_t>(of_kind) - static_cast<std::int64_t>(kinds_[index(kind)]));
        event.charge = 0;
        return *this;
    }
    Run &stop(double seconds, What what, policy::Bytes bytes, policy::Obstacle why = policy::Obstacle::cap,
              int thread = 1) {
        Event &event = add(seconds, what, thread);
        event.bytes = static_cast<std::int64_t>(bytes);
        event.why = what == What::granted ? policy::Obstacle() : why;
        event.held = what == What::granted ? held_ + bytes : held_;  // a granted request is reserved
        return *this;
    }
    Run &step(double seconds, policy::Step step, std::int64_t bytes, std::string trigger) {
        Event &event = add(seconds, What::step, 9);
        event.duration_ns = kSecond / 100;
        event.step = step;
        event.bytes = bytes;
        event.text = std::move(trigger);
        return *this;
    }
    Run &policy(double seconds, policy::Bytes cap, policy::Bytes allowance = policy::kUnbounded) {
        Event &event = add(seconds, What::policy, 1);
        event.limit = cap;
        event.of_kind = allowance;
        event.held = held_;
        return *this;
    }
    Run &allowance(double seconds, policy::Bytes allowance) {
        Event &event = add(seconds, What::allowance, 1);
        event.limit = allowance;
        event.held = held_;
        return *this;
    }
    Run &dropped(double seconds, std::int64_t how_many) {
        add(seconds, What::dropped, 1).bytes = how_many;
        return *this;
    }

    [[nodiscard]] std::string text() const {
        std::string out = control::trace::text(header_);
        for (const Event &event : events_) control::trace::append(out, event, header_.pid);
        return out;
    }
    [[nodiscard]] const std::vector<Event> &events() const { return events_; }
    [[nodiscard]] Recording recording() const;

  private:
    static std::size_t index(policy::Kind kind) { return static_cast<std::size_t>(kind); }
    Event &add(double seconds, What what, int thread) {
        Event &event = events_.emplace_back();
        event.ns = static_cast<std::uint64_t>(seconds * 1e9);
        event.what = what;
        event.thread = thread;
        return event;
    }
    Run &charged(Event &event, std::int64_t charge) {
        event.charge = charge;
        kinds_[index(event.kind)] += static_cast<policy::Bytes>(charge);
        held_ += static_cast<policy::Bytes>(charge);
        event.of_kind = kinds_[index(event.kind)];
        event.held = held_;
        return *this;
    }

    control::trace::Header header_;
    std::vector<Event> events_;
    policy::ByKind kinds_{};
    policy::Bytes held_ = 0;
};

inline Recording Run::recording() const {
    auto out = read_text(text());
    if (!out) FAIL(out.error());
    return std::move(out).value();
}

}  // namespace curb::cli
