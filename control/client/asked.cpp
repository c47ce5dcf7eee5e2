#include "asked.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "control/proc.hpp"

namespace curb::control {
namespace {

// Waits until one of them can go on, or has to be checked. (poll takes at most as many entries as files may be open.)
void wait(std::vector<Asked> &processes) {
    std::vector<pollfd> polled;
    std::vector<Asked *> talking, others;
    int time = kBetweenChecks;
    for (Asked &one : processes) {
        const auto what = one.poll_for();
        if (what) polled.push_back(*what);
        (what ? talking : others).push_back(&one);
        if (const int left = one.left(); left >= 0) time = std::min(time, left);
    }
    const int ready = ::poll(polled.data(), polled.size(), others.empty() ? time : std::min(time, kAgain));
    if (ready < 0 && errno != EINTR) ::usleep(1000);
    for (std::size_t i = 0; i < polled.size() && ready >= 0; ++i) {
        if (polled[i].revents != 0)
            talking[i]->go_on();
        else if (ready == 0)
            talking[i]->check();
    }
    for (Asked *one : others) one->check();
}

}  // namespace

bool too_many_open(int error) { return error == EMFILE || error == ENFILE; }

std::vector<Line> lines_of(const std::vector<Question> &questions) {
    std::vector<Line> out;
    out.reserve(questions.size());
    for (const Question &one : questions) out.push_back({text(one.request) + "\n", one.patience});
    return out;
}

Asked::Asked(int pid, Attempt first, std::function<Attempt()> connect, const std::vector<Line> &questions)
    : pid_(pid), connect_(std::move(connect)), questions_(&questions), deadline_(questions.front().patience) {
    take_up(std::move(first));
}

std::optional<pollfd> Asked::poll_for() const {
    if (!exchange_ || closed_) return std::nullopt;
    return pollfd{exchange_->descriptor(), exchange_->events(), 0};
}

void Asked::go_on() {
    if (!exchange_ || closed_) return;
    switch (exchange_->go_on()) {
        case Exchange::State::under_way: break;
        case Exchange::State::answered: finish(exchange_->take()); break;
        case Exchange::State::closed: closed_.emplace(kEnding); break;
    }
}

void Asked::check() {
    if (done()) return;
    if (!closed_ && !exchange_) return take_up(connect_());
    if (has_ended(pid_))
        fail(fault_ ? "there is no " + process_text(pid_) : closed_text(pid_, true));
    else if (closed_ && closed_->passed())
        fail(fault_ ? *fault_ : closed_text(pid_, false));
}

void Asked::give_up_if_late() {
    if (done() || !deadline_.passed()) return;
    go_on();  // its answer may have come while we asked others
    if (done() || !deadline_.passed()) return;
    if (closed_ || (exchange_ && has_ended(pid_))) {
        closed_.emplace(std::chrono::milliseconds(0));
        return check();
    }
    const std::chrono::milliseconds patience = (*questions_)[at_].patience;
    if (exchange_) return fail(late_text(pid_, patience));
    if (error_ == EAGAIN) return fail(is_stopped(pid_) ? late_text(pid_, patience) : busy_text(pid_));
    fail(process_text(pid_) +
         " was not asked: too many files are open here; raise the limit (ulimit -n), and try again");
}

void Asked::take_up(Attempt attempt) {
    error_ = attempt.error;
    if (attempt.connection) {
        exchange_.emplace(pid_, std::move(attempt.connection), (*questions_)[at_].text);
        go_on();
    } else if (attempt.fault && attempt.unless_ended) {
        fault_ = std::move(attempt.fault);
        closed_.emplace(kEnding);
    } else if (attempt.fault) {
        fail(*std::move(attempt.fault));
    }
}

void Asked::finish(Reply reply) {
    exchange_.reset();  // frees a descriptor, for which another one may wait
    if (std::holds_alternative<Failure>(reply) || at_ + 1 == questions_->size()) {
        reply_ = std::move(reply);
        return;
    }
    deadline_ = Deadline((*questions_)[++at_].patience);
    take_up(connect_());
}

void ask_each(std::vector<Asked> processes, const std::function<void(Answer)> &answered) {
    for (;;) {
        for (Asked &one : processes) {
            one.give_up_if_late();
            if (one.done()) answered(one.take());
        }
        std::erase_if(processes, [](const Asked &one) { return one.done(); });
        if (processes.empty()) return;
        wait(processes);
    }
}

}  // namespace curb::control
