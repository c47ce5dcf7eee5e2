// Blocks signals while it makes a frame and takes them while it shows one, so that curb always restores the screen.
#include "terminal/watch.hpp"

#include <signal.h>
#include <sys/select.h>
#include <unistd.h>

#include <string_view>
#include <utility>

#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
volatile sig_atomic_t came = 0;

class Signals {
  public:
    Signals() {
        sigset_t ours;
        sigemptyset(&ours);
        for (const int number : kSignals) {
            struct sigaction now {};
            ::sigaction(number, nullptr, &now);
            if (now.sa_handler == SIG_IGN) continue;  // nohup, or a job in the background
            struct sigaction note {};
            note.sa_handler = [](int signal) { came = signal; };
            ::sigaction(number, &note, nullptr);
            sigaddset(&ours, number);
        }
        ::sigprocmask(SIG_BLOCK, &ours, &before_);
    }
    ~Signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;

    // Returns the signal that came. 0 if none came before `time`.
    [[nodiscard]] int wait_until(Clock::time_point time) const {
        came = 0;
        while (came == 0) {
            const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(time - Clock::now()).count();
            const timespec rest{left > 0 ? left / 1'000'000'000 : 0, left > 0 ? left % 1'000'000'000 : 0};
            if (::pselect(0, nullptr, nullptr, nullptr, &rest, &before_) == 0) break;
        }
        return came;
    }
    // Ends curb by the signal, as the default action would.
    void die_of(int number) const {
        ::signal(number, SIG_DFL);
        ::raise(number);
        ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    sigset_t before_{};
};

// Uses the terminal's alternate screen, without cursor and without line wrapping.
class InPlace {
  public:
    explicit InPlace(bool can) : can_(can) { enter(); }
    ~InPlace() { leave(); }
    InPlace(const InPlace &) = delete;
    InPlace &operator=(const InPlace &) = delete;
    void enter() const { say("\x1b[?1049h\x1b[?25l\x1b[?7l"); }
    void leave() const { say("\x1b[?7h\x1b[?25h\x1b[?1049l"); }

    static std::string text(const std::string &frame, const Screen &screen) {
        const std::size_t room = screen.height.value_or(24);
        std::string out = "\x1b[H";
        std::size_t lines = 0, at = 0;
        for (; at < frame.size() && lines + 1 < room; ++lines) {
            const std::size_t end = frame.find('\n', at);
            // Erase first: behind a line that fills the row, the cursor stands on its last letter.
            out += "\x1b[2K" + frame.substr(at, end - at) + "\n";
            at = end == std::string::npos ? frame.size() : end + 1;
        }
        out += "\x1b[J";
        std::size_t more = 0;
        for (; at < frame.size(); ++at) more += frame[at] == '\n' ? 1 : 0;
        return more == 0 ? out : out + "and " + counted(more, "more line");
    }

  private:
    void say(std::string_view what) const {
        if (can_) write_all(STDOUT_FILENO, what);
    }
    bool can_;
};

}  // namespace

int watch(std::chrono::milliseconds every, const std::function<std::string()> &divider,
          const std::function<Frame(const Screen &)> &frame) {
    const bool in_place = screen_of_stdout().redraws;
    const Signals signals;
    Frame shown;
    bool printed = false;
    {
        const InPlace screen_of_ours(in_place);
        for (;;) {
            const auto begin = Clock::now();
            const Screen screen = screen_of_stdout();
            shown = frame(screen);
            if (shown.last) break;
            const std::string head = divider(), text = head + shown.text;
            const bool blank = std::exchange(printed, true) && !head.empty();
            if (!print(in_place ? InPlace::text(text, screen) : (blank ? "\n" : "") + text)) return shown.status;
            int signal = signals.wait_until(begin + every);
            while (signal == SIGWINCH && !in_place) signal = signals.wait_until(begin + every);
            if (signal == 0 || signal == SIGWINCH) continue;
            if (signal == SIGINT) return 0;
            screen_of_ours.leave();
            if (signal != SIGTSTP) return signals.die_of(signal), shown.status;
            ::raise(SIGSTOP);
            screen_of_ours.enter();
        }
    }
    print(shown.text);
    return shown.status;
}

}  // namespace curb::cli
