#include "terminal/terminal.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

std::optional<bool> colour;  // by --color

bool can_be_run(const std::string &path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value == nullptr ? "" : value;
}

std::vector<std::string> folders_of(std::string_view path) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find(':', at), path.size());
        out.emplace_back(path.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

std::optional<std::string> find_program(const std::string &name, std::string_view path) {
    if (name.find('/') != std::string::npos) return can_be_run(name) ? std::optional(name) : std::nullopt;
    for (const std::string &folder : folders_of(path))
        if (std::string file = folder.empty() ? name : folder + "/" + name; can_be_run(file)) return file;
    return std::nullopt;
}

std::string shell_quoted(const std::string &word) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
    return out + "'";
}

Ended run_shell(const std::string &line) {
    Ended out;
    // A parent may have left SIGCHLD ignored: then the kernel keeps no exit status for pclose.
    const auto before = ::signal(SIGCHLD, SIG_DFL);
    std::FILE *pipe = ::popen(line.c_str(), "r");
    if (!pipe) return out;
    std::array<char, 4096> part;
    while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) out.output.append(part.data(), got);
    const int status = ::pclose(pipe);
    ::signal(SIGCHLD, before);
    if (status != -1 && WIFEXITED(status)) out.status = WEXITSTATUS(status);
    return out;
}

bool has_utf8_locale() {
    for (const char *name : {"LC_ALL", "LC_CTYPE", "LANG"})
        if (const std::string locale = policy::lower_case(variable(name)); !locale.empty())
            return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
    return false;
}

bool use_colour(std::string_view when) {
    if (when != "auto" && when != "always" && when != "never") return false;
    colour = when == "auto" ? std::nullopt : std::optional(when == "always");
    return true;
}

bool wants_colour(bool by_itself) {
    if (colour) return *colour;
    if (const std::string force = variable("FORCE_COLOR"); !force.empty()) return force != "0" && force != "false";
    return by_itself && variable("NO_COLOR").empty();
}

Screen screen_of_stdout() {
    Screen out;
    const bool terminal = ::isatty(STDOUT_FILENO) != 0;
    winsize size{};
    if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        if (size.ws_col > 0) out.width = size.ws_col;
        if (size.ws_row > 0) out.height = size.ws_row;
    }
    if (!out.width) out.width = policy::whole_number<std::size_t>(variable("COLUMNS"));
    if (out.width == 0) out.width.reset();
    out.redraws = terminal && variable("TERM") != "dumb" && !variable("TERM").empty();
    out.colour = wants_colour(out.redraws);
    out.unicode = has_utf8_locale();
    return out;
}

std::string inked(const Screen &screen, Ink ink, std::string_view text) {
    if (!screen.colour || ink == Ink::plain) return std::string(text);
    return "\x1b[" + std::to_string(static_cast<int>(ink)) + "m" + std::string(text) + "\x1b[0m";
}

bool print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
    if (errno == EPIPE) return false;
    throw std::system_error(errno, std::generic_category(), "the answer could not be written to standard output");
}

bool write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t wrote = ::write(file, text.data(), text.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return true;
}

std::string plain_lines(std::string_view text, std::string_view head) {
    std::string out;
    for (std::size_t at = 0; at <= text.size();) {
        const std::string_view line = text.substr(at, text.find('\n', at) - at);
        out.append(at == 0 ? "" : "\n").append(head).append(policy::plain(line));
        at += line.size() + 1;
    }
    return out;
}

bool print_text(std::string_view text) { return print(plain_lines(text, "")); }

void print_error(std::string_view text) { std::fputs((plain_lines(text, "") + "\n").c_str(), stderr); }

}  // namespace curb::cli
