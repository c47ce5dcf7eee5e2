#include "trace/pickle.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "terminal/format.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kMostValues = 32'000'000;  // about 2.5 GiB of memory
constexpr std::size_t kMostMembers = 64;

}  // namespace

// The format's virtual machine: a stack of values, marks on it, and a memo. Source: Python's pickletools.
class Unpickler {
  public:
    explicit Unpickler(std::string_view bytes) : bytes_(bytes), rest_(bytes) {}

    policy::Result<Pickle, std::string> run() && {
        while (!ended_ && fault_.empty()) {
            opcode_at_ = bytes_.size() - rest_.size();
            const auto opcode = number(1);
            if (!opcode)
                fail("it ends before its value does");
            else if (!step(static_cast<unsigned char>(*opcode)) && fault_.empty())
                fail(fmt::format("byte {} is no opcode that belongs there ({:#x})", opcode_at_, *opcode));
        }
        if (!fault_.empty()) return std::move(fault_);
        return std::move(out_);
    }

  private:
    using Id = Pickle::Id;
    using Type = Pickle::Type;
    using Value = Pickle::Value;

    bool fail(std::string why) {
        fault_ = std::move(why);
        return false;
    }

    // Reads a little-endian number. Returns nullopt if too few bytes are left.
    std::optional<std::uint64_t> number(std::size_t size) {
        if (rest_.size() < size) return std::nullopt;
        std::uint64_t out = 0;
        for (std::size_t i = 0; i < size; ++i)
            out |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
        rest_.remove_prefix(size);
        return out;
    }
    std::optional<std::string_view> bytes(std::optional<std::uint64_t> size) {
        if (!size || *size > rest_.size()) return std::nullopt;
        const std::string_view out = rest_.substr(0, *size);
        rest_.remove_prefix(*size);
        return out;
    }

    bool push(Value value) {
        if (out_.values_.size() >= kMostValues) return fail(fmt::format("it has more than {} values", kMostValues));
        stack_.push_back(static_cast<Id>(out_.values_.size()));
        out_.values_.push_back(std::move(value));
        return true;
    }
    bool push_integer(std::optional<std::uint64_t> value, Type type = Type::integer) {
        Value out;
        out.type = type;
        out.integer = static_cast<std::int64_t>(value.value_or(0));
        return value && push(std::move(out));
    }
    bool push_text(std::optional<std::string_view> text) {
        Value out;
        out.type = Type::text;
        if (text) out.text = *text;
        return text && push(std::move(out));
    }
    bool push_empty(Type type) {
        Value out;
        out.type = type;
        return push(std::move(out));
    }
    // Pushes a little-endian number in two's complement, of any length.
    bool push_long(std::optional<std::uint64_t> size) {
        const auto digits = bytes(size);
        if (!digits) return false;
        std::uint64_t value = !digits->empty() && (digits->back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
        for (std::size_t i = 0; i < std::min<std::size_t>(digits->size(), 8); ++i) {
            value &= ~(std::uint64_t{0xFF} << (8 * i));
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>((*digits)[i])) << (8 * i);
        }
        return push_integer(value);
    }
    bool push_real() {  // big-endian
        const auto little = number(8);
        if (!little) return false;
        std::uint64_t big = 0;
        for (int i = 0; i < 8; ++i) big |= (*little >> (8 * i) & 0xFF) << (8 * (7 - i));
        Value out;
        out.type = Type::real;
        out.real = std::bit_cast<double>(big);
        return push(std::move(out));
    }

    // Returns the lowest index of the stack that may be taken: no opcode reaches below the last mark.
    [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
    bool has(std::size_t values) const { return stack_.size() >= floor() + values; }

    std::vector<Id> take(std::size_t from) {
        std::vector<Id> out(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
        stack_.resize(from);
        return out;
    }
    std::optional<std::vector<Id>> take_to_mark() {
        if (marks_.empty()) return std::nullopt;
        const std::size_t from = marks_.back();
        marks_.pop_back();
        return take(from);
    }
    bool push_list(std::vector<Id> items) {
        Value out;
        out.type = Type::list;
        out.items = std::move(items);
        return push(std::move(out));
    }
    // Adds the items to the container on top of the stack.
    bool extend(Type type, std::optional<std::vector<Id>> items) {
        if (!items || !has(1)) return false;
        Value &into = out_.values_[stack_.back()];
        if (into.type != type || (type == Type::dictionary && items->size() % 2 != 0)) return false;
        into.items.insert(into.items.end(), items->begin(), items->end());
        return true;
    }
    bool remember(std::optional<std::uint64_t> number) {
        if (!number || !has(1)) return false;
        memo_[*number] = stack_.back();
        return true;
    }
    bool recall(std::optional<std::uint64_t> number) {
        const auto found = number ? memo_.find(*number) : memo_.end();
        if (found == memo_.end()) return false;
        if (stack_.size() > kMostValues) return fail("its stack is too deep");
        stack_.push_back(found->second);
        return true;
    }

    // Executes an opcode. False if it is not known, or if its operands are missing.
    bool step(unsigned char opcode) {
        switch (opcode) {
            case 0x80: {  // PROTO
                const auto version = number(1);
                return version && (*version <= 5 || fail(fmt::format("its protocol {} is later than 5", *version)));
            }
            case 0x95: return number(8).has_value();  // FRAME
            case '.':                                 // STOP
                if (!has(1)) return false;
                out_.root_ = stack_.back();
                return ended_ = true;
            case '(': marks_.push_back(stack_.size()); return marks_.size() <= kMostValues || fail("it is too deep");
            case '0':  // POP: the value, or the mark on top
                if (!marks_.empty() && marks_.back() == stack_.size()) {
                    marks_.pop_back();
                    return true;
                }
                if (!has(1)) return false;
                stack_.pop_back();
                return true;
            case '1': return take_to_mark().has_value();  // POP_MARK
            case '2':                                     // DUP
                if (!has(1)) return false;
                if (stack_.size() > kMostValues) return fail("its stack is too deep");
                stack_.push_back(stack_.back());
                return true;
            case 'N': return push_empty(Type::none);
            case 0x88: return push_integer(1, Type::boolean);
            case 0x89: return push_integer(0, Type::boolean);
            case 'K': return push_integer(number(1));
            case 'M': return push_integer(number(2));
            case 'J': {
                const auto value = number(4);
                if (!value) return false;
                const auto extended = static_cast<std::int32_t>(static_cast<std::uint32_t>(*value));
                return push_integer(static_cast<std::uint64_t>(static_cast<std::int64_t>(extended)));
            }
            case 0x8a: return push_long(number(1));
            case 0x8b: return push_long(number(4));
            case 'G': return push_real();
            case 0x8c:
            case 'U':
            case 'C': return push_text(bytes(number(1)));
            case 'X':
            case 'T':
            case 'B': return push_text(bytes(number(4)));
            case 0x8d:
            case 0x8e: return push_text(bytes(number(8)));
            case ']':
            case ')': return push_empty(Type::list);
            case '}': return push_empty(Type::dictionary);
            case 'a': return has(2) && extend(Type::list, take(stack_.size() - 1));
            case 'e': return extend(Type::list, take_to_mark());
            case 's': return has(3) && extend(Type::dictionary, take(stack_.size() - 2));
            case 'u': return extend(Type::dictionary, take_to_mark());
            case 'l':
            case 't': {
                auto items = take_to_mark();
                return items && push_list(std::move(*items));
            }
            case 0x85:
            case 0x86:
            case 0x87: {
                const std::size_t size = opcode - 0x84U;
                return has(size) && push_list(take(stack_.size() - size));
            }
            case 'd': {
                auto items = take_to_mark();
                return items && push_empty(Type::dictionary) && extend(Type::dictionary, std::move(items));
            }
            case 'q': return remember(number(1));
            case 'r': return remember(number(4));
            case 0x94: return remember(memo_.size());
            case 'h': return recall(number(1));
            case 'j': return recall(number(4));
            case 'c':
            case 0x93:
            case 'R':
            case 'b':
            case 'i':
            case 'o':
            case 0x81:
            case 0x92:
            case 'P':
            case 'Q':
            case 0x82:
            case 0x83:
            case 0x84:
                return fail(fmt::format(
                    "byte {} names or calls something of Python ({:#x}), which curb does not do: it reads data alone",
                    opcode_at_, opcode));
            default: return false;
        }
    }

    std::string_view bytes_, rest_;
    std::size_t opcode_at_ = 0;
    Pickle out_;
    std::vector<Id> stack_;
    std::vector<std::size_t> marks_;
    std::unordered_map<std::uint64_t, Id> memo_;
    std::string fault_;
    bool ended_ = false;
};

policy::Result<Pickle, std::string> Pickle::read(std::string_view bytes) { return Unpickler(bytes).run(); }

const Pickle::Value &Pickle::member(const Value &dictionary, std::string_view name) const {
    if (dictionary.type != Type::dictionary) return values_[0];
    const std::size_t end = std::min(dictionary.items.size(), 2 * kMostMembers);
    for (std::size_t i = 0; i + 1 < end; i += 2) {
        const Value &key = values_[dictionary.items[i]];
        if (key.type == Type::text && key.text == name) return values_[dictionary.items[i + 1]];
    }
    return values_[0];
}

}  // namespace curb::cli
