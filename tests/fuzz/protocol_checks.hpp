// Checks of any bytes that come over the control socket, at the server or at a client: they become the same lines
// however they are cut; each line is a message or is refused with a reason; and a message written again says the same.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "control/lines.hpp"
#include "control/messages.hpp"
#include "control/suspended.hpp"

namespace curb::fuzz {

inline constexpr std::size_t kLine = 512;  // the longest here, so that short texts reach it too

struct Framed {
    std::vector<std::string> lines;
    bool too_long = false;
    friend bool operator==(const Framed &, const Framed &) = default;
};

// Reads as both ends do: a block, then every whole line, until one is too long.
inline Framed framed(std::string_view bytes, std::size_t block) {
    control::Lines lines(kLine);
    Framed out;
    for (std::size_t at = 0; at < bytes.size() && !out.too_long; at += block) {
        lines.take(bytes.substr(at, block));
        while (auto line = lines.next()) out.lines.push_back(*std::move(line));
        out.too_long = lines.too_long();
    }
    return out;
}

template <class Parse>
std::string misread(std::string_view line, Parse parse, std::string_view beginning) {
    const auto read = parse(line);
    if (!read) {
        if (!read.error().starts_with(beginning) || read.error().size() == beginning.size()) return "no word of why";
        return read.error().find('\n') == std::string::npos ? std::string() : "more than one line: " + read.error();
    }
    const std::string written = control::text(*read);
    if (written.find('\n') != std::string::npos) return "written again it is more than a line";
    const auto again = parse(written);
    if (!again) return "written again it is wrong: " + written + ": " + again.error();
    // Compares the written texts, as times are written with only six decimals.
    return control::text(*again) == written ? std::string() : "written again it says something else: " + written;
}

// Reads an answer as clients do: they print reports of releases, and sum up refusals.
inline policy::Result<control::Reply, std::string> read_reply(std::string_view line) {
    auto reply = control::parse_reply(line);
    if (!reply) return reply;
    if (const auto *report = std::get_if<control::ReleaseReport>(&*reply);
        report && control::text(*report).find('\n') != std::string::npos)
        return std::string("a report of a release is more than a line");
    if (const auto *status = std::get_if<control::Status>(&*reply))
        for (const control::GpuStatus &gpu : status->gpus)
            static_cast<void>(control::refused(gpu) + control::released(gpu));
    return reply;
}

// Returns the check that the bytes fail; empty if none.
inline std::string broken(std::string_view bytes) {
    const Framed whole = framed(bytes, bytes.size() + 1);
    for (const std::size_t block : {std::size_t{3}, kLine - 1, bytes.size() / 2 + 1})
        if (framed(bytes, block) != whole) return "cut into pieces it is other lines";
    std::string_view left = bytes;
    for (const std::string &line : whole.lines) {
        if (line.size() >= kLine) return "a line is longer than a line may be";
        if (!left.starts_with(line) || left.substr(line.size(), 1) != "\n")
            return "the lines are not those of the bytes";
        left.remove_prefix(line.size() + 1);
    }
    if (whole.too_long != (std::min(left.find('\n'), left.size()) >= kLine)) return "a long line is not reported";
    if (!whole.too_long && left.find('\n') != std::string_view::npos) return "a line is missing";
    for (std::string_view rest = bytes;;) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view line = rest.substr(0, end);
        std::string wrong = misread(line, control::parse_request, "not a request to curb: ");
        if (wrong.empty()) wrong = misread(line, read_reply, "not an answer of curb: ");
        if (!wrong.empty()) return wrong;
        // The record that curb suspend leaves to curb resume, in a file of the user's.
        const control::suspended::Process process{1, 1, 0, 0};
        if (const auto record = control::suspended::parse(process, std::string(line));
            record && control::suspended::parse(process, control::suspended::text_of(process, *record)) != record)
            return "a record of a suspended process does not come back as it was written";
        if (end == rest.size()) return {};
        rest.remove_prefix(end + 1);
    }
}

}  // namespace curb::fuzz
