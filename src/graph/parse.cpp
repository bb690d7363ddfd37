#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "graph/graph.h"

namespace obelisk::graph {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 40;  // the limit of the op table
constexpr int kMostOutputs = 1 << 16;

bool is_word(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '_';
}
bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

int hex_digit(char letter) {
  if (is_digit(letter)) return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

class Parser {
 public:
  Parser(std::string_view text, const Weights& weights) : text_(text), weights_(weights) {}

  Result<Graph> run() {
    TRY_STATUS(expect_word("graph"));
    TRY(graph_.name, string());
    TRY_STATUS(expect('{'));
    while (true) {
      skip_space();
      if (peek() == '}') break;
      TRY_STATUS(line());
    }
    ++at_;
    skip_space();
    if (at_ != text_.size()) return wanted("the end after '}'");
    return std::move(graph_);
  }

 private:
  // ---- errors ----
  Error error_at(size_t place, const std::string& message, std::string hint = "") const {
    size_t line = 1, start = 0;
    for (size_t k = 0; k < place && k < text_.size(); ++k) {
      if (text_[k] == '\n') {
        ++line;
        start = k + 1;
      }
    }
    return {.code = Code::kUsage,
            .room = "graph",
            .message = fmt::format("line {}, column {}: {}", line, place - start + 1, message),
            .hint = std::move(hint)};
  }

  Error wanted(std::string_view what) const {
    if (at_ >= text_.size()) return error_at(at_, fmt::format("wanted {}, got the end", what));
    size_t end = at_ + 1;
    if (is_word(text_[at_])) {
      while (end < text_.size() && end - at_ < 32 && is_word(text_[end])) ++end;
    }
    const char letter = text_[at_];
    if (letter < ' ' || letter > '~') {
      const int code = static_cast<unsigned char>(letter);
      return error_at(at_, fmt::format("wanted {}, got the byte {:#04x}", what, code));
    }
    return error_at(at_, fmt::format("wanted {}, got '{}'", what, text_.substr(at_, end - at_)));
  }

  // ---- tokens ----
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size()) {
      const char letter = text_[at_];
      if (letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r') {
        ++at_;
      } else if (letter == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  bool accept(char letter) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != letter) return false;
    ++at_;
    return true;
  }

  Status expect(char letter) {
    if (!accept(letter)) return wanted(fmt::format("'{}'", letter));
    return ok_status();
  }

  std::string_view word() {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  bool accept_word(std::string_view want) {
    const size_t before = at_;
    if (word() == want) return true;
    at_ = before;
    return false;
  }

  Status expect_word(std::string_view want) {
    skip_space();
    if (!accept_word(want)) return wanted(fmt::format("'{}'", want));
    return ok_status();
  }

  // Digits, signs, points, and the letters of exponents, inf and nan.
  std::string_view number() {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() &&
           (is_word(peek()) || peek() == '.' || peek() == '+' || peek() == '-')) {
      ++at_;
    }
    return text_.substr(start, at_ - start);
  }

  template <typename Number>
  static bool read(std::string_view token, Number& value) {
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    return error == std::errc() && end == token.data() + token.size();
  }

  // Also what is too large or too small for a double, which is then infinite or zero.
  static bool read_float(std::string_view token, double& value) {
    if (token == "nan") {
      value = std::nan("");
      return true;
    }
    if (token == "inf" || token == "-inf") {
      value = token[0] == '-' ? -INFINITY : INFINITY;
      return true;
    }
    if (token.empty() || !(is_digit(token[0]) || token[0] == '-' || token[0] == '.')) return false;
    if (token.size() > 1 && token[0] == '-' && !is_digit(token[1]) && token[1] != '.') return false;
    if (token.size() > 64) return false;  // a shortest double has at most 24 letters
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    if (end != token.data() + token.size()) return false;
    if (error == std::errc::result_out_of_range)
      value = std::strtod(std::string(token).c_str(), nullptr);
    return error == std::errc() || error == std::errc::result_out_of_range;
  }

  Result<int64_t> integer(std::string_view what) {
    skip_space();
    const size_t start = at_;
    int64_t value = 0;
    const std::string_view token = number();
    if (token.empty() || !read(token, value)) {
      at_ = start;
      return wanted(what);
    }
    return value;
  }

  Result<std::string> string() {
    skip_space();
    const size_t start = at_;
    if (peek() != '"') return wanted("a string");
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char letter = text_[at_++];
      if (letter == '\n') break;
      if (letter != '\\') {
        out += letter;
        continue;
      }
      const char escape = peek();
      ++at_;
      if (escape == 'n') {
        out += '\n';
      } else if (escape == 't') {
        out += '\t';
      } else if (escape == '"' || escape == '\\') {
        out += escape;
      } else if (escape == 'x' && at_ + 1 < text_.size() && hex_digit(text_[at_]) >= 0 &&
                 hex_digit(text_[at_ + 1]) >= 0) {
        out += static_cast<char>(hex_digit(text_[at_]) << 4 | hex_digit(text_[at_ + 1]));
        at_ += 2;
      } else {
        return error_at(at_ - 2, "an unknown escape in a string",
                        "known are \\\" \\\\ \\n \\t and \\x with two hex digits");
      }
    }
    if (peek() != '"' || at_ >= text_.size()) return error_at(start, "a string without its end");
    ++at_;
    return out;
  }

  Result<std::string> optional_string() {
    skip_space();
    if (peek() != '"') return std::string();
    return string();
  }

  // ---- types and tensors ----
  Result<Type> type() {
    skip_space();
    const size_t start = at_;
    const std::optional<DType> dtype = parse_dtype(word());
    if (!dtype) {
      at_ = start;
      return wanted("a type such as f32[2,3]");
    }
    Type out{*dtype, {}};
    TRY_STATUS(expect('['));
    if (!accept(']')) {
      do {
        TRY(const int64_t extent, integer("an extent"));
        out.shape.push_back(extent);
      } while (accept(','));
      TRY_STATUS(expect(']'));
    }
    const std::optional<int64_t> count = checked_element_count(out.shape);
    if (!count || *count > kMostElements) {
      return error_at(start,
                      fmt::format("the shape {} is negative or too large", to_string(out.shape)),
                      "a tensor holds at most 2^40 elements");
    }
    return out;
  }

  static bool set_element(Tensor& tensor, int64_t index, std::string_view token) {
    const DType dtype = tensor.dtype();
    if (dtype == DType::b1) {
      tensor.set_int(index, token == "true");
      return token == "true" || token == "false";
    }
    if (dtype == DType::u64) {
      uint64_t value = 0;
      if (!read(token, value)) return false;
      tensor.set_int(index, static_cast<int64_t>(value));
      return true;
    }
    if (is_integer(dtype)) {
      int64_t value = 0;
      if (!read(token, value)) return false;
      tensor.set_int(index, value);
      return tensor.get_int(index) == value;
    }
    double value = 0;
    if (!read_float(token, value)) return false;
    float single = 0;
    // Rounded once: through a double a decimal could be rounded twice.
    if (dtype == DType::f32 && std::isfinite(value) && read(token, single)) value = single;
    tensor.set_double(index, value);
    return true;
  }

  Result<Tensor> tensor(const Type& type) {
    skip_space();
    const size_t start = at_;
    if (accept('#')) return hashed(type, start);
    if (text_.substr(at_, 2) == "0x") return bytes(type, start);
    // Counted before anything is allocated: the shape is only a claim.
    std::vector<std::pair<size_t, std::string_view>> tokens;
    const auto element = [&] {
      skip_space();
      const size_t place = at_;
      const std::string_view token = number();
      tokens.emplace_back(place, token);
      return !token.empty();
    };
    if (accept('[')) {
      if (!accept(']')) {
        do {
          if (!element()) return wanted("an element");
        } while (accept(','));
        TRY_STATUS(expect(']'));
      }
    } else if (!type.shape.empty() || !element()) {
      return wanted(type.shape.empty() ? "a number" : "'[', '0x' or '#'");
    }
    if (static_cast<int64_t>(tokens.size()) != type.count()) {
      return error_at(start, fmt::format("{} elements for {}", tokens.size(), to_string(type)));
    }
    Tensor out = Tensor::allocate(type);
    for (size_t k = 0; k < tokens.size(); ++k) {
      if (!set_element(out, static_cast<int64_t>(k), tokens[k].second)) {
        return error_at(tokens[k].first,
                        fmt::format("'{}' is no {}", tokens[k].second, to_string(type.dtype)));
      }
    }
    return out;
  }

  Result<Tensor> hashed(const Type& type, size_t start) {
    Hash hash;
    const std::string_view digits = word();
    const auto half = [&](size_t from, uint64_t& value) {
      const std::string_view part = digits.substr(from, 16);
      return std::from_chars(part.data(), part.data() + 16, value, 16).ptr == part.data() + 16;
    };
    if (digits.size() != 32 || !half(0, hash.high) || !half(16, hash.low)) {
      return error_at(start, "a hash has 32 hex digits");
    }
    const auto found = weights_.find(hash);
    if (found == weights_.end()) {
      return error_at(start, "this tensor is given only by its hash",
                      "print it with all its data, or give the weights beside the text");
    }
    const Tensor& known = found->second;
    if (known.bytes() != type.bytes()) {
      return error_at(start, fmt::format("the weight has {} bytes, {} takes {}", known.bytes(),
                                         to_string(type), type.bytes()));
    }
    if (known.type() == type) return known;
    return Tensor::view(type, known.data(), std::make_shared<Tensor>(known));
  }

  Result<Tensor> bytes(const Type& type, size_t start) {
    at_ += 2;
    const std::string_view digits = word();
    if (static_cast<int64_t>(digits.size() / 2) != type.bytes() || digits.size() % 2 != 0) {
      return error_at(start, fmt::format("{} hex digits for {} bytes of {}", digits.size(),
                                         type.bytes(), to_string(type)));
    }
    Tensor out = Tensor::allocate(type);
    auto* data = out.as_mutable<unsigned char>();
    for (size_t k = 0; k < digits.size(); k += 2) {
      const int high = hex_digit(digits[k]), low = hex_digit(digits[k + 1]);
      if (high < 0 || low < 0) return error_at(start + 2 + k, "a letter that is no hex digit");
      data[k / 2] = static_cast<unsigned char>(high << 4 | low);
    }
    return out;
  }

  // ---- attributes ----
  Result<ops::Attr> attr() {
    skip_space();
    if (peek() == '"') {
      TRY(std::string text, string());
      return ops::Attr(std::move(text));
    }
    if (accept_word("tensor")) {
      TRY(const Type type, this->type());
      TRY(Tensor value, tensor(type));
      return ops::Attr(std::move(value));
    }
    if (accept_word("floats")) {
      TRY_STATUS(expect('['));
      TRY_STATUS(expect(']'));
      return ops::Attr(std::vector<double>());
    }
    if (!accept('[')) {
      TRY(const Number one, attr_number());
      return one.is_float ? ops::Attr(one.real) : ops::Attr(one.integer);
    }
    std::vector<int64_t> integers;
    std::vector<double> reals;
    bool any_float = false;
    if (!accept(']')) {
      do {
        TRY(const Number one, attr_number());
        any_float |= one.is_float;
        integers.push_back(one.integer);
        reals.push_back(one.real);
      } while (accept(','));
      TRY_STATUS(expect(']'));
    }
    if (any_float) return ops::Attr(std::move(reals));
    return ops::Attr(std::move(integers));
  }

  struct Number {
    bool is_float = false;
    int64_t integer = 0;
    double real = 0;
  };
  Result<Number> attr_number() {
    skip_space();
    const size_t start = at_;
    const std::string_view token = number();
    Number out;
    if (read(token, out.integer)) {
      out.real = static_cast<double>(out.integer);
      return out;
    }
    out.is_float = true;
    if (read_float(token, out.real)) return out;
    at_ = start;
    return wanted("an attribute's value");
  }

  Result<ops::Attrs> attrs() {
    ops::Attrs out;
    if (!accept('{') || accept('}')) return out;
    do {
      skip_space();
      const size_t start = at_;
      std::string name(peek() == '"' ? "" : word());
      if (peek() == '"' && name.empty()) {
        TRY(name, string());
      } else if (name.empty()) {
        return wanted("an attribute's name");
      }
      if (out.has(name)) return error_at(start, fmt::format("attribute '{}' twice", name));
      TRY_STATUS(expect('='));
      TRY(ops::Attr value, attr());
      out.set(std::move(name), std::move(value));
    } while (accept(','));
    TRY_STATUS(expect('}'));
    return out;
  }

  // ---- lines ----
  Result<int64_t> value_number() {
    TRY_STATUS(expect('%'));
    return integer("a value's number");
  }

  Result<ValueId> known_value() {
    skip_space();
    const size_t start = at_;
    TRY(const int64_t number, value_number());
    const auto found = values_.find(number);
    if (found == values_.end()) {
      return error_at(start, fmt::format("%{} is not defined above", number));
    }
    return found->second;
  }

  struct Definition {
    size_t place = 0;
    int64_t number = 0;
    std::string name;
    Type type;
  };
  Result<Definition> definition() {
    skip_space();
    Definition out{.place = at_};
    TRY(out.number, value_number());
    if (values_.contains(out.number)) {
      return error_at(out.place, fmt::format("%{} is defined twice", out.number));
    }
    TRY(out.name, optional_string());
    TRY_STATUS(expect(':'));
    TRY(out.type, type());
    return out;
  }

  Status line() {
    skip_space();
    if (peek() == '%') return node();
    if (accept_word("in")) {
      TRY(Definition made, definition());
      values_[made.number] = graph_.add_input(std::move(made.name), std::move(made.type));
      return ok_status();
    }
    if (accept_word("const")) {
      TRY(Definition made, definition());
      TRY_STATUS(expect('='));
      TRY(Tensor value, tensor(made.type));
      values_[made.number] = graph_.add_constant(std::move(value), std::move(made.name));
      return ok_status();
    }
    if (accept_word("out")) {
      TRY(const ValueId value, known_value());
      const size_t start = at_;
      TRY(std::string name, string());
      if (!output_names_.insert(name).second) {
        return error_at(start, fmt::format("two outputs are named '{}'", name));
      }
      int in_place_of = kNone;
      skip_space();
      if (accept_word("in_place_of")) {
        skip_space();
        const size_t at = at_;
        TRY(const std::string input, string());
        const std::vector<ValueId>& inputs = graph_.inputs();
        for (size_t k = 0; k < inputs.size() && in_place_of == kNone; ++k)
          if (graph_.value(inputs[k]).name == input) in_place_of = static_cast<int>(k);
        if (in_place_of == kNone) return error_at(at, fmt::format("no input is named '{}'", input));
        const Type& old = graph_.type(inputs[static_cast<size_t>(in_place_of)]);
        if (old != graph_.type(value))
          return error_at(at, fmt::format("'{}' is {}, but the output is {}", input, to_string(old),
                                          to_string(graph_.type(value))));
        for (size_t k = 0; k < graph_.outputs().size(); ++k)
          if (graph_.in_place_of(k) == in_place_of)
            return error_at(at, fmt::format("two outputs are in place of input '{}'", input));
      }
      graph_.mark_output(value, std::move(name), in_place_of);
      return ok_status();
    }
    return wanted("'in', 'const', 'out', a value or '}'");
  }

  Status node() {
    std::vector<Definition> made;
    do {
      TRY(Definition one, definition());
      for (const Definition& other : made) {
        if (other.number == one.number) {
          return error_at(one.place, fmt::format("%{} is defined twice", one.number));
        }
      }
      made.push_back(std::move(one));
      if (made.size() > kMostOutputs) return error_at(made[0].place, "too many outputs");
    } while (accept(','));
    TRY_STATUS(expect('='));
    skip_space();
    const size_t place = at_;
    const std::string_view name = word();
    const std::optional<Op> op = ops::parse_op(name);
    if (!op) return error_at(place, fmt::format("there is no op '{}'", name));
    TRY_STATUS(expect('('));
    std::vector<ValueId> inputs;
    if (!accept(')')) {
      do {
        if (accept('_')) {
          inputs.push_back(kNone);
        } else {
          TRY(const ValueId value, known_value());
          inputs.push_back(value);
        }
      } while (accept(','));
      TRY_STATUS(expect(')'));
    }
    TRY(ops::Attrs attrs, this->attrs());
    TRY(std::string label, optional_string());
    const Result<NodeId> id = graph_.add_node(*op, std::move(inputs), std::move(attrs),
                                              std::move(label), static_cast<int>(made.size()));
    if (!id.ok()) return error_at(place, id.error().message, id.error().hint);
    for (size_t k = 0; k < made.size(); ++k) {
      const ValueId value = graph_.node(*id).outputs[k];
      if (graph_.type(value) != made[k].type) {
        return error_at(made[k].place,
                        fmt::format("%{} is declared as {}, but {} makes {}", made[k].number,
                                    to_string(made[k].type), name, to_string(graph_.type(value))));
      }
      graph_.value(value).name = std::move(made[k].name);
      values_[made[k].number] = value;
    }
    return ok_status();
  }

  std::string_view text_;
  const Weights& weights_;
  size_t at_ = 0;
  Graph graph_;
  std::unordered_set<std::string> output_names_;
  std::unordered_map<int64_t, ValueId> values_;  // by the number in the text
};

}  // namespace

Result<Graph> parse(std::string_view text, const Weights& weights) {
  return Parser(text, weights).run();
}

}  // namespace obelisk::graph
