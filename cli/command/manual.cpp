// Manual pages in mdoc. The build fills in their templates: docs/man/*.in.
#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "command/help.hpp"
#include "policy/fields.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

// Escapes text for any place in a line.
std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) switch (c) {
            case '\\': out += "\\e"; break;
            case '`': out += "\\(ga"; break;
            case '\'': out += "\\(aq"; break;
            case '-': out += "\\-"; break;
            default: out += c;
        }
    return out;
}
std::string bold(std::string_view text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + escaped(text) + "\\fR"; }

// Returns lines of text for a paragraph: mdoc wants each sentence to begin one, and none to be long or to look like a
// request.
std::string lines(std::string_view text) {
    std::string out, sentence;
    const auto end = [&] {
        if (sentence.empty()) return;
        std::istringstream parts(wrapped(sentence, 78, 0));
        for (std::string line; std::getline(parts, line);) out += (line.starts_with('.') ? "\\&" : "") + line + '\n';
        sentence.clear();
    };
    std::istringstream words{std::string(text)};
    for (std::string word; words >> word;) {
        sentence += (sentence.empty() ? "" : " ") + word;
        const std::size_t last = word.find_last_not_of("\")");
        if (last > 1 && last != std::string::npos && std::string_view(".!?").find(word[last]) != std::string::npos)
            end();
    }
    end();
    return out;
}

// An argument of a macro: in quotation marks no word of it is taken for another macro.
std::string argument(std::string_view roff) {
    std::string out = "\"";
    for (const char c : roff) out += c == '"' ? "\\(dq" : std::string(1, c);
    return out + '"';
}

// A list of rows, both columns in roff.
std::string list(const std::vector<HelpRow> &rows) {
    if (rows.empty()) return {};
    std::string out = ".Bl -tag -width Ds\n";
    for (const auto &[tag, text] : rows) out += ".It " + argument(tag) + '\n' + lines(text);
    return out + ".El\n";
}

// Names of values, in capitals, in italics; all other words bold.
std::string usage_text(std::string_view usage) {
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
    std::string out;
    while (!usage.empty()) {
        const auto end = std::find_if_not(usage.begin(), usage.end(), is_name);
        const std::string_view word = usage.substr(0, static_cast<std::size_t>(end - usage.begin()));
        const bool is_value = word.size() > 1 && std::all_of(word.begin(), word.end(), [](char c) {
                                  return std::isupper(static_cast<unsigned char>(c)) || c == '_';
                              });
        if (word.empty())
            out += escaped(usage.substr(0, 1));
        else
            out += is_value ? italic(word) : bold(word);
        usage.remove_prefix(std::max<std::size_t>(word.size(), 1));
    }
    return out;
}

// "--cap SIZE"
std::string option_tag(const std::string &left) {
    const std::size_t blank = std::min(left.find(' '), left.size());
    const std::string value = left.substr(blank);
    std::string out;
    std::istringstream names(left.substr(0, blank));
    for (std::string name; std::getline(names, name, ',');) out += (out.empty() ? "" : ", ") + bold(name);
    return out + (value.empty() ? "" : ' ' + italic(policy::trimmed(value)));
}

std::vector<HelpRow> bold_rows(const std::vector<HelpRow> &rows) {
    std::vector<HelpRow> out;
    out.reserve(rows.size());
    for (const auto &[left, right] : rows) out.push_back({bold(left), escaped(right)});
    return out;
}

std::string command_section(const Help &help) {
    std::vector<HelpRow> rows;
    for (const auto &[left, right] : help.arguments) rows.push_back({italic(left), escaped(right)});
    for (const auto &[left, right] : help.options)
        if (!left.starts_with("-h")) rows.push_back({option_tag(left), escaped(right)});
    std::string out = ".Ss " + argument(escaped(help.name)) + '\n' + lines(usage_text(help.usage)) + ".Pp\n" +
                      lines(escaped(help.line + '.')) + list(rows);
    for (const HelpBlock &block : help.notes)
        out += block.rows.empty() ? ".Pp\n" + lines(escaped(block.paragraph)) : list(bold_rows(block.rows));
    return out;
}

std::string of_all(const Help &help, std::string (*text)(const Help &)) {
    if (help.commands.empty()) return text(help);
    std::string out;
    for (const Help &one : help.commands) out += of_all(one, text);
    return out;
}

std::string synopsis(const Help &curb) {
    return of_all(curb, [](const Help &help) {
        return ".Nm\n" + lines(usage_text(std::string_view(help.usage).substr(std::string_view("curb ").size())));
    });
}

std::string examples(const Help &curb) {
    for (std::size_t i = 1; i < curb.notes.size(); ++i)
        if (curb.notes[i - 1].paragraph == "Examples:") return list(bold_rows(curb.notes[i].rows));
    return {};
}

std::string variables() {
    std::string out = ".It";
    const char *between = " Ev ";
#define CURB_FLAG(name, part, variable, option, shape, doc) \
    out += std::exchange(between, " , ") + std::string(variable);
#include "policy/flags.def"
    return out + "\nAs the options of these names of\n.Nm curb Cm run .\n";
}

// ---- policies ----

constexpr const char *kTypes[] = {
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) #type,
#define CURB_JOB_FIELD CURB_GPU_FIELD
#define CURB_RULE_FIELD(pointer, type, member, doc) #type,
#define CURB_FILE_FIELD(pointer, type, doc) #type,
#include "policy/fields.def"
};

// A subsection for each object of a policy, with its fields.
std::string fields() {
    std::map<std::string, std::vector<HelpRow>> objects;
    std::vector<std::string> order;
    for (std::size_t i = 0; i < policy::fields().size(); ++i) {
        const policy::Field &field = policy::fields()[i];
        const std::size_t slash = field.pointer.rfind('/');
        std::string object(field.pointer.substr(1, std::max<std::size_t>(slash, 1) - 1));
        std::replace(object.begin(), object.end(), '/', '.');
        if (objects[object].empty()) order.push_back(object);
        std::string text = std::string(policy::doc_of(field)) + '.';
        if (!field.least.empty()) text += " At least " + std::string(field.least) + '.';
        if (const std::string value = field.fallback(); !value.empty()) text += " Default: " + value + '.';
        if (field.type == policy::FieldType::flag && field.holds == policy::Holds::lower)
            text += " A ceiling can set it to false.";
        else if (field.holds != policy::Holds::own)
            text += field.holds == policy::Holds::lower ? " A ceiling lowers it." : " A ceiling raises it.";
        const std::string name(field.pointer.substr(slash + 1));
        objects[object].push_back({bold(name) + " (" + std::string(kTypes[i]) + ')', escaped(text)});
    }
    std::string out;
    for (const std::string &object : order)
        out += ".Ss " + argument(object.empty() ? "The file" : escaped(object)) + '\n' + list(objects[object]);
    return out;
}

std::string steps() {
    std::vector<HelpRow> rows;
#define CURB_STEP(name, text, how) rows.push_back({bold(#name), escaped(text ".")});
#include "policy/release_steps.def"
    return list(rows);
}

std::string steering() {
    std::vector<HelpRow> rows;
#define CURB_STEER(framework, when, name, value, unless, why) \
    rows.push_back({bold(name "=" value), escaped(framework ", if " #when ": " why ".")});
#include "policy/steer.def"
    return list(rows);
}

}  // namespace

std::string manual_page(const Help &curb, const std::string &text) {
    const auto part = [&](const std::string &line) {
        if (line == "@synopsis@") return synopsis(curb);
        if (line == "@commands@") return of_all(curb, command_section);
        if (line == "@examples@") return examples(curb);
        if (line == "@variables@") return variables();
        if (line == "@fields@") return fields();
        if (line == "@steps@") return steps();
        if (line == "@steering@") return steering();
        return line + '\n';
    };
    std::string out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out += part(line);
    return out;
}

}  // namespace curb::cli
