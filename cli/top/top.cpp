// `curb top`: the terminal, by ncurses, and the keys. A key that acts on a process runs the command of curb with its
// PID, so that it does and prints the same.
#include <fcntl.h>
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
    bool sim = false;

    void declare(Options &takes) { takes.sim(sim); }
};

constexpr auto kPatience = 300ms;  // for processes to answer
constexpr auto kEvery = 1s;        // polls the machine so often
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
    explicit Top(bool sim) : sim_(sim) { state_.unicode = std::string_view(::nl_langinfo(CODESET)) == "UTF-8"; }

    int run() {
        poll();
        polled_.wait_for(kEvery);  // so that the first screen has figures
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
        next_ = Clock::now() + kEvery;
        polled_ = in_background([] { return poll_all(kPatience); });
    }
    void take_view() {
        if (is_ready(polled_)) {
            view_ = polled_.get();
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
        const auto lines = top_screen(view_, state_, width, height, control::unix_now());
        ::erase();
        for (std::size_t y = 0; y < lines.size(); ++y) {
            ::move(static_cast<int>(y), 0);
            for (const Span &span : lines[y]) {
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
        switch (key) {
            case 'q':
            case kControlC: quits_ = true; break;
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
            default: break;
        }
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
        if (key == KEY_RESIZE) return;
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

    // Keeps the pid that was selected when the key was pressed: the rows may move before the answer.
    void confirm(const std::string &what, const std::string &command) {
        const ViewProcess *process = selected();
        if (!process) return;
        const int pid = process->pid;
        ask(what + " " + label_of(pid, process->name) + "? (y/n) ", [this, pid, command](const std::string &answer) {
            if (answer == "y")
                start(command + (command == "release" ? " " : sim_ ? " --sim " : " ") + std::to_string(pid));
        });
    }
    void ask_cap() {
        const ViewProcess *process = selected();
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
        if (variable("NO_COLOR").empty() && ::has_colors()) {
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
        return failed("top: it needs a terminal; curb ps --watch 2 prints the same into a file or pipe");
    if (const auto fault = use_sim(options.sim)) return failed("top: " + *fault);
    std::setlocale(LC_ALL, "");
    const Terminal terminal;
    if (!terminal)
        return failed("top: nothing is known of the terminal " + policy::quote(variable("TERM")) +
                      "; set TERM, as in TERM=xterm curb top");
    return Top(options.sim).run();
}

}  // namespace

extern const Command kTop{
    .name = "top",
    .line = "Watch GPUs and processes, and act on them",
    .help = R"(
One line for each GPU: what processes under curb hold, what others hold, what is free, and the last seconds. Then the
processes, each with its part of its cap. States: running, wait 3 s (for memory), napping, suspended, stopped, over cap,
releasing, silent (it does not answer), no curb, unknown (in another pid namespace). Above the keys: what the selected
process waits for, why it was refused, how to bring it back. Needs a terminal; works at 80 x 24.

Keys act on the selected process, and ask first:
  r                     release the memory that it caches
  c                     change its cap
  s, u                  suspend it, resume it
  arrows, j, k          select
  o                     the next order: held, cap, pid, user, command
  /                     show only what contains a text; an empty line shows all
  q                     quit

Examples:
  curb top)",
    .takes = takes<TopOptions, top>,
};

}  // namespace curb::cli
