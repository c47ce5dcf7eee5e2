#include <algorithm>
#include <array>
#include <numeric>

#include "policy/size.hpp"
#include "ps_text.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

enum Column : std::size_t { pid, user, held, nvml, cap, allowance, cached, refused, released, command, kColumns };
constexpr std::array<const char *, kColumns> kTitles{"PID",       "USER",   "HELD",    "NVML",     "CAP",
                                                     "ALLOWANCE", "CACHED", "REFUSED", "RELEASED", "COMMAND"};
constexpr bool is_number(std::size_t column) { return column != user && column != command; }
// The columns that a narrow terminal loses, first to last.
constexpr std::array kLost{released, cached, allowance, refused, user, cap, nvml};
// Columns of it, before others are lost: such as say more than a few letters of a command, and the figures.
constexpr std::size_t kLeastCommand = 16, kFewest = 8;
constexpr std::size_t kIndent = 2, kGap = 2;

struct Cell {
    std::string text;
    Ink ink = Ink::plain;
};
using Row = std::array<Cell, kColumns>;

std::string size_or(const std::optional<Bytes> &bytes, const char *none) { return bytes ? format_human(*bytes) : none; }

// `use`: null for a process that holds nothing, or that does not answer.
Row row_of(const View &view, const ViewProcess &process, const ViewUse *use) {
    Row row;
    row.fill({"-"});
    const auto *books = use ? books_of(view, *use) : nullptr;
    row[pid].text = std::to_string(process.pid);
    if (!process.user.empty()) row[user].text = plain(process.user);
    row[command].text = process.elsewhere ? "(in another pid namespace)" : plain(process.command);
    if (use) row[nvml].text = size_or(use->nvml, "-");
    if (books) {
        row[held] = {format_human(books->held), is_over_cap(process, *books) ? Ink::red : Ink::plain};
        row[cap].text = size_or(books->cap, "none");
        row[allowance].text = size_or(books->allowance, "-");
        row[cached].text = format_human(books->cached);
        const std::uint64_t times = control::refused(*books);
        row[refused] = {std::to_string(times), times > 0 ? Ink::yellow : Ink::plain};
        row[released].text = format_human(control::released(*books));
    } else if (process.status) {
        row[held].text = format_human(0);
    }
    if (!process.under_curb)
        for (Cell &cell : row) cell.ink = Ink::dim;
    if (process.under_curb && !process.status) row[pid].ink = row[command].ink = Ink::yellow;
    return row;
}

// A command that is too long first loses the program's folder.
std::string shortened(const std::string &text, std::size_t columns) {
    if (width_of(text) <= columns) return text;
    const std::size_t slash = text.rfind('/', text.find(' '));
    return clipped(slash == std::string::npos || slash + 1 == text.size() ? text : text.substr(slash + 1), columns);
}

// One device, or what stands on none.
struct Block {
    std::vector<std::string> heads;  // the first that fits
    std::vector<Row> rows;
};

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
    for (const ViewUse &use : gpu.uses) out.rows.push_back(row_of(view, view.processes[use.process], &use));
    return out;
}

std::vector<Block> blocks_of(const View &view) {
    std::vector<Block> out;
    std::vector<bool> placed(view.processes.size());
    for (const ViewGpu &gpu : view.gpus) {
        out.push_back(block_of(view, gpu));
        for (const ViewUse &use : gpu.uses) placed[use.process] = true;
    }
    Block rest{{"on no GPU"}, {}};
    for (std::size_t i = 0; i < view.processes.size(); ++i)
        if (!placed[i]) rest.rows.push_back(row_of(view, view.processes[i], nullptr));
    if (!rest.rows.empty()) out.push_back(std::move(rest));
    return out;
}

class Layout {
  public:
    Layout(const std::vector<Block> &blocks, const Screen &screen) : screen_(screen) {
        for (std::size_t i = 0; i < kColumns; ++i) widths_[i] = width_of(kTitles[i]);
        for (const Block &block : blocks)
            for (const Row &row : block.rows)
                for (std::size_t i = 0; i < kColumns; ++i) widths_[i] = std::max(widths_[i], width_of(row[i].text));
        if (!screen.width) return;
        const std::size_t wanted = widths_[command];
        for (const std::size_t column : kLost) {
            widths_[command] = std::min(wanted, column == cap || column == nvml ? kFewest : kLeastCommand);
            if (total() > *screen.width) widths_[column] = 0;
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
            const std::string text =
                i == command ? shortened(row[i].text, widths_[i]) : clipped(row[i].text, widths_[i]);
            const std::size_t blanks = widths_[i] - width_of(text);
            if (is_number(i)) out.append(blanks, ' ');
            out += inked(screen_, row[i].ink, text);
            if (!is_number(i) && i + 1 < kColumns) out.append(blanks, ' ');
        }
        return out + "\n";
    }

  private:
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
    return clipped(block.heads.back(), *screen.width);
}

}  // namespace

std::string ps_table(const View &view, const Screen &screen, control::UnixMs now) {
    const std::vector<Block> blocks = blocks_of(view);
    const Layout layout(blocks, screen);
    std::string out;
    if (!view.processes.empty()) out += layout.head();
    for (const Block &block : blocks) {
        out += inked(screen, Ink::bold, head_of(block, screen)) + "\n";
        for (const Row &row : block.rows) out += layout.line(row);
    }
    std::vector<std::string> notes = ps_notes(view, now);
    if (view.processes.empty())
        notes.insert(notes.begin(), view.nvml_fault.empty() ? "no process is on a GPU, and none runs under curb"
                                                            : "no process that can be asked runs under curb");
    if (!notes.empty() && !out.empty()) out += "\n";
    for (const std::string &note : notes) out += screen.width ? wrapped(note, *screen.width, 2) : note + "\n";
    return out;
}

}  // namespace curb::cli
