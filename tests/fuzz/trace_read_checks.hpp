// Checks of any file that is read as a trace: it is read, or refused with a reason, however it is cut into pieces; an
// event that is written again is the same; and a recording can be summed up, drawn and replayed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "page/pages.hpp"
#include "trace/job.hpp"
#include "trace/replay.hpp"

namespace curb::fuzz {

// Reads the text as a file "t.json", in pieces of so many bytes.
inline policy::Result<cli::Recording, std::string> read_text(std::string_view text, std::size_t piece = 1 << 20) {
    cli::TraceReader reader("t.json");
    for (std::size_t at = 0; at < text.size(); at += piece)
        if (!reader.take(text.substr(at, piece))) break;
    return std::move(reader).done();
}

// Returns what is wrong if the line is an event that is not read again as it would be written.
inline std::string altered(std::string_view line) {
    const auto read = control::trace::parse(line);
    if (!read || !read->event) return {};
    control::trace::Event event = *read->event;
    for (int i = 0; i < 2; ++i) {  // members that append() leaves out of such an event are gone after the first time
        std::string written;
        control::trace::append(written, event, 1);
        const auto again = control::trace::parse(written);
        if (!again || !again->event) return "an event is not read as it was written: " + written;
        if (i == 1 && *again->event != event) return "an event is read differently than it was written: " + written;
        event = *again->event;
    }
    return {};
}

// Returns the check that the recording fails; empty if none.
inline std::string broken_recording(const cli::Recording &recording) {
    const cli::Summary summary = cli::summarise(recording);
    const std::string page = cli::html_page(recording, summary);
    if (page.find("</html>") == std::string::npos) return "the page has no end";
    if (cli::svg_picture(recording, summary).find("</svg>") == std::string::npos) return "the picture has no end";
    if (cli::text_report(recording, summary).empty()) return "there are no lines";
    for (const cli::GpuSummary &gpu : summary.gpus) {
        cli::ReplayTerms terms;
        terms.total = gpu.total;
        terms.gpu.cap = gpu.peak / 2;
        terms.gpu.growth.wait = policy::Duration(1'000);
        const cli::Replayed out = cli::replay(recording, gpu.gpu, terms);
        if (out.refused > out.requests) return "more is refused than asked for";
        if (out.refusals.size() != std::min(out.refused, cli::kMostListed)) return "refusals are not listed";
        const auto least = cli::smallest_cap(recording, gpu.gpu, gpu.total);
        if (!least) continue;
        terms.gpu = {};
        terms.gpu.cap = *least;
        if (cli::replay(recording, gpu.gpu, terms).refused != 0) return "the smallest cap refuses something";
    }
    // As two processes of a job.
    const std::vector<cli::Recording> both(2, recording);
    const std::vector<cli::JobGpu> gpus = cli::gpus_of_job(both);
    const cli::Recording whole = cli::together(both, gpus);
    if (cli::html_page(whole, cli::summarise(whole)).find("</html>") == std::string::npos) return "the page has no end";
    for (const cli::JobGpu &gpu : gpus) {
        std::vector<cli::Rank> ranks = gpu.ranks;
        const auto least = cli::smallest_job_cap(ranks);
        if (!least) continue;
        for (cli::Rank &rank : ranks) rank.terms.gpu.job_cap = *least;
        if (!cli::replay(ranks).is_served()) return "the smallest cap of the job refuses something";
    }
    return {};
}

// Returns the check that the file fails; empty if none.
inline std::string broken(std::string_view text) {
    const auto whole = read_text(text, text.size() + 1);
    const auto pieces = read_text(text, 7);
    if (whole.ok() != pieces.ok()) return "in pieces it is read otherwise than whole";
    if (!whole) return whole.error().empty() || whole.error() != pieces.error() ? "not one word of why" : std::string();
    if (whole->events != pieces->events || whole->missing != pieces->missing || whole->texts != pieces->texts)
        return "in pieces it says something else than whole";
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        if (std::string wrong = altered(text.substr(begin, end - begin)); !wrong.empty()) return wrong;
        begin = end + 1;
    }
    return broken_recording(*whole);
}

}  // namespace curb::fuzz
