// The help of `curb top`.
#include "policy/values/words.hpp"
#include "ps/ps_text.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"
#include "top/top_screen.hpp"

namespace curb::cli {

const std::array<const char *, kSorts> kSortNames = {"held", "cap", "pid", "user", "command"};

std::string interval_text(std::chrono::milliseconds every) {
    if (every < std::chrono::minutes(1)) return fmt::format("{:g} s", Seconds(every).count());
    return fmt::format("{} min", every / std::chrono::minutes(1));
}

ScreenLine legend_of(bool unicode) {
    return {{unicode ? "█" : "#", Ink::green}, {" under curb "}, {unicode ? "▒" : "+", Ink::yellow}, {" others "},
            {unicode ? "░" : ".", Ink::dim},   {" free"}};
}

std::vector<ScreenLine> top_help(const TopState &state) {
    std::vector<ScreenLine> out;
    const auto heading = [&](const char *text) { out.push_back({{text, Ink::bold}}); };
    const auto row = [&](const std::string &left, const std::string &right, Ink ink = Ink::bold) {
        out.push_back({{"  " + padded(left, 11), ink}, {" " + right}});
    };
    out.push_back({{"curb top: help", Ink::bold}, {"   any key goes back"}});
    heading(state.read_only ? "Keys (--read-only: r, c, s and u do nothing)" : "Keys");
    row("r  c", "release what it caches; change its cap");
    row("s  u", "suspend it; resume it. All four ask first");
    row("arrows j k", "select a process; so do wheel and click");
    row("o", "the next order: " + policy::joined(kSortNames, ", "));
    row("/", "show what contains a text; empty: all");
    row("+  -", "poll less, more often (now every " + interval_text(state.every) + ")");
    row("q", "quit. A click presses a key; Shift: select");
    heading("GPUs");
    out.push_back({{"  "}});
    for (const Span &span : legend_of(state.unicode)) out.back().push_back(span);
    out.back().push_back({";  use, temperature, polls"});
    row("idle", "held, and not used for a minute or more", Ink::yellow);
    heading("Processes");
    row("HELD", "by its books, else by NVML (curb ps: both)", Ink::plain);
    row("CAP", "none: not capped. OF CAP: the part held", Ink::plain);
    constexpr std::pair<State, const char *> kMeanings[] = {
        {State::running, "it has used the GPU within a minute"},
        {State::waiting, "for memory: its note has limit and time"},
        {State::napping, "out of the GPU, until its next call"},
        {State::suspended, "by curb suspend (s), until curb resume (u)"},
        {State::over_cap, "requests wait or fail until it holds less"},
        {State::releasing, "it gives memory back"},
        {State::silent, "it does not answer. stopped: by a signal"},
        {State::no_curb, "only NVML knows it. unknown: out of sight"}};
    for (const auto &[one, text] : kMeanings) row(state_name(one), text, ink_of(one));
    row("turn 12 s", "left of its turn. next, wait turn: it waits", Ink::plain);
    return out;
}

}  // namespace curb::cli
