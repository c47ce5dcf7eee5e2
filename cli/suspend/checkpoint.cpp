#include "suspend/checkpoint.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <system_error>
#include <thread>

#include "control/client.hpp"
#include "terminal/messages.hpp"

namespace curb::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBooksPatience = std::chrono::seconds(2);
constexpr auto kRefresh = std::chrono::milliseconds(50);
constexpr auto kLine = std::chrono::seconds(1);
constexpr int kTries = 5;
constexpr auto kBetweenTries = std::chrono::milliseconds(100);

volatile sig_atomic_t pressed = 0;

// Calls `done` until it returns true, at most kTries times.
void try_again(const std::function<bool()> &done) {
    for (int i = 0; i < kTries && !done(); ++i) std::this_thread::sleep_for(kBetweenTries);
}

}  // namespace

DriverFacts facts_of(const policy::Result<Driver, std::string> &driver, int pid) {
    DriverFacts facts;
    if (!driver) {
        facts.fault = driver.error();
        return facts;
    }
    facts.cuda = driver->version;
    facts.version = nvml_driver_version();
    facts.has_checkpoint = driver->has_checkpoint;
    if (!driver->has_checkpoint) return facts;
    CUprocessState state{};
    const CUresult error = driver->cuCheckpointProcessGetState(pid, &state);
    if (error == CUDA_SUCCESS)
        facts.state = state;
    else
        facts.state_error = driver->text(error);
    return facts;
}

policy::Result<control::Status, std::string> ask_books(const Target &target) {
    if (!target.under_curb) return std::string("it is not under curb");
    const int pid = target.process.pid;
    return report_in<control::Status>(pid, control::ask(pid, control::StatusRequest{}, kBooksPatience));
}

Books books_of(const Target &target) {
    const auto status = ask_books(target);
    if (!status) return {std::nullopt, status.error()};
    policy::Bytes managed = 0;
    for (const control::GpuStatus &gpu : status->gpus)
        managed += gpu.kinds[static_cast<std::size_t>(policy::Kind::managed)];
    return {managed, ""};
}

void hold_interrupts() {
    struct sigaction note {};
    note.sa_handler = [](int) { pressed = 1; };
    note.sa_flags = SA_RESTART;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &note, nullptr);
    for (const int number : {SIGTSTP, SIGTTOU, SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
}

bool interrupted() { return pressed != 0; }

Progress::Progress(Line line)
    : line_(std::move(line)), terminal_(::isatty(2) == 1), start_(Clock::now()), next_(start_ + kLine) {}

Progress::~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::refresh() {
    if (!terminal_ || Clock::now() < next_) return;
    next_ = Clock::now() + kLine;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s", line_(so_far()).c_str());
}

void Progress::interrupt_with(const std::string &text) {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
    say::hint(text);
}

Made make(const std::function<CUresult()> &call, const Progress::Line &line, const std::string &note,
          const std::function<void()> &meanwhile) {
    Progress progress(line);
    std::future<CUresult> result;
    // Block all signals in the thread: a signal could make the driver's call fail.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        result = std::async(std::launch::async, call);
    } catch (const std::system_error &) {
        result = std::async(std::launch::deferred, call);  // no more threads: call it here, without progress
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    bool said = false;
    while (result.wait_for(kRefresh) == std::future_status::timeout) {
        progress.refresh();
        meanwhile();
        if (interrupted() && !said) progress.interrupt_with(note);
        said = said || interrupted();
    }
    const CUresult error = result.get();
    return {error, progress.so_far()};
}

FoundState state_of(const Driver &driver, int pid) {
    FoundState state;
    try_again([&] {
        state.error = driver.cuCheckpointProcessGetState(pid, &state.state);
        return state.known = state.error == CUDA_SUCCESS;
    });
    return state;
}

FoundState unlock(const Driver &driver, int pid) {
    CUresult error = CUDA_SUCCESS;
    try_again([&] {
        CUcheckpointUnlockArgs arguments{};
        return (error = driver.cuCheckpointProcessUnlock(pid, &arguments)) == CUDA_SUCCESS;
    });
    if (error == CUDA_SUCCESS) return {error, CU_PROCESS_STATE_RUNNING, true};
    FoundState state = state_of(driver, pid);
    state.error = error;
    return state;
}

}  // namespace curb::cli
