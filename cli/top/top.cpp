// `curb top`: the terminal, by ncurses, and the keys. A key that acts on a process runs the command of curb with its
// PID, so that it does and prints the same.
#include <langinfo.h>
#include <ncurses.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <functional>
#include <future>

#include "command/command.hpp"
#include "machine/libraries.hpp"
#include "machine/sim.hpp"
#include "machine/target.hpp"
#include "machine/within.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "terminal/terminal.hpp"
#include "top/top_screen.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct TopOptions {
    bool sim = false, read_only = false;

    void declare(Options &takes) {
        takes.flag("--read-only", read_only, "Only watch: no key acts on a process");
        takes.sim(sim);
    }
};

constexpr auto kPatience = 300ms;                                                       // for processes to answer
constexpr std::chrono::milliseconds kIntervals[] = {500ms, 1s, 2s, 5s, 10s, 30s, 60s};  // between two polls
constexpr int kKeyPatienceMs = 100;
constexpr int kControlC = 3, kEscape = 27;

// Runs `curb WORDS` and returns the first line of its answer.
std::string answer_of(const std::string &words) {
    const std::string line = shell_quoted(own_file().native()) + " " + words + " 2>&1 </dev/null";
    const std::string answer = run_shell(line).output;
    return answer.empty() ? "curb " + words + ": done" : answer.substr(0, answer.find('\n'));
}

class Top {
  public:
    explicit Top(const TopOptions &options) : sim_(options.sim) {
        state_.unicode = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
        state_.read_only = options.read_only;
    }

    int run() {
        poll();
        polled_.wait_for(1s);  // so that the first screen has figures
        while (!quits_) {
            take_view();
            take_answer();
            draw();
            if (const int key = ::getch(); key != ERR) press(key);
        }
        return 0;
    }

  private:
    void poll() {
        next_ = Clock::now() + state_.every;
        polled_ = in_background([] { return poll_all(kPatience); });
    }
    void take_view() {
        if (is_ready(polled_)) {
            View now = polled_.get();
            keep_selected(state_, view_, now);
            view_ = std::move(now);
            remember(state_, view_);
        }
        if (!polled_.valid() && Clock::now() >= next_) poll();
    }
    void take_answer() {
        if (!is_ready(answer_)) return;
        state_.message = answer_.get();
        next_ = Clock::now();
    }

    void draw() {
        const auto height = static_cast<std::size_t>(std::max(LINES, 1)),
                   width = static_cast<std::size_t>(std::max(COLS, 1));
        shown_ = top_screen(view_, state_, width, height, control::unix_now());
        ::erase();
        for (std::size_t y = 0; y < shown_.size(); ++y) {
            ::move(static_cast<int>(y), 0);
            for (const Span &span : shown_[y]) {
                const auto attribute = attribute_of(span.ink);
                ::attron(attribute);
                ::addstr((state_.unicode ? span.text : ascii(span.text)).c_str());
                ::attroff(attribute);
            }
        }
        ::refresh();
    }
    static int attribute_of(Ink ink) {
        switch (ink) {
            case Ink::plain: return A_NORMAL;
            case Ink::bold: return A_BOLD;
            case Ink::dim: return A_DIM;
            case Ink::reverse: return A_REVERSE;
            case Ink::red: return static_cast<int>(COLOR_PAIR(1));
            case Ink::green: return static_cast<int>(COLOR_PAIR(2));
            case Ink::yellow: return static_cast<int>(COLOR_PAIR(3));
        }
        return A_NORMAL;
    }
    static std::string ascii(const std::string &text) {
        std::string out;
        for (std::size_t i = 0; i < text.size(); ++i)
            if (static_cast<unsigned char>(text[i]) < 0x80)
                out += text[i];
            else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
                out += '?';
        return out;
    }

    [[nodiscard]] const ViewProcess *selected() const {
        const auto rows = top_rows(view_, state_);
        return state_.at < rows.size() ? &view_.processes[rows[state_.at].process] : nullptr;
    }

    void press(int key) {
        if (!prompt_.empty()) return type(key);
        if (key != KEY_RESIZE) state_.message.clear();
        if (state_.helps && key != KEY_RESIZE && key != kControlC) {
            state_.helps = false;
            return;
        }
        switch (key) {
            case 'q':
            case kControlC: quits_ = true; break;
            case '?': state_.helps = true; break;
            case '+': set_interval(1); break;
            case '-': set_interval(-1); break;
            case KEY_MOUSE: click(); break;
            case 'o': state_.sort = static_cast<Sort>((static_cast<int>(state_.sort) + 1) % kSorts); break;
            case '/': ask("filter: ", [this](const std::string &text) { state_.filter = text; }); break;
            case 'r': confirm("release the cached memory of", "release"); break;
            case 's': confirm("suspend", "suspend"); break;
            case 'u': confirm("resume", "resume"); break;
            case 'c': ask_cap(); break;
            default: select(key);
        }
    }

    // Moves the selection.
    void select(int key) {
        const std::size_t page = static_cast<std::size_t>(std::max(LINES / 2, 1));
        switch (key) {
            case 'k':
            case KEY_UP: state_.at -= std::min<std::size_t>(state_.at, 1); break;
            case 'j':
            case KEY_DOWN: ++state_.at; break;
            case KEY_PPAGE: state_.at -= std::min(state_.at, page); break;
            case KEY_NPAGE: state_.at += page; break;
            case KEY_HOME: state_.at = 0; break;
            case KEY_END: state_.at = top_rows(view_, state_).size(); break;
            default: break;
        }
    }

    // Takes the next longer interval (by: 1) or the next shorter one (-1), if there is one.
    void set_interval(std::ptrdiff_t by) {
        const auto *const now = std::find(std::begin(kIntervals), std::end(kIntervals), state_.every);
        if (now + by < std::begin(kIntervals) || now + by == std::end(kIntervals)) return;
        state_.every = now[by];
        state_.message = "polls every " + interval_text(state_.every);
        next_ = std::min(next_, Clock::now() + state_.every);
    }

    // The wheel moves the selection. A click presses a key of the last line, or selects a process.
    void click() {
        MEVENT event{};
        if (::getmouse(&event) != OK) return;
        if (event.bstate & BUTTON4_PRESSED) return select(KEY_UP);
        if (event.bstate & BUTTON5_PRESSED) return select(KEY_DOWN);
        const auto y = static_cast<std::size_t>(event.y), x = static_cast<std::size_t>(event.x);
        if (y >= shown_.size()) return;
        if (const int key = key_at(shown_[y], x)) return press(key);
        const std::size_t row = state_.first + y - std::min(y, state_.line);
        if (y >= state_.line && row < top_rows(view_, state_).size()) state_.at = row;
    }

    // Prompts on the last line. Calls `then` with the typed text.
    void ask(const std::string &prompt, std::function<void(const std::string &)> then) {
        prompt_ = state_.message = prompt;
        typed_.clear();
        then_ = std::move(then);
    }
    void end_prompt() {
        prompt_.clear();
        state_.message.clear();
    }
    static bool is_enter(int key) { return key == '\n' || key == '\r' || key == KEY_ENTER; }
    void type(int key) {
        if (key == KEY_RESIZE || key == KEY_MOUSE) return;
        if (key == kEscape || key == kControlC) return end_prompt();
        const bool is_question = prompt_.ends_with("(y/n) ");
        if (is_enter(key) || is_question) {
            const std::string text = is_question && key < 128 ? std::string(1, static_cast<char>(key)) : typed_;
            end_prompt();
            return then_(text);
        }
        if (key == KEY_BACKSPACE || key == 127 || key == 8) {
            if (!typed_.empty()) typed_.pop_back();
        } else if (key >= ' ' && key < 127) {
            typed_ += static_cast<char>(key);
        }
        state_.message = prompt_ + typed_;
    }

    // Returns null with --read-only, or if the selected process has its PID in another namespace.
    const ViewProcess *to_act_on() {
        if (state_.read_only) {
            state_.message = "curb top --read-only changes nothing";
            return nullptr;
        }
        const ViewProcess *process = selected();
        if (!process || has_pid_here(*process)) return process;
        state_.message = "it has this PID in another pid namespace, perhaps a container; run curb there";
        return nullptr;
    }
    // Keeps the pid that was selected when the key was pressed: the rows may move before the answer.
    void confirm(const std::string &what, const std::string &command) {
        const ViewProcess *process = to_act_on();
        if (!process) return;
        const int pid = process->pid;
        ask(what + " " + label_of(pid, process->name) + "? (y/n) ", [this, pid, command](const std::string &answer) {
            if (answer == "y")
                start(command + (command == "release" ? " " : sim_ ? " --sim " : " ") + std::to_string(pid));
        });
    }
    void ask_cap() {
        const ViewProcess *process = to_act_on();
        if (!process) return;
        const int pid = process->pid;
        ask("cap of " + label_of(pid, process->name) + ", as 8GiB or 50%: ", [this, pid](const std::string &text) {
            if (text.empty()) return;
            if (const auto size = policy::parse_size(text); !size)
                state_.message = size.error();
            else
                start("cap " + std::to_string(pid) + " " + policy::format(*size));
        });
    }
    void start(const std::string &words) {
        if (answer_.valid()) {
            state_.message = "the last command is still under way";
            return;
        }
        state_.message = "curb " + words + " ...";
        answer_ = in_background([words] { return answer_of(words); });
    }

    bool sim_;
    View view_;
    TopState state_;
    std::vector<ScreenLine> shown_;
    std::string prompt_, typed_;
    std::function<void(const std::string &)> then_;
    std::future<View> polled_;
    std::future<std::string> answer_;
    Clock::time_point next_;  // when it polls again
    bool quits_ = false;
};

// Sets up ncurses, and restores the terminal at the end.
class Terminal {
  public:
    Terminal() : screen_(::newterm(nullptr, stdout, stdin)) {
        if (!screen_) return;
        ::raw();  // Ctrl-C is a key, so that the screen is always restored
        ::noecho();
        ::keypad(stdscr, TRUE);
        ::set_escdelay(25);
        ::timeout(kKeyPatienceMs);
        ::curs_set(0);
        ::mousemask(BUTTON1_PRESSED | BUTTON4_PRESSED | BUTTON5_PRESSED, nullptr);
        ::mouseinterval(0);  // a press is a click at once
        if (wants_colour(true) && ::has_colors()) {
            ::start_color();
            ::use_default_colors();
            ::init_pair(1, COLOR_RED, -1);
            ::init_pair(2, COLOR_GREEN, -1);
            ::init_pair(3, COLOR_YELLOW, -1);
        }
    }
    ~Terminal() {
        if (!screen_) return;
        ::endwin();
        ::delscreen(screen_);
    }
    Terminal(const Terminal &) = delete;
    Terminal &operator=(const Terminal &) = delete;
    explicit operator bool() const { return screen_ != nullptr; }

  private:
    SCREEN *screen_;
};

int top(const TopOptions &options) {
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
        return failed("top needs a terminal; curb ps --watch 2 prints the same into a file or pipe");
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    std::setlocale(LC_ALL, "");
    // A container often has no other locale than this, whichever LANG names.
    if (has_utf8_locale() && std::string_view(::nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    const Terminal terminal;
    if (!terminal || variable("TERM") == "dumb")
        return failed("nothing is known of the terminal " + policy::quote(variable("TERM")) +
                      "; set TERM, as in TERM=xterm curb top");
    return Top(options).run();
}

}  // namespace

extern const Command kTop{
    .name = "top",
    .line = "Watch GPUs and processes, and act on them",
    .help = R"(
One line for each GPU: what processes under curb hold, what others hold, what is free, use and temperature by NVML, and
the last polls. Then the processes, each with its part of its cap. The key ? explains bars, columns and states. Above
the keys: what the selected process waits for, why it was refused, how to bring it back. Needs a terminal; a narrow one
shows fewer columns. A click selects a process or presses a key; with Shift the mouse selects text.

Keys act on the selected process, and ask first (with --read-only they do nothing):
  r                     release the memory that it caches
  c                     change its cap
  s, u                  suspend it, resume it
  arrows, j, k          select
  o                     the next order: held, cap, pid, user, command
  /                     show only what contains a text; an empty line shows all
  +, -                  poll less often, more often: every 0.5 s to every minute
  ?                     help
  q                     quit

Examples:
  curb top
  curb top --read-only  watch, without keys that act)",
    .takes = takes<TopOptions, top>,
};

}  // namespace curb::cli
