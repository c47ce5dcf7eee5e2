// nlohmann/json checks and decodes the text, but it does not report places, and its messages speak of tokens. So a
// cursor follows its SAX events over the same text. Each event is one valid token: to find its first and last byte, the
// cursor skips blanks, comments and one separator. On a syntax error the cursor stands behind the last valid token, and
// the message describes the next one. (How far nlohmann's lexer reads ahead differs between versions and does not
// matter.)
#include "document.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "policy/values/words.hpp"

namespace curb::config {
namespace {

using policy::is_digit;
using policy::pointer_token;
using policy::quote;

constexpr const char *kHash = "'#' begins no comment here; comments are // to the end of the line or /* */";
constexpr int kNumberOverflow = 406;  // nlohmann's out_of_range for a number that no double holds

bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Returns the offset of the first byte that is NUL or not part of well-formed UTF-8 (RFC 3629). The size if there is
// none.
std::size_t first_bad_byte(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = text[i] == '\0' ? 0 : policy::character(text, i);
        if (length == 0) return i;
        i += length;
    }
    return text.size();
}

// Reads the text. Returns NULs behind its end; the text itself has none.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    [[nodiscard]] char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

    [[nodiscard]] bool opens_comment(std::size_t i) const { return at(i) == '/' && at(i + 1) == '*'; }

    // Returns the first offset from `i` that is neither blank nor in a closed comment.
    [[nodiscard]] std::size_t skip_blanks(std::size_t i) const {
        for (;; ++i) {
            if (is_blank(at(i))) continue;
            if (at(i) != '/') return i;
            std::size_t end = std::string_view::npos;
            if (at(i + 1) == '/') end = std::min(text_.find_first_of("\r\n", i), text_.size());
            if (at(i + 1) == '*') end = text_.find("*/", i + 2);
            if (end == std::string_view::npos) return i;
            i = at(i + 1) == '*' ? end + 1 : end;
            if (i >= text_.size()) return text_.size();
        }
    }

    // Returns the end of the valid token that begins at `i`.
    [[nodiscard]] std::size_t token_end(std::size_t i) const {
        switch (at(i)) {
            case '"':
                for (++i; at(i) != '"'; ++i) {
                    if (at(i) == '\\') ++i;
                }
                return i + 1;
            case 't':
            case 'n': return i + 4;
            case 'f': return i + 5;
            case '{':
            case '}':
            case '[':
            case ']': return i + 1;
            default: return number_end(i);
        }
    }

    [[nodiscard]] std::size_t number_end(std::size_t i) const {
        if (at(i) == '-') ++i;
        i = at(i) == '0' ? i + 1 : digits_end(i);  // "01" is two numbers to a lexer
        if (at(i) == '.') i = digits_end(i + 1);
        if (at(i) == 'e' || at(i) == 'E') {
            ++i;
            if (at(i) == '+' || at(i) == '-') ++i;
            i = digits_end(i);
        }
        return i;
    }

    // Returns the text from `i` to the next blank or mark of JSON, between quotes: 'None', "gpu".
    [[nodiscard]] std::string shown(std::size_t i) const {
        const bool quoted = at(i) == '"' || at(i) == '\'';
        const char closing[] = {at(i), '\n', '\0'};
        std::size_t end = text_.find_first_of(quoted ? closing : " \t\r\n,:{}[]\"/", i + 1);
        if (end == std::string_view::npos) end = text_.size();
        const std::string_view word = text_.substr(i, end - i);
        return quoted ? quote(word.substr(1), at(i)) : quote(word);
    }

    // Returns the error in the string literal that begins at `i`.
    [[nodiscard]] Fault string_fault(std::size_t i) const {
        const std::size_t begin = i;
        for (++i; i < text_.size(); ++i) {
            const char c = at(i);
            if (c == '\n' || c == '\r') return {begin, {}, "the string that begins here is not closed on its line"};
            if (static_cast<unsigned char>(c) < 0x20) {
                return {i, {}, "a control character stands in a string; write a tab as \\t, others as \\u00XX"};
            }
            if (c == '"') return {begin, {}, "this string is not as JSON writes strings"};
            if (c != '\\') continue;
            const std::size_t length = escape_length(i);
            if (length == 0) {
                return {i, {}, quote(text_.substr(i, 2)) + R"( begins no escape of JSON; a backslash is written \\)"};
            }
            i += length - 1;
        }
        return {begin, {}, "the string that begins here is not closed"};
    }

  private:
    [[nodiscard]] std::size_t digits_end(std::size_t i) const {
        while (is_digit(at(i))) ++i;
        return i;
    }

    // Returns the value of \uXXXX at `i`. -1 if there is none.
    [[nodiscard]] int code_unit(std::size_t i) const {
        if (at(i) != '\\' || at(i + 1) != 'u') return -1;
        int unit = 0;
        for (std::size_t k = i + 2; k < i + 6; ++k) {
            if (!is_hex(at(k))) return -1;
            unit = unit * 16 + (is_digit(at(k)) ? at(k) - '0' : (at(k) | 0x20) - 'a' + 10);
        }
        return unit;
    }

    // Returns the length of the escape that begins at `i`. 0 if it is none.
    [[nodiscard]] std::size_t escape_length(std::size_t i) const {
        if (at(i + 1) != 'u') return at(i + 1) != '\0' && std::string_view(R"("\/bfnrt)").find(at(i + 1)) < 8 ? 2 : 0;
        const int unit = code_unit(i);
        if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF)) return 0;
        if (unit < 0xD800 || unit > 0xDBFF) return 6;
        const int low = code_unit(i + 6);
        return low >= 0xDC00 && low <= 0xDFFF ? 12 : 0;
    }

    std::string_view text_;
};

// Builds nodes from nlohmann's SAX events.
class Builder {
  public:
    using json = nlohmann::json;

    explicit Builder(std::string_view text) : text_(text), scan_(text) {}

    bool null() { return scalar(Node::Kind::null); }
    bool boolean(bool /*value*/) { return scalar(Node::Kind::boolean); }
    bool number_integer(json::number_integer_t value) { return number(static_cast<double>(value)); }
    bool number_unsigned(json::number_unsigned_t value) { return number(static_cast<double>(value)); }
    bool number_float(json::number_float_t value, const std::string & /*text*/) { return number(value); }
    bool string(std::string &value) {
        add(Node::Kind::string).text = std::move(value);
        return true;
    }
    bool binary(json::binary_t & /*value*/) { return false; }  // JSON has none

    bool start_object(std::size_t /*size*/) { return open(Node::Kind::object); }
    bool start_array(std::size_t /*size*/) { return open(Node::Kind::array); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }

    bool key(std::string &name) {
        key_at_ = token();
        key_ = std::move(name);
        expected_ = Expected::colon;
        return true;
    }

    bool parse_error(std::size_t /*position*/, const std::string & /*token*/, const json::exception &error) {
        fault_ = explain(error.id == kNumberOverflow);
        fault_.pointer = pointer();
        return false;
    }

    [[nodiscard]] Node &root() { return root_; }
    [[nodiscard]] const Fault &fault() const { return fault_; }

  private:
    enum class Expected { value, first, colon, separator, nothing };

    // Returns the offset of this event's token, and moves the cursor to its end.
    std::size_t token() {
        std::size_t begin = scan_.skip_blanks(end_);
        if (scan_.at(begin) == ',' || scan_.at(begin) == ':') begin = scan_.skip_blanks(begin + 1);
        begin_ = begin;
        end_ = scan_.token_end(begin);
        return begin;
    }

    // An open node does not move: its parent gets no further child while it is open.
    Node &add(Node::Kind kind) {
        Node *node = &root_;
        if (!open_.empty()) {
            node = &open_.back()->children.emplace_back();
            node->key = std::exchange(key_, {});
            node->key_at = key_at_;
        }
        node->kind = kind;
        node->at = token();
        expected_ = open_.empty() ? Expected::nothing : Expected::separator;
        return *node;
    }

    bool scalar(Node::Kind kind, double number = 0) {
        Node &node = add(kind);
        node.text = text_.substr(node.at, end_ - node.at);
        node.number = number;
        return true;
    }

    bool number(double value) { return scalar(Node::Kind::number, value); }

    bool open(Node::Kind kind) {
        Node &node = add(kind);
        if (open_.size() == kDepth) {
            fault_ = {node.at, pointer(), "objects and arrays stand in each other more than 32 deep"};
            return false;
        }
        open_.push_back(&node);
        expected_ = Expected::first;
        return true;
    }

    bool close() {
        token();
        open_.pop_back();
        expected_ = open_.empty() ? Expected::nothing : Expected::separator;
        return true;
    }

    // The JSON pointer of the innermost open object or array.
    [[nodiscard]] std::string pointer() const {
        std::string out;
        for (std::size_t i = 1; i < open_.size(); ++i) {
            const Node &parent = *open_[i - 1];
            out += '/';
            out += parent.kind == Node::Kind::object ? pointer_token(open_[i]->key)
                                                     : std::to_string(parent.children.size() - 1);
        }
        if (expected_ == Expected::value) out.append("/").append(pointer_token(key_));
        return out;
    }

    // Returns the error after the last valid token.
    Fault explain(bool overflow) {
        std::size_t at = scan_.skip_blanks(end_);
        if (scan_.opens_comment(at)) return unclosed_comment(at);
        if (scan_.at(at) == '#') return {at, {}, kHash};
        if (runs_on(at)) return value_fault(begin_, false);
        const bool in_object = !open_.empty() && open_.back()->kind == Node::Kind::object;
        const char closing = in_object ? '}' : ']';
        if (expected_ == Expected::nothing && at < text_.size()) {
            return {at, {}, scan_.shown(at) + " follows the end of the policy, where nothing may follow"};
        }
        if (at >= text_.size()) return ends_early(at);
        if (expected_ == Expected::colon) {
            if (scan_.at(at) != ':') return {at, {}, "a ':' is missing after the key " + quote(key_, '"')};
            expected_ = Expected::value;
            return value_fault(scan_.skip_blanks(at + 1), overflow);
        }
        if (expected_ == Expected::separator) {
            if (scan_.at(at) != ',') {
                return {at, {}, "a ',' or '" + std::string(1, closing) + "' is missing before " + scan_.shown(at)};
            }
            const std::size_t next = scan_.skip_blanks(at + 1);
            if (scan_.at(next) == closing) return {at, {}, "nothing follows this ','; take it out"};
            at = next;
        }
        return in_object ? key_fault(at) : value_fault(at, overflow);
    }

    // "01", "12ab" and "nullx" begin with a valid token.
    [[nodiscard]] bool runs_on(std::size_t at) const {
        constexpr std::string_view kMarks = ",:{}[]\"/";
        const bool scalar = kMarks.find(scan_.at(begin_)) == std::string_view::npos;
        return at == end_ && at > begin_ && at < text_.size() && scalar &&
               kMarks.find(scan_.at(at)) == std::string_view::npos;
    }

    [[nodiscard]] Fault key_fault(std::size_t at) const {
        if (at >= text_.size()) return ends_early(at);
        if (scan_.opens_comment(at)) return unclosed_comment(at);
        if (scan_.at(at) == '#') return {at, {}, kHash};
        if (scan_.at(at) == '"') return scan_.string_fault(at);
        return {at, {}, scan_.shown(at) + " stands where a key in double quotes is expected"};
    }

    [[nodiscard]] Fault value_fault(std::size_t at, bool overflow) const {
        if (at >= text_.size()) return ends_early(at);
        const char c = scan_.at(at);
        const std::string word = scan_.shown(at);
        if (c == '#') return {at, {}, kHash};
        if (const char *other = open_.empty() ? other_format(at) : nullptr)
            return {at, {}, std::string("this looks like ") + other + R"(; a policy is JSON, as { "version": 1 } is)"};
        if (overflow) return {at, {}, word + " is too large a number"};
        if (c == '"') return scan_.string_fault(at);
        if (scan_.opens_comment(at)) return unclosed_comment(at);
        if (std::string_view("}],:").find(c) != std::string_view::npos)
            return {at, {}, "a value is missing before " + quote({&c, 1})};
        if (is_digit(c) || c == '-' || c == '+' || c == '.')
            return {at, {}, word + " is not a number as JSON writes it"};
        return {at, {}, word + " is not a value of JSON; strings stand in double quotes"};
    }

    // Returns the name of another format that the text looks like. null if there is none.
    [[nodiscard]] const char *other_format(std::size_t at) const {
        if (text_.substr(at).starts_with("---")) return "YAML";
        const auto is_of_word = [](char c) {
            return is_digit(c) || c == '_' || c == '-' || c == '$' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        };
        std::size_t end = at;
        while (end < text_.size() && is_of_word(text_[end])) ++end;
        const std::size_t mark = scan_.skip_blanks(end);
        if (end == at) return nullptr;
        return scan_.at(mark) == ':' ? "YAML" : scan_.at(mark) == '=' ? "TOML" : nullptr;
    }

    static Fault unclosed_comment(std::size_t at) { return {at, {}, "the comment that begins here is not closed"}; }

    [[nodiscard]] Fault ends_early(std::size_t at) const {
        constexpr std::string_view kLeast = R"(the least that a policy says is { "version": 1 })";
        if (!open_.empty()) {
            const Node &inner = *open_.back();
            return {at,
                    {},
                    std::string("the file ends, but the ") + (inner.kind == Node::Kind::object ? "object" : "array") +
                        " that begins at " + Lines(text_).place(inner.at).text() + " is not closed"};
        }
        const bool blank = std::all_of(text_.begin(), text_.end(), is_blank);
        return {at, {}, std::string(blank ? "the file is empty; " : "the file holds comments only; ").append(kLeast)};
    }

    std::string_view text_;
    Scanner scan_;
    std::size_t begin_ = 0;  // of the last token
    std::size_t end_ = 0;
    Expected expected_ = Expected::first;
    Node root_;
    std::vector<Node *> open_;
    std::string key_;  // of the next value
    std::size_t key_at_ = 0;
    Fault fault_;
};

}  // namespace

std::string Lines::Place::text() const { return std::to_string(line) + ":" + std::to_string(column); }

Lines::Lines(std::string_view text) : starts_{0} {
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\n') starts_.push_back(i + 1);
    }
}

Lines::Place Lines::place(std::size_t offset) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    return {static_cast<unsigned>(next - starts_.begin()), static_cast<unsigned>(offset - *(next - 1) + 1)};
}

policy::Result<Node, Fault> read_document(std::string_view text) {
    // nlohmann takes a NUL for the end of the text and skips a byte order mark; neither belongs in a policy.
    if (text.starts_with("\xEF\xBB\xBF")) {
        return Fault{0, {}, "the file begins with a byte order mark; save it as UTF-8 without one"};
    }
    if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
        return Fault{0, {}, "the file is UTF-16; save it as UTF-8"};
    }
    if (const std::size_t bad = first_bad_byte(text); bad < text.size()) {
        return Fault{
            bad, {}, text[bad] == '\0' ? "a NUL byte; policies are plain text in UTF-8" : "this byte is not UTF-8"};
    }
    Builder builder(text);
    const bool strict = true;
    const bool comments = true;
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder, nlohmann::json::input_format_t::json, strict,
                                   comments)) {
        return builder.fault();
    }
    return std::move(builder.root());
}

}  // namespace curb::config
