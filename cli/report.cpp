// `curb report`: a recorded run as a page, a picture, lines or figures.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "commands.hpp"
#include "policy/words.hpp"
#include "report_json.hpp"
#include "terminal.hpp"
#include "trace/pages.hpp"

namespace curb::cli {
namespace {

enum class Form { html, svg, unknown };

Form form_of(const std::string &file) {
    const std::string lower = policy::lower_case(file);
    if (lower.ends_with(".html") || lower.ends_with(".htm")) return Form::html;
    return lower.ends_with(".svg") ? Form::svg : Form::unknown;
}

// Writes a file whole, or leaves what was there. The error is a sentence.
std::optional<std::string> write_file(const std::string &file, const std::string &text) {
    const std::string unfinished = file + "." + std::to_string(::getpid()) + ".part";
    const auto fault = [&](int error) {
        ::unlink(unfinished.c_str());
        return policy::quote(policy::one_line(file)) + " cannot be written: " + std::strerror(error);
    };
    const int fd = ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return fault(errno);
    std::string_view rest = text;
    while (!rest.empty()) {
        const ssize_t size = ::write(fd, rest.data(), rest.size());
        if (size < 0 && errno == EINTR) continue;
        if (size < 0) {
            const int error = errno;
            ::close(fd);
            return fault(error);
        }
        rest.remove_prefix(static_cast<std::size_t>(size));
    }
    if (::close(fd) != 0 || ::rename(unfinished.c_str(), file.c_str()) != 0) return fault(errno);
    return std::nullopt;
}

}  // namespace

int report(const ReportOptions &options) {
    const Form form = options.output ? form_of(*options.output) : Form::unknown;
    if (options.output && form == Form::unknown) {
        complain("report: " + policy::quote(policy::one_line(*options.output)) +
                 " says not what to write; name a file that ends in .html (a page) or .svg (a picture)");
        return kFailure;
    }
    std::error_code ignored;
    if (options.output && std::filesystem::equivalent(options.trace, *options.output, ignored)) {
        complain("report: " + policy::quote(policy::one_line(*options.output)) +
                 " is the trace itself; name another file");
        return kFailure;
    }
    const auto recording = read_trace(options.trace);
    if (!recording) {
        complain("report: " + recording.error());
        return 1;
    }
    const Summary summary = summarise(*recording);
    if (options.output) {
        const std::string text = form == Form::html ? html_page(*recording, summary) : svg_picture(*recording, summary);
        if (const auto fault = write_file(*options.output, text)) {
            complain("report: " + *fault);
            return kFailure;
        }
    }
    for (const std::string &one : recording->missing) complain("report: " + recording->name + ": " + one);
    if (options.json)
        print(report_json(*recording, summary) + "\n");
    else if (!options.output)
        print(text_report(*recording, summary));
    return 0;
}

}  // namespace curb::cli
