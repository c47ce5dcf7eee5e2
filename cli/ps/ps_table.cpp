#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "machine/target.hpp"
#include "policy/values/size.hpp"
#include "ps/ps_text.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

enum Column : std::size_t {
    pid,
    user,
    held,
    nvml,
    cap,
    allowance,
    cached,
    refused,
    released,
    idle,
    state,
    job,
    container,
    command,
    kColumns
};
constexpr std::array<const char *, kColumns> kTitles{"PID",       "USER",   "HELD",      "NVML",     "CAP",
                                                     "ALLOWANCE", "CACHED", "REFUSED",   "RELEASED", "IDLE",
                                                     "STATE",     "JOB",    "CONTAINER", "COMMAND"};
constexpr bool is_number(std::size_t column) { return column != user && column < state; }
// The columns that are dropped on a narrow terminal, first to last.
constexpr std::array kLost{container, job, released, cached, allowance, idle, refused, user, nvml, cap, state};
// The columns that are there only if a process has something in them.
constexpr bool is_optional(std::size_t column) { return column == job || column == container || column == idle; }
// The least width of the command: while other columns can be dropped, and before NVML, CAP and STATE are dropped.
constexpr std::size_t kLeastCommand = 16, kFewest = 8;
constexpr bool is_dropped_late(std::size_t column) { return column == nvml || column == cap || column == state; }
constexpr std::size_t kIndent = 2, kGap = 2;

struct Cell {
    std::string text;
    Ink ink = Ink::plain;
};
using Row = std::array<Cell, kColumns>;

std::string size_or(const std::optional<Bytes> &bytes, const char *none) { return bytes ? format_human(*bytes) : none; }

void fill_books(Row &row, const control::GpuStatus &books, bool over_cap) {
    row[held] = {format_human(books.held), over_cap ? Ink::red : Ink::plain};
    row[cap].text = size_or(books.cap, "none");
    row[allowance].text = size_or(books.allowance, "-");
    row[cached].text = format_human(books.cached);
    const std::uint64_t times = control::refused(books);
    row[refused] = {std::to_string(times), times > 0 ? Ink::yellow : Ink::plain};
    row[released].text = format_human(control::released(books));
}

// What a process of another user posts.
void fill_posted(Row &row, const control::board::Gpu &posted) {
    row[held].text = size_or(posted.held, "-");
    if (posted.held) row[cap].text = size_or(posted.cap, "none");
}

// `use`: null for a process that is on no GPU.
Row row_of(const View &view, const ViewProcess &process, const ViewUse *use) {
    Row row;
    row.fill({"-"});
    const auto *books = use ? books_of(view, *use) : nullptr;
    row[pid].text = std::to_string(process.pid);
    if (!process.user.empty()) row[user].text = plain(process.user);
    row[command].text = process.elsewhere ? "(in another pid namespace)" : plain(process.command);
    if (process.status && !process.status->job.empty()) row[job].text = plain(process.status->job);
    if (!process.container.empty()) row[container].text = process.container;
    if (use) row[nvml].text = size_or(use->nvml, "-");
    if (use && use->idle.value_or(0) != 0) row[idle] = {format_human(*use->idle), Ink::yellow};
    if (books)
        fill_books(row, *books, is_over_cap(process, *books));
    else if (const auto *posted = use ? posted_of(view, *use) : nullptr)
        fill_posted(row, *posted);
    else if (process.status)
        row[held].text = format_human(0);
    const State now = state_of(process, books);
    row[state] = {state_name(now), ink_of(now)};
    if (!process.under_curb)
        for (Cell &cell : row) cell.ink = Ink::dim;
    if (process.under_curb && !process.status) row[pid].ink = row[command].ink = Ink::yellow;
    return row;
}

// The rows of one GPU, or of the processes on none.
struct Block {
    std::vector<std::string> heads;  // headings, longest first: the first that fits is shown
    std::vector<Row> rows;
    std::map<std::size_t, std::string> jobs{};  // the line above a job's rows, by the index of its first row
};

// Adds the processes on a GPU. Those of one job are together, under a line with their sum and its cap.
void add_uses(Block &out, const View &view, const ViewGpu &gpu) {
    std::vector<std::pair<std::string, std::vector<const ViewUse *>>> jobs;
    for (const ViewUse &use : gpu.uses) {
        const auto *books = books_of(view, use);
        const std::string job = books && books->job_cap ? view.processes[use.process].status->job : "";
        auto at =
            std::find_if(jobs.begin(), jobs.end(), [&](const auto &one) { return !job.empty() && one.first == job; });
        if (at == jobs.end()) at = jobs.insert(at, {job, {}});
        at->second.push_back(&use);
    }
    const auto known = jobs_on(view, gpu);
    for (const auto &[name, uses] : jobs) {
        if (!name.empty()) {
            const JobUse &job = known.at(name);
            out.jobs[out.rows.size()] =
                "job " + plain(name) + "  " + format_human(job.held) + " of " + format_human(job.cap) + " held";
        }
        for (const ViewUse *use : uses) out.rows.push_back(row_of(view, view.processes[use->process], use));
    }
}

Block block_of(const View &view, const ViewGpu &gpu) {
    const std::string label = gpu_label(view, gpu), name = gpu.name.empty() ? "" : "  " + plain(gpu.name);
    Block out;
    if (gpu.used && gpu.free) {
        const std::string taken = "  " + format_human(*gpu.used) + " of " + format_human(gpu.total) + " used";
        const std::string left = ", " + format_human(*gpu.free) + " free";
        out.heads = {label + name + taken + left, label + taken + left, label + taken};
    } else {
        out.heads = {label + name + "  " + format_human(gpu.total)};
    }
    add_uses(out, view, gpu);
    return out;
}

std::vector<Block> blocks_of(const View &view) {
    std::vector<Block> out;
    for (const ViewGpu &gpu : view.gpus) out.push_back(block_of(view, gpu));
    Block rest{.heads = {"on no GPU"}, .rows = {}};
    for (const std::size_t process : on_no_gpu(view))
        rest.rows.push_back(row_of(view, view.processes[process], nullptr));
    if (!rest.rows.empty()) out.push_back(std::move(rest));
    return out;
}

class Layout {
  public:
    Layout(const std::vector<Block> &blocks, const Screen &screen) : screen_(screen) {
        for (std::size_t i = 0; i < kColumns; ++i) widths_[i] = is_optional(i) ? 0 : width_of(kTitles[i]);
        for (const Block &block : blocks)
            for (const Row &row : block.rows)
                for (std::size_t i = 0; i < kColumns; ++i)
                    if (!is_optional(i) || row[i].text != "-")
                        widths_[i] = std::max({widths_[i], width_of(row[i].text), width_of(kTitles[i])});
        if (!screen.width) return;
        const std::size_t wanted = widths_[command];
        for (const std::size_t column : kLost) {
            widths_[command] = std::min(wanted, is_dropped_late(column) ? kFewest : kLeastCommand);
            if (total() <= *screen.width) continue;
            widths_[column] = 0;
            if (column == nvml) widen_held(blocks);
        }
        const std::size_t others = total() - widths_[command];
        widths_[command] = std::clamp<std::size_t>(*screen.width - std::min(*screen.width, others), 1, wanted);
    }

    [[nodiscard]] std::string head() const {
        Row titles;
        for (std::size_t i = 0; i < kColumns; ++i) titles[i] = {kTitles[i], Ink::dim};
        return line(titles);
    }
    [[nodiscard]] std::string line(const Row &row) const {
        std::string out;
        for (std::size_t i = 0; i < kColumns; ++i) {
            if (widths_[i] == 0) continue;
            out.append(out.empty() ? kIndent : kGap, ' ');
            const Cell &cell = row[i == held && is_by_nvml(row) ? nvml : i];
            const std::string text = i == command ? shortened_command(cell.text, widths_[i], screen_.unicode)
                                                  : clipped(cell.text, widths_[i], screen_.unicode);
            const std::size_t blanks = widths_[i] - width_of(text);
            if (is_number(i)) out.append(blanks, ' ');
            out += inked(screen_, cell.ink, text);
            if (!is_number(i) && i + 1 < kColumns) out.append(blanks, ' ');
        }
        return out + "\n";
    }

  private:
    // Makes room in HELD for NVML's figures.
    void widen_held(const std::vector<Block> &blocks) {
        for (const Block &block : blocks)
            for (const Row &row : block.rows)
                if (is_by_nvml(row)) widths_[held] = std::max(widths_[held], width_of(row[nvml].text));
    }
    // True if HELD shows NVML's figure: the process has none of its own, and the terminal has no column NVML.
    [[nodiscard]] bool is_by_nvml(const Row &row) const { return widths_[nvml] == 0 && row[held].text == "-"; }
    [[nodiscard]] std::size_t total() const {
        const auto shown = static_cast<std::size_t>(
            std::count_if(widths_.begin(), widths_.end(), [](std::size_t width) { return width > 0; }));
        return std::accumulate(widths_.begin(), widths_.end(), kIndent + (shown - 1) * kGap);
    }

    const Screen &screen_;
    std::array<std::size_t, kColumns> widths_{};
};

std::string head_of(const Block &block, const Screen &screen) {
    for (const std::string &head : block.heads)
        if (!screen.width || width_of(head) <= *screen.width) return head;
    return clipped(block.heads.back(), *screen.width, screen.unicode);
}

using policy::Limit;

// A refusal has a note below the table for so long. The column REFUSED counts it as long as the process lives.
constexpr control::UnixMs kNews = 10 * 60 * 1000;

// True if the limit that refused the request has been raised since.
bool is_raised(const control::GpuStatus &books, const control::Refusal &last) {
    const auto is_above = [&](const std::optional<Bytes> &limit) { return !limit || *limit > last.limit; };
    return (last.why == Limit::cap && is_above(books.cap)) || (last.why == Limit::job && is_above(books.job_cap)) ||
           (last.why == Limit::allowance && is_above(books.allowance));
}

class Notes {
  public:
    Notes(const View &view, control::UnixMs now) : view_(view), now_(now) {}

    std::vector<std::string> done() && {
        if (!view_.nvml_fault.empty()) say("{}; so only processes under curb are shown", plain(view_.nvml_fault));
        for (std::size_t i = 0; i < view_.processes.size(); ++i) about(i);
        for (const ViewGpu &gpu : view_.gpus) {
            about_idle(gpu);
            if (gpu.shares_host_memory)
                say("{} shares the host's memory: NVML has no figures of it, and used and free are those of the host",
                    gpu_label(view_, gpu));
        }
        for (const ViewGpu &gpu : view_.gpus) about_turns(gpu);
        return std::move(out_);
    }

  private:
    void about(std::size_t index) {
        const ViewProcess &process = view_.processes[index];
        const std::string who = label_of(process.pid, process.name), says = nvml_says(view_, index);
        const std::string nvml = says.empty() ? "NVML does not say what it holds" : says;
        about_state(who, index);
        if (!process.trouble.empty()) say("{} runs under curb, and {}; {}", who, plain(process.trouble), nvml);
        if (!has_pid_here(process))
            say("{} has this PID in another pid namespace, perhaps a container; NVML may list it with another one",
                who);
        else if (process.elsewhere)
            say("{} runs in another pid namespace, perhaps a container; {}", who, nvml);
        if (!process.status) return;
        about_policy(who, process.status->policy);
        for (const ViewGpu &gpu : view_.gpus)
            for (const ViewUse &use : gpu.uses)
                if (use.process == index && use.books) about_gpu(process, gpu, *books_of(view_, use));
    }

    void about_state(const std::string &who, std::size_t index) {
        const ViewProcess &process = view_.processes[index];
        if (state_of(process) == State::napping && process.status)
            about_nap(who, index, *process.status->nap);
        else if (process.suspended)
            say("{} is suspended: its memory is in host memory; curb resume {} brings it back", who, process.pid);
        else if (process.stopped && process.trouble.empty())
            say("{} is stopped; kill -CONT {} continues it", who, process.pid);
    }

    void about_idle(const ViewGpu &gpu) {
        Bytes all = 0;
        std::string by;
        for (const auto &[user, bytes] : idle_on(gpu, view_)) {
            all += bytes;
            by += (by.empty() ? "" : ", ") + plain(user.empty() ? "?" : user) + " " + format_human(bytes);
        }
        if (all != 0)
            say("{} of {} is held without use for a minute or more: {}", format_human(all), gpu_label(view_, gpu), by);
    }

    // Whose turn it is, and who is next: "On GPU 0 it is the turn of 4711 (python), for 12 s more; next is 4712 (jax)".
    void about_turns(const ViewGpu &gpu) {
        std::string have;
        for (const ViewUse &use : gpu.uses) {
            const ViewProcess &process = view_.processes[use.process];
            if (!use.posted) continue;
            const auto &turn = process.posted->gpus[*use.posted].turn;
            if (!turn || turn->leaves == 0 || process.posted->state == control::board::State::waiting) continue;
            have += (have.empty() ? "" : ", ") + label_of(process.pid, process.name) +
                    (turn->ends > now_ ? ", for " + span_text(now_, turn->ends) + " more" : ", which is over");
        }
        if (have.empty() || gpu.next == 0) return;
        const auto next = std::find_if(view_.processes.begin(), view_.processes.end(),
                                       [&](const ViewProcess &one) { return is_next(gpu, one); });
        say("on {} it is the turn of {}; next is {}", gpu_label(view_, gpu), have,
            label_of(gpu.next, next == view_.processes.end() ? "" : next->name));
    }

    void about_nap(const std::string &who, std::size_t index, const control::NapStatus &nap) {
        const auto &turn = view_.processes[index].status->turn;
        const bool waits_for_turn = turn && nap.no_room_since != 0;
        say("{} {} since {}: {} is in host memory {}", who, waits_for_turn ? "waits for its turn" : "naps",
            clock_text(nap.since, now_), nap.is_light ? format_human(nap.bytes) + " of its memory" : "its memory",
            nap_end_text(view_, index, now_));
    }

    void about_policy(const std::string &who, const control::PolicyStatus &policy) {
        const std::string error = policy.error.empty() ? "" : ": " + plain(policy.error);
        if (policy.unusable)
            say("{} has a policy that cannot be used, so curb refuses all its requests{}", who, error);
        else if (!policy.error.empty())
            say("{} runs under its last good policy; the last edit is not in force{}", who, error);
    }

    void about_gpu(const ViewProcess &process, const ViewGpu &gpu, const control::GpuStatus &books) {
        const std::string who = label_of(process.pid, process.name);
        const std::string where = view_.gpus.size() > 1 ? " on " + gpu_label(view_, gpu) : "";
        if (is_over_cap(process, books))
            say("{} holds {} more{} than its cap of {}; {}new requests wait or are refused until it holds less", who,
                format_human(books.held - *books.cap), where, format_human(*books.cap),
                process.status->releasing ? "a release is under way, and " : "");
        if (books.live_cap)
            say("{} has a cap{} that was set by curb cap: {}; curb cap {} --reset restores that of its policy", who,
                where, policy::format(*books.live_cap), process.pid);
        const auto is_here = [&](const auto &one) { return one.gpu == books.ordinal; };
        const auto &waits = process.status->waits;
        const auto wait = std::find_if(waits.begin(), waits.end(), is_here);
        if (wait != waits.end() && has_waited_long(*wait, now_))
            say("{} waits{} for {}{}", who, where, wait_text(*wait, process.pid, now_),
                books.waiting > 1 ? fmt::format("; {} more wait", books.waiting - 1) : "");
        if (process.status->policy.unusable) return;
        const control::Refusal *last = last_refusal(*process.status, books);
        if (!last || now_ - last->at > kNews || is_raised(books, *last)) return;
        say("{} was {}; help: {}", who, refusal_text(books, *last, now_, where),
            refusal_help(process.pid, books, *last));
    }

    template <class... Words>
    void say(fmt::format_string<const Words &...> text, const Words &...words) {
        out_.push_back(fmt::format(text, words...));
    }

    const View &view_;
    control::UnixMs now_;
    std::vector<std::string> out_;
};

}  // namespace

std::string ps_table(const View &view, const Screen &screen, control::UnixMs now) {
    const std::vector<Block> blocks = blocks_of(view);
    const Layout layout(blocks, screen);
    std::string out;
    if (!view.processes.empty()) out += layout.head();
    for (const Block &block : blocks) {
        out += inked(screen, Ink::bold, head_of(block, screen)) + "\n";
        for (std::size_t i = 0; i < block.rows.size(); ++i) {
            if (const auto job = block.jobs.find(i); job != block.jobs.end())
                out += std::string(kIndent, ' ') +
                       (screen.width
                            ? clipped(job->second, *screen.width - std::min(*screen.width, kIndent), screen.unicode)
                            : job->second) +
                       "\n";
            out += layout.line(block.rows[i]);
        }
    }
    std::vector<std::string> notes = ps_notes(view, now);
    if (view.processes.empty())
        notes.insert(notes.begin(), view.nvml_fault.empty() ? "no process is on a GPU, and none runs under curb"
                                                            : "no process that can be asked runs under curb");
    if (!notes.empty() && !out.empty()) out += "\n";
    for (const std::string &note : notes) out += screen.width ? wrapped(note, *screen.width, 2) : note + "\n";
    return out;
}

std::vector<std::string> ps_notes(const View &view, control::UnixMs now) { return Notes(view, now).done(); }

}  // namespace curb::cli
