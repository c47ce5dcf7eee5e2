#include "top/top_screen.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "ps/ps_text.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

constexpr std::size_t kRemembered = 120;  // samples of a history
constexpr std::size_t kBar = 20, kShortBar = 10, kSpark = 10, kCapBar = 8, kState = 11, kIdle = 16, kJob = 18,
                      kContainer = 12;
constexpr std::size_t kLeastRows = 5;  // of processes, however many GPUs there are
// The windows in which there is room for a column.
constexpr std::size_t kForGpu = 46, kForCap = 56, kForUser = 72, kForBars = 80, kForHistory = 100, kForJob = 120,
                      kForContainer = 140;

// What can be done by a key, in the last line.
struct Key {
    int key;
    const char *name;
    bool acts = false;  // on a process
};
constexpr Key kKeys[] = {{'q', "quit"},          {'?', "help"},         {'r', "release", true}, {'c', "cap", true},
                         {'s', "suspend", true}, {'u', "resume", true}, {'o', "order"},         {'/', "filter"}};

TopState::UseKey key_of(const ViewProcess &process, const std::string &uuid) {
    return {namespace_of(process), process.pid, uuid};
}

// Returns TopRow::held.
Bytes held_in(const View &view, const ViewUse &use) {
    const Bytes nvml = use.nvml.value_or(0);
    if (const auto *books = books_of(view, use)) return view.processes[use.process].suspended ? nvml : books->held;
    const auto *posted = posted_of(view, use);
    return std::max(nvml, posted ? posted->held.value_or(0) : 0);
}

double share(Bytes part, Bytes whole) {
    return whole == 0 ? 0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
}

std::string repeated(const char *one, std::size_t times) {
    std::string out;
    for (std::size_t i = 0; i < times; ++i) out += one;
    return out;
}

std::size_t columns_of(double part, std::size_t width) {
    return static_cast<std::size_t>(std::lround(part * static_cast<double>(width)));
}

// Returns the last samples of the history as a bar each. The highest bar is `whole`.
std::string sparkline(const TopState::History *history, Bytes whole, bool unicode) {
    static constexpr const char *kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr const char *kAscii[] = {" ", ".", ".", ":", ":", "-", "=", "+", "#"};
    std::string out;
    const std::size_t size = history ? std::min(history->size(), kSpark) : 0;
    out.append(kSpark - size, ' ');
    for (std::size_t i = 0; i < size; ++i) {
        const Bytes bytes = (*history)[history->size() - size + i];
        const std::size_t height = bytes == 0 ? 0 : std::max<std::size_t>(1, columns_of(share(bytes, whole), 8));
        out += (unicode ? kBlocks : kAscii)[height];
    }
    return out;
}

std::size_t width_in(const ScreenLine &line) {
    std::size_t out = 0;
    for (const Span &span : line) out += width_of(span.text);
    return out;
}

// Cuts the line to `width` columns.
ScreenLine fitted(ScreenLine line, std::size_t width, bool unicode) {
    std::size_t left = width;
    ScreenLine out;
    for (Span &span : line) {
        if (left == 0) break;
        span.text = clipped(span.text, left, unicode);
        left -= std::min(left, width_of(span.text));
        out.push_back(std::move(span));
    }
    return out;
}

class Screenful {
  public:
    Screenful(const View &view, TopState &state, std::size_t width, std::size_t height, control::UnixMs now)
        : view_(view), state_(state), width_(width), height_(height), now_(now), rows_(top_rows(view, state)) {}

    std::vector<ScreenLine> done() && {
        for (const TopRow &row : rows_) gpu_width_ = std::max(gpu_width_, width_of(short_label(row.gpu)));
        gpu_width_ = std::min<std::size_t>(gpu_width_, 12);  // of the beginning of a UUID
        head();
        gpus();
        state_.at = rows_.empty() ? 0 : std::min(state_.at, rows_.size() - 1);
        const std::vector<std::string> notes = notes_on_selected();
        processes(notes.size());
        while (lines_.size() + 1 + notes.size() < height_) add({});
        for (const std::string &note : notes) add({{note, Ink::yellow}});
        last_line();
        if (lines_.size() > height_) lines_.resize(height_);
        for (ScreenLine &line : lines_) line = fitted(std::move(line), width_, state_.unicode);
        return std::move(lines_);
    }

  private:
    void head() {
        std::set<std::size_t> processes_shown;  // a process has a row on each of its GPUs
        for (const TopRow &row : rows_) processes_shown.insert(row.process);
        const bool is_usual = state_.every == TopState().every;
        ScreenLine line = {{fmt::format("curb top  {}  {}, {}", clock_text(now_, now_),
                                        counted(view_.gpus.size(), "GPU"), counted(processes_shown.size(), "process")),
                            Ink::bold},
                           {fmt::format("  {}by {}{}{}", state_.read_only ? "read-only, " : "",
                                        kSortNames[static_cast<std::size_t>(state_.sort)],
                                        state_.filter.empty() ? "" : ", with \"" + policy::plain(state_.filter) + "\"",
                                        is_usual ? "" : ", every " + interval_text(state_.every))}};
        ScreenLine legend = legend_of(state_.unicode);
        if (width_in(line) + 2 + width_in(legend) <= width_) {
            line.push_back({"  "});
            line.insert(line.end(), legend.begin(), legend.end());
        }
        add(std::move(line));
    }
    void add(ScreenLine line) { lines_.push_back(std::move(line)); }

    // Adds a line for each GPU: used by processes under curb, used by others, free; and what is held without use.
    void gpus() {
        if (!view_.nvml_fault.empty()) add({{policy::plain(view_.nvml_fault), Ink::yellow}});
        const std::size_t room = height_ > kLeastRows + 4 ? height_ - kLeastRows - 4 : 1;
        const bool all = view_.gpus.size() <= room;
        const std::size_t shown = all ? view_.gpus.size() : room - 1;
        std::size_t label = 0;
        for (const ViewGpu &gpu : view_.gpus) label = std::max(label, width_of(gpu_label(view_, gpu)));
        const bool has_idle = std::any_of(view_.gpus.begin(), view_.gpus.end(),
                                          [&](const ViewGpu &gpu) { return !idle_on(gpu, view_).empty(); });
        for (std::size_t i = 0; i < shown; ++i) add(gpu_line(view_.gpus[i], label, has_idle));
        if (!all) add({{fmt::format("{} more GPUs; a higher window shows them", view_.gpus.size() - shown), Ink::dim}});
    }
    // Returns what processes under curb hold of a GPU.
    [[nodiscard]] Bytes held_under_curb(const ViewGpu &gpu) const {
        Bytes out = 0;
        for (const ViewUse &use : gpu.uses)
            if (const auto *books = books_of(view_, use); books && !view_.processes[use.process].suspended)
                out += books->held;
            else if (const auto *posted = posted_of(view_, use); posted && !books)
                out += posted->held.value_or(0);
        return out;
    }
    [[nodiscard]] ScreenLine gpu_line(const ViewGpu &gpu, std::size_t label, bool has_idle) const {
        const Bytes capped = held_under_curb(gpu);
        const Bytes used = std::max(capped, gpu.used.value_or(0));
        const std::size_t bar = width_ >= kForBars ? kBar : kShortBar;
        const std::size_t ours = columns_of(share(capped, gpu.total), bar);
        const std::size_t all = std::max(ours, columns_of(share(used, gpu.total), bar));
        const auto found = state_.used.find(gpu.uuid);
        const bool u = state_.unicode;
        Bytes idle = 0;
        for (const auto &[user, bytes] : idle_on(gpu, view_)) idle += bytes;
        ScreenLine out = {{padded(gpu_label(view_, gpu), label) + " "},
                          {repeated(u ? "█" : "#", ours), Ink::green},
                          {repeated(u ? "▒" : "+", all - ours), Ink::yellow},
                          {repeated(u ? "░" : ".", bar - all), Ink::dim},
                          {fmt::format(" {:>10} of {:<9} ", format_human(used), format_human(gpu.total))}};
        // The rest, as far as it fits.
        for (const Span &part :
             {Span{load_text(gpu)},
              Span{has_idle ? padded(idle == 0 ? "" : "idle " + format_human(idle), kIdle) : "", Ink::yellow},
              Span{sparkline(found == state_.used.end() ? nullptr : &found->second, gpu.total, u), Ink::green},
              Span{"  " + policy::plain(gpu.name), Ink::dim}})
            if (width_in(out) + width_of(part.text) <= width_) out.push_back(part);
        return out;
    }

    // Returns " 87%  64°C ". Empty if NVML reports neither.
    [[nodiscard]] std::string load_text(const ViewGpu &gpu) const {
        if (!gpu.utilization && !gpu.temperature) return {};
        const auto figure = [](const std::optional<unsigned> &value, const char *unit) {
            return value ? std::to_string(*value) + unit : "-";
        };
        return padded(figure(gpu.utilization, "%"), 4, true) + " " +
               padded(figure(gpu.temperature, state_.unicode ? "°C" : "C"), 5, true) + "  ";
    }

    // True in a wide window if a process has a job, or is in a container.
    [[nodiscard]] bool has_jobs() const {
        return width_ >= kForJob &&
               std::any_of(view_.processes.begin(), view_.processes.end(),
                           [](const ViewProcess &one) { return one.status && !one.status->job.empty(); });
    }
    [[nodiscard]] bool has_containers() const {
        return width_ >= kForContainer && std::any_of(view_.processes.begin(), view_.processes.end(),
                                                      [](const ViewProcess &one) { return !one.container.empty(); });
    }

    // Returns the notes of curb ps on the selected process: what it waits for, since when, the next growth step. Empty
    // in a low window.
    [[nodiscard]] std::vector<std::string> notes_on_selected() const {
        constexpr std::size_t kMost = 3, kLeastHeight = 12;
        std::vector<std::string> out;
        if (rows_.empty() || height_ < kLeastHeight) return out;
        View selected = only(view_, {rows_[state_.at].process});
        selected.nvml_fault.clear();
        for (const std::string &note : ps_notes(selected, now_)) {
            std::istringstream lines(wrapped(note, width_, 2));
            for (std::string line; out.size() < kMost && std::getline(lines, line);) out.push_back(line);
        }
        return out;
    }

    // Adds the table of processes. Leaves `below` lines free above the last line.
    void processes(std::size_t below) {
        add({{figures("PID", "USER", "GPU", "HELD", "CAP") + column(width_ >= kForBars, "OF CAP", kCapBar) +
                  column(width_ >= kForHistory, "HISTORY", kSpark) + column(true, "STATE", kState) +
                  column(has_jobs(), "JOB", kJob) + column(has_containers(), "CONTAINER", kContainer) + "COMMAND",
              Ink::bold}});
        state_.line = lines_.size();
        const std::size_t taken = lines_.size() + 1 + below;
        const std::size_t room = height_ > taken ? height_ - taken : 1;
        if (state_.at < state_.first) state_.first = state_.at;
        if (state_.at >= state_.first + room) state_.first = state_.at + 1 - room;
        if (rows_.size() <= room) state_.first = 0;
        const std::size_t end = std::min(rows_.size(), state_.first + room);
        for (std::size_t i = state_.first; i < end; ++i) add(process_line(rows_[i], i == state_.at));
        if (rows_.empty())
            add({{state_.filter.empty() ? "no process is on a GPU, and none runs under curb"
                                        : "no process matches; / with an empty line shows all",
                  Ink::dim}});
    }
    // Returns the place of the row's process among those that take turns on its GPU, while one waits there: "turn 12 s"
    // (what is left of its own), "next", "wait turn". Empty: none.
    [[nodiscard]] std::string turn_text(const TopRow &row, State state) const {
        if (!row.gpu || row.gpu->next == 0) return {};
        if (is_next(*row.gpu, view_.processes[row.process])) return "next";
        const auto *posted = posted_of(view_, *row.use);
        if (!posted || !posted->turn || state == State::waiting) return {};
        if (posted->turn->leaves == 0) return state == State::napping ? "wait turn" : "";
        return posted->turn->ends > now_ ? "turn " + span_text(now_, posted->turn->ends) : "turn over";
    }
    // Returns "wait 3 s" instead of "waiting", "idle" of a running process that has not used the GPU for a minute, and
    // the place of one that takes turns: more information in as many columns.
    [[nodiscard]] Span state_span(const TopRow &row, const control::GpuStatus *books) const {
        const ViewProcess &process = view_.processes[row.process];
        const State state = state_of(process, books);
        if (std::string turn = turn_text(row, state); !turn.empty()) return {std::move(turn), ink_of(state)};
        if (state == State::running && row.use && row.use->idle.value_or(0) != 0) return {"idle", Ink::yellow};
        if (state == State::waiting && books)
            for (const control::Waiting &wait : process.status->waits)
                if (wait.gpu == books->ordinal) return {"wait " + span_text(wait.since, now_), ink_of(state)};
        return {state_name(state), ink_of(state)};
    }
    // Returns a column, with a blank behind it. Empty if it is not shown.
    [[nodiscard]] std::string column(bool is_shown, const std::string &text, std::size_t width,
                                     bool right = false) const {
        if (!is_shown) return {};
        const std::string cut = clipped(text.empty() ? "-" : policy::plain(text), width, state_.unicode);
        return padded(cut, width, right) + " ";
    }
    // Returns the first columns.
    [[nodiscard]] std::string figures(const std::string &pid, const std::string &user, const std::string &gpu,
                                      const std::string &held, const std::string &cap) const {
        return column(true, pid, 7, true) + column(width_ >= kForUser, user, 8) +
               column(width_ >= kForGpu, gpu, gpu_width_) + column(true, held, 9, true) +
               column(width_ >= kForCap, cap, 9, true);
    }
    [[nodiscard]] std::string short_label(const ViewGpu *gpu) const {
        const std::string label = gpu ? gpu_label(view_, *gpu) : "-";
        return label.starts_with("GPU ") ? label.substr(4) : label;
    }
    static std::string cap_text(const TopRow &row, bool has_books) {
        if (row.cap) return format_human(*row.cap);
        return has_books ? "none" : "-";
    }
    // Returns null if there is none.
    [[nodiscard]] const TopState::History *history_of(const TopRow &row) const {
        if (!row.gpu) return nullptr;
        const auto found = state_.held.find(key_of(view_.processes[row.process], row.gpu->uuid));
        return found == state_.held.end() ? nullptr : &found->second;
    }
    // Returns how much of its cap the row holds.
    [[nodiscard]] ScreenLine cap_bar(const TopRow &row, bool is_over) const {
        const std::size_t full = row.cap ? columns_of(share(row.held, *row.cap), kCapBar) : 0;
        const bool u = state_.unicode;
        return {{repeated(u ? "█" : "#", full), is_over ? Ink::red : Ink::green},
                {repeated(row.cap ? (u ? "░" : ".") : " ", kCapBar - full) + " ", Ink::dim}};
    }
    [[nodiscard]] ScreenLine process_line(const TopRow &row, bool selected) const {
        const ViewProcess &process = view_.processes[row.process];
        const auto *books = row.use ? books_of(view_, *row.use) : nullptr;
        ScreenLine out = {{figures(std::to_string(process.pid), process.user, short_label(row.gpu),
                                   row.use ? format_human(row.held) : "-", cap_text(row, books != nullptr))}};
        if (width_ >= kForBars)
            for (Span &part : cap_bar(row, books && is_over_cap(process, *books))) out.push_back(std::move(part));
        if (width_ >= kForHistory) {
            const Bytes whole = row.cap ? *row.cap : row.gpu ? row.gpu->total : 0;
            out.push_back({sparkline(history_of(row), whole, state_.unicode) + " ", Ink::green});
        }
        const Span state = state_span(row, books);
        out.push_back({column(true, state.text, kState), state.ink});
        out.push_back({column(has_jobs(), process.status ? process.status->job : "", kJob) +
                       column(has_containers(), process.container, kContainer)});
        const std::size_t taken = width_in(out), left = width_ > taken ? width_ - taken : 0;
        const std::string text = process.elsewhere && process.command.empty() ? "(in another pid namespace)"
                                                                              : policy::plain(process.command);
        const std::string command = shortened_command(text, left, state_.unicode);
        out.push_back({selected ? padded(command, left) : command});
        for (Span &part : out)
            if (selected || !process.under_curb) part.ink = selected ? Ink::reverse : Ink::dim;
        return out;
    }

    void last_line() {
        if (!state_.message.empty()) return add({{policy::plain(state_.message), Ink::bold}});
        ScreenLine out;
        for (const Key &one : kKeys) {
            if (one.acts && state_.read_only) continue;
            const ScreenLine next = {{out.empty() ? "" : "  "},
                                     {std::string(1, static_cast<char>(one.key)), Ink::bold, one.key},
                                     {std::string(" ") + one.name, Ink::plain, one.key}};
            if (!out.empty() && width_in(out) + width_in(next) > width_) break;
            out.insert(out.end(), next.begin(), next.end());
        }
        add(std::move(out));
    }

    const View &view_;
    TopState &state_;
    std::size_t width_, height_;
    control::UnixMs now_;
    std::vector<TopRow> rows_;
    std::size_t gpu_width_ = 3;
    std::vector<ScreenLine> lines_;
};

}  // namespace

int key_at(const ScreenLine &line, std::size_t column) {
    std::size_t end = 0;
    for (const Span &span : line)
        if (column < (end += width_of(span.text))) return span.key;
    return 0;
}

void remember(TopState &state, const View &view) {
    const auto push = [](TopState::History &history, Bytes bytes) {
        history.push_back(bytes);
        if (history.size() > kRemembered) history.pop_front();
    };
    std::set<std::string> gpus;
    std::set<TopState::UseKey> uses;
    for (const ViewGpu &gpu : view.gpus) {
        Bytes all = 0;
        for (const ViewUse &use : gpu.uses) {
            const Bytes held = held_in(view, use);
            const auto key = key_of(view.processes[use.process], gpu.uuid);
            push(state.held[key], held);
            uses.insert(key);
            all += held;
        }
        push(state.used[gpu.uuid], std::max(all, gpu.used.value_or(0)));
        gpus.insert(gpu.uuid);
    }
    std::erase_if(state.used, [&](const auto &one) { return !gpus.contains(one.first); });
    std::erase_if(state.held, [&](const auto &one) { return !uses.contains(one.first); });
}

void keep_selected(TopState &state, const View &older, const View &newer) {
    const std::vector<TopRow> before = top_rows(older, state), rows = top_rows(newer, state);
    if (state.at >= before.size()) return;
    const TopRow &was = before[state.at];
    const auto is_of = [&](const TopRow &row, bool of_gpu) {
        const auto key = [&](const View &view, const TopRow &one) {
            return key_of(view.processes[one.process], of_gpu && one.gpu ? one.gpu->uuid : "");
        };
        return key(newer, row) == key(older, was);
    };
    for (const bool of_gpu : {true, false}) {
        const auto at = std::find_if(rows.begin(), rows.end(), [&](const TopRow &row) { return is_of(row, of_gpu); });
        if (at == rows.end()) continue;
        state.at = static_cast<std::size_t>(at - rows.begin());
        return;
    }
}

std::vector<TopRow> top_rows(const View &view, const TopState &state) {
    std::vector<TopRow> out;
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) {
            const auto *books = books_of(view, use);
            const auto *posted = posted_of(view, use);
            out.push_back({use.process, &gpu, &use, held_in(view, use),
                           books    ? books->cap
                           : posted ? posted->cap
                                    : std::nullopt});
        }
    for (const std::size_t process : on_no_gpu(view)) out.push_back({process, nullptr, nullptr, 0, {}});
    const std::string filter = policy::lower_case(state.filter);
    std::erase_if(out, [&](const TopRow &row) {
        const ViewProcess &process = view.processes[row.process];
        const std::string text =
            policy::lower_case(process.command + "\n" + process.user + "\n" + std::to_string(process.pid));
        return text.find(filter) == std::string::npos;
    });
    const auto process = [&](const TopRow &row) -> const ViewProcess & { return view.processes[row.process]; };
    std::stable_sort(out.begin(), out.end(), [&](const TopRow &a, const TopRow &b) {
        switch (state.sort) {
            case Sort::held: return a.held > b.held;
            case Sort::cap: return a.cap.value_or(0) > b.cap.value_or(0);
            case Sort::pid: return process(a).pid < process(b).pid;
            case Sort::user: return process(a).user < process(b).user;
            case Sort::command: return process(a).command < process(b).command;
        }
        return false;
    });
    return out;
}

std::vector<ScreenLine> top_screen(const View &view, TopState &state, std::size_t width, std::size_t height,
                                   control::UnixMs now) {
    if (!state.helps) return Screenful(view, state, width, height, now).done();
    std::vector<ScreenLine> out = top_help(state);
    out.resize(height);
    for (ScreenLine &line : out) line = fitted(std::move(line), width, state.unicode);
    return out;
}

}  // namespace curb::cli
