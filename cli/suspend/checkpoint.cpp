#include "checkpoint.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <future>
#include <optional>
#include <system_error>
#include <thread>

#include "json.hpp"
#include "policy/size.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kLine = std::chrono::seconds(1);
constexpr int kTries = 5;
constexpr auto kBetweenTries = std::chrono::milliseconds(100);

volatile sig_atomic_t pressed = 0;

// Blocks all signals of this thread, and of threads that it starts, while it lives. An interrupted call of the driver
// may fail.
class Undisturbed {
  public:
    Undisturbed() {
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Undisturbed() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    Undisturbed(const Undisturbed &) = delete;
    Undisturbed &operator=(const Undisturbed &) = delete;

  private:
    sigset_t before_{};
};

}  // namespace

void hold_interrupts() {
    struct sigaction note {};
    note.sa_handler = [](int) { pressed = 1; };
    note.sa_flags = SA_RESTART;
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &note, nullptr);
    for (const int number : {SIGTSTP, SIGTTOU, SIGPIPE}) ::signal(number, SIG_IGN);
}

bool interrupted() { return pressed != 0; }

Progress::Progress(Line line) : line_(std::move(line)), terminal_(::isatty(2) == 1), next_(Clock::now() + kLine) {}

Progress::~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::look() {
    if (!terminal_ || Clock::now() < next_) return;
    next_ = Clock::now() + kLine;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s", line_().c_str());
}

void Progress::say(const std::string &text) {
    std::fprintf(stderr, "%scurb: %s\n", shown_ ? "\r\033[K" : "", text.c_str());
    shown_ = false;
}

CUresult make(const std::function<CUresult()> &call, Progress &progress, const std::string &note) {
    std::promise<CUresult> promise;
    std::future<CUresult> result = promise.get_future();
    std::optional<std::thread> thread;
    try {
        const Undisturbed undisturbed;
        thread.emplace([&] { promise.set_value(call()); });
    } catch (const std::system_error &) {
        return call();  // without a thread there is nothing to watch it by
    }
    bool said = false;
    while (result.wait_for(kLook) != std::future_status::ready) {
        progress.look();
        if (interrupted() && !said) progress.say(note);
        said = said || interrupted();
    }
    thread->join();
    return result.get();
}

int not_done(const char *done, int pid, bool json, int status, const std::string &state, const std::string &message) {
    complain(message);
    if (json)
        print(json::object(
                  {{"pid", pid}, {done, false}, {"process", json::text(state)}, {"message", json::text(message)}}) +
              "\n");
    return status;
}

Left state_of(const Driver &driver, int pid) {
    Left left;
    for (int i = 0; i < kTries && !left.known; ++i) {
        if (i != 0) std::this_thread::sleep_for(kBetweenTries);
        left.error = driver.cuCheckpointProcessGetState(pid, &left.state);
        left.known = left.error == CUDA_SUCCESS;
    }
    return left;
}

Left unlock(const Driver &driver, int pid) {
    CUresult error = CUDA_SUCCESS;
    for (int i = 0; i < kTries; ++i) {
        if (i != 0) std::this_thread::sleep_for(kBetweenTries);
        CUcheckpointUnlockArgs arguments{};
        error = driver.cuCheckpointProcessUnlock(pid, &arguments);
        if (error == CUDA_SUCCESS) return {error, CU_PROCESS_STATE_RUNNING, true};
    }
    Left left = state_of(driver, pid);
    left.error = error;
    return left;
}

std::string seconds_text(Seconds seconds) {
    char text[32];
    std::snprintf(text, sizeof text, seconds.count() < 0.1 ? "%.3f s" : "%.1f s", seconds.count());
    return text;
}

std::string rate_text(policy::Bytes bytes, Seconds seconds) {
    const double rate = static_cast<double>(bytes) / std::max(seconds.count(), 1e-3);
    return policy::format_human(static_cast<policy::Bytes>(rate)) + "/s";
}

}  // namespace curb::cli
