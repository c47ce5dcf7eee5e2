#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <set>

#include "control/descriptor.hpp"
#include "policy/values/words.hpp"
#include "terminal/text_width.hpp"
#include "trace/recording.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kLongestLine = std::size_t{4} << 20;  // a header with the longest command line of Linux fits
constexpr std::string_view kCounters = R"({"ph":"C")";

// False if no device can have the event's sizes. A request may have any size: programs ask for nonsense.
bool is_possible(const Moment &moment) noexcept {
    const auto within = [](std::int64_t value) {
        constexpr auto kMost = static_cast<std::int64_t>(kLargestHeld);
        return value >= -kMost && value <= kMost;
    };
    const bool memory = moment.moves_memory();
    if (memory || moment.what == What::books) {
        if (moment.of_kind > kLargestHeld) return false;
    }
    if ((memory || moment.what == What::step) && !within(moment.bytes)) return false;
    if (memory && !within(moment.charge)) return false;
    if (moment.bytes < 0 && moment.what != What::step) return false;
    return moment.held <= kLargestHeld;
}

Moment moment_of(const control::trace::Event &event) {
    Moment out;
    out.ns = event.ns;
    out.bytes = event.bytes;
    out.of_kind = event.of_kind;
    out.held = event.held;
    out.thread = event.thread;
    out.what = event.what;
    out.kind = event.kind;
    out.gpu = static_cast<std::uint16_t>(event.gpu);
    const bool memory = out.moves_memory();
    out.pointer = memory || event.what == What::stack ? event.pointer : event.duration_ns;
    out.charge = memory ? event.charge : static_cast<std::int64_t>(event.limit);
    out.detail = memory                     ? event.reused
                 : event.what == What::step ? static_cast<std::uint8_t>(event.step)
                                            : static_cast<std::uint8_t>(event.why);
    return out;
}

}  // namespace

const control::trace::Gpu *Recording::gpu(int ordinal) const noexcept {
    for (const control::trace::Gpu &one : header.gpus)
        if (one.gpu == ordinal) return &one;
    return nullptr;
}

std::vector<int> gpus_of(const Recording &recording) {
    std::set<int> seen;
    for (const Moment &moment : recording.events)
        if (!moment.is_of_process()) seen.insert(moment.gpu);
    for (const control::trace::Gpu &gpu : recording.header.gpus)
        if (gpu.gpu >= 0 && gpu.gpu < kMostGpus) seen.insert(gpu.gpu);
    return {seen.begin(), seen.end()};
}

TraceReader::TraceReader(std::string name) { out_.name = std::move(name); }

void TraceReader::expect(std::size_t events) {
    try {
        out_.events.reserve(events);
    } catch (const std::bad_alloc &) {
        return;
    }
}

bool TraceReader::take(std::string_view piece) {
    while (!piece.empty() && fault_.empty()) {
        const std::size_t end = piece.find('\n');
        if (end == std::string_view::npos) {
            rest_ += piece;
            if (rest_.size() <= kLongestLine) return true;
            if (!is_trace_) {
                fault_ = "its first line does not end";
                return false;
            }
            bad_line("it is longer than any that curb writes");
            rest_.clear();
            return true;
        }
        if (rest_.empty()) {
            take_line(piece.substr(0, end), true);
        } else {
            rest_ += piece.substr(0, end);
            take_line(rest_, true);
            rest_.clear();
        }
        piece.remove_prefix(end + 1);
    }
    return fault_.empty();
}

void TraceReader::take_line(std::string_view line, bool whole) {
    ++lines_;
    if (line.empty()) return;
    if (!is_trace_) return take_first(line);
    take_event(line, whole);
}

void TraceReader::take_first(std::string_view line) {
    // A piece from the middle of a trace is accepted too.
    const auto first = control::trace::parse(line);
    if (line == "[" || (first && (first->header || first->event))) {
        is_trace_ = true;
        if (line != "[") take_event(line, true);
    } else if (!first && line.find("\"curb\"") != std::string_view::npos) {
        fault_ = first.error();
    } else {
        fault_ = "its first line is " + policy::quote(policy::brief(policy::valid_utf8(line)));
    }
}

void TraceReader::take_event(std::string_view line, bool whole) {
    if (line.starts_with(kCounters) && whole) return;  // only for trace viewers
    const auto parsed = control::trace::parse(line);
    if (!parsed) {
        if (!whole) {
            cut_off_ = true;
        } else if (!has_header_ && line.find("\"name\":\"curb\"") != std::string_view::npos) {
            fault_ = parsed.error();
        } else {
            bad_line(parsed.error());
        }
        return;
    }
    if (parsed->header) {
        if (has_header_) return bad_line("it is a second header: two traces in one file");
        has_header_ = true;
        out_.header = *parsed->header;
        out_.header.command = policy::plain(out_.header.command);
        out_.header.version = policy::plain(out_.header.version);
        out_.header.host = policy::plain(out_.header.host);
        for (control::trace::Gpu &gpu : out_.header.gpus) {
            gpu.uuid = policy::plain(gpu.uuid);
            gpu.name = policy::plain(gpu.name);
        }
    }
    if (parsed->event) add(*parsed->event);
}

void TraceReader::add(const control::trace::Event &event) {
    constexpr int kMostOfProcess = 256;
    if (event.gpu < 0 || event.gpu >= kMostOfProcess)
        return bad_line("no process has a GPU " + std::to_string(event.gpu));
    Moment moment = moment_of(event);
    if (!event.text.empty()) moment.text = out_.texts.number_of(policy::plain(event.text));
    if (!is_possible(moment)) return bad_line("a size in it is none that a device can have");
    if (moment.what == What::dropped && moment.bytes > 0) {
        dropped_ = policy::added(dropped_, static_cast<std::uint64_t>(moment.bytes));
        held_follows_ = false;
    }
    if (moment.what == What::books) held_follows_ = true;
    out_.first_ns = out_.events.empty() ? moment.began_ns() : std::min(out_.first_ns, moment.began_ns());
    out_.last_ns = std::max(out_.last_ns, moment.ns);
    out_.events.push_back(moment);
}

void TraceReader::bad_line(std::string why) {
    if (bad_lines_++ == 0) first_bad_ = "line " + std::to_string(lines_) + ": " + policy::plain(why);
}

policy::Result<Recording, std::string> TraceReader::done() && {
    const std::string name = policy::quote(policy::plain(out_.name));
    const bool nothing = lines_ == 0 && rest_.empty();
    if (!rest_.empty() && fault_.empty()) take_line(std::string(std::exchange(rest_, {})), false);
    if (nothing || (fault_.empty() && !is_trace_))
        return name +
               " is empty: a process writes its trace once it uses CUDA, if the disk has room; see \"trace\" in "
               "curb-policy(5)";
    // Behind the "[": other programs write such arrays too.
    if (fault_.empty() && out_.events.empty() && !has_header_ && !cut_off_ && (bad_lines_ != 0 || lines_ > 1))
        fault_ = "none of its lines is an event" + (first_bad_.empty() ? "" : " (" + first_bad_ + ")");
    if (!fault_.empty())
        return name + " is no trace that this curb can read: " + fault_ +
               "; it reads what \"trace\" in a policy has written";
    auto &missing = out_.missing;
    if (!has_header_) missing.push_back("The beginning is missing: which command and which GPUs it was is not known.");
    if (cut_off_) missing.push_back("It ends in the middle of line " + std::to_string(lines_) + ".");
    if (bad_lines_ != 0)
        missing.push_back(counted(bad_lines_, "line") + " could not be read (the first: " + first_bad_ + ").");
    if (dropped_ != 0)
        missing.push_back(counted(dropped_, "event") + (dropped_ == 1 ? " was" : " were") +
                          " dropped by the process, which could not write (too slow, or the disk full): single "
                          "allocations are missing, " +
                          (held_follows_ ? "what is held is right." : "and what was held at the end."));
    return std::move(out_);
}

policy::Result<Recording, std::string> read_trace(const std::string &file) {
    const bool standard_input = file == "-";
    const std::string name = standard_input ? "<stdin>" : file, quoted = policy::quote(policy::plain(name));
    const auto fault = [&](int error) { return quoted + " cannot be read: " + std::strerror(error); };
    const control::Descriptor opened(standard_input ? -1 : ::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!standard_input && !opened) return fault(errno);
    const int fd = standard_input ? STDIN_FILENO : opened.number();
    TraceReader reader(name);
    // Reserve memory for as many events as the file can have: growing would copy all of them.
    constexpr std::int64_t kShortestLine = 100;
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        reader.expect(static_cast<std::size_t>(status.st_size / kShortestLine));
    std::vector<char> buffer(std::size_t{1} << 20);
    const auto read_some = [&] {
        ssize_t size = 0;
        do size = ::read(fd, buffer.data(), buffer.size());
        while (size < 0 && errno == EINTR);
        return size;
    };
    for (;;) {
        const ssize_t size = read_some();
        if (size < 0) return fault(errno);
        if (size == 0 || !reader.take({buffer.data(), static_cast<std::size_t>(size)})) break;
    }
    return std::move(reader).done();
}

policy::Result<std::vector<Recording>, std::string> read_traces(const std::vector<std::string> &files) {
    std::vector<Recording> out;
    for (const std::string &file : files) {
        auto recording = read_trace(file);
        if (!recording) return recording.error();
        out.push_back(std::move(recording).value());
    }
    return out;
}

}  // namespace curb::cli
