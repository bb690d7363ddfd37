#include "base/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/file.h"

namespace obelisk {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

Error bad(std::string message, std::string hint = "") {
  return {
      .code = Code::kUsage, .room = "base", .message = std::move(message), .hint = std::move(hint)};
}

// What a header says, in the words of the format.
struct Header {
  std::string descr;
  bool fortran_order = false;
  Shape shape;
};

// The small part of Python's literals that a header is written in.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Result<Header> run() {
    Header out;
    bool has_descr = false, has_order = false, has_shape = false;
    if (!accept('{')) return malformed();
    while (!accept('}')) {
      std::string key;
      if (!string(key) || !accept(':')) return malformed();
      if (key == "descr") {
        if (peek() == '[') {
          return bad("a structured array, whose elements are records",
                     "save each field as an array of its own");
        }
        if (!string(out.descr)) return malformed();
        has_descr = true;
      } else if (key == "fortran_order") {
        if (accept_word("True")) {
          out.fortran_order = true;
        } else if (!accept_word("False")) {
          return malformed();
        }
        has_order = true;
      } else if (key == "shape") {
        if (!shape(out.shape)) return malformed();
        has_shape = true;
      } else {
        return bad(fmt::format("the header has an unknown key '{}'", key));
      }
      if (!accept(',') && peek() != '}') return malformed();
    }
    if (!has_descr || !has_order || !has_shape) return malformed();
    skip_space();
    if (at_ != text_.size()) return malformed();
    return out;
  }

 private:
  static Error malformed() {
    return bad("the header is not a dictionary of descr, fortran_order and shape");
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char letter) {
    if (peek() != letter || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool string(std::string& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out.find('\\') == std::string::npos;
  }
  bool shape(Shape& out) {
    if (!accept('(')) return false;
    while (!accept(')')) {
      skip_space();
      int64_t extent = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) return false;
      at_ = static_cast<size_t>(end - text_.data());
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
      out.push_back(extent);
      if (!accept(',') && peek() != ')') return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

struct Descr {
  DType dtype = DType::u8;  // as the file lies; raw ones are u8 or u16
  bool raw = false;
  bool big_endian = false;
};

Result<Descr> parse_descr(const std::string& text) {
  Descr out;
  std::string_view rest = text;
  if (!rest.empty() && std::string_view("<>|=").find(rest[0]) != std::string_view::npos) {
    out.big_endian = rest[0] == '>';
    rest.remove_prefix(1);
  }
  static const std::map<std::string_view, DType> kKnown = {
      {"f8", DType::f64}, {"f4", DType::f32}, {"f2", DType::f16}, {"i8", DType::i64},
      {"i4", DType::i32}, {"i2", DType::i16}, {"i1", DType::i8},  {"u8", DType::u64},
      {"u4", DType::u32}, {"u2", DType::u16}, {"u1", DType::u8},  {"b1", DType::b1},
  };
  if (const auto found = kKnown.find(rest); found != kKnown.end()) {
    out.dtype = found->second;
    return out;
  }
  out.raw = true;
  if (rest == "V2") {
    out.dtype = DType::u16;
    return out;
  }
  if (rest == "V1" || rest == "f1") {  // one of the 8-bit floats is saved as 'f1'
    out.dtype = DType::u8;
    return out;
  }
  if (rest == "O") {
    return bad("an array of Python objects, which only Python can read",
               "convert it with .astype() to a numeric type");
  }
  return bad(fmt::format("elements of NumPy type '{}'", text),
             "convert them with .astype() to a float, integer or boolean type");
}

// How the elements lie in the file, and what becomes of them.
struct Plan {
  DType stored;  // one element of this type in the file
  DType result;
};

/// What NumPy calls a type that it has.
std::string numpy_name(DType dtype) {
  if (dtype == DType::b1) return "bool";
  const char* kind = is_float(dtype) ? "float" : is_signed(dtype) ? "int" : "uint";
  return fmt::format("{}{}", kind, bits(dtype));
}

Result<Plan> plan(const Descr& descr, std::optional<DType> as) {
  const DType stored = descr.dtype;
  if (!as) {
    if (!descr.raw) return Plan{stored, stored};
    return bad(fmt::format("raw elements of {} byte(s), which may be any type", bits(stored) / 8),
               "say which type they are");
  }
  if (*as == stored && !descr.raw) return Plan{stored, stored};
  if (descr.raw && bits(*as) == bits(stored)) return Plan{stored, *as};
  const bool byte = stored == DType::u8 || stored == DType::i8;
  if (byte && (is_low_float(*as) || bits(*as) < 8)) return Plan{stored, *as};
  if (stored == DType::u16 && *as == DType::bf16) return Plan{stored, *as};
  return bad(fmt::format("elements of {}{} but {} is wanted", descr.raw ? "raw " : "",
                         to_string(stored), to_string(*as)),
             fmt::format("convert them with .astype(np.{}); the file holds {}", numpy_name(*as),
                         numpy_name(stored)));
}

void swap_bytes(void* data, int64_t count, int width) {
  auto* bytes = static_cast<unsigned char*>(data);
  for (int64_t k = 0; k < count; ++k, bytes += width) std::reverse(bytes, bytes + width);
}

// A copy in row-major order of elements that lie with the first index fastest.
Tensor from_fortran(const Tensor& in) {
  if (in.count() == 0) return in;  // other extents may be of any size then
  Tensor out = Tensor::allocate(in.type());
  const Shape& shape = in.shape();
  const int64_t width = bits(in.dtype()) / 8;
  std::vector<int64_t> strides(shape.size(), 1), index(shape.size(), 0);
  for (size_t axis = 1; axis < shape.size(); ++axis) {
    strides[axis] = strides[axis - 1] * shape[axis - 1];
  }
  const char* from = in.as<char>();
  char* to = out.as_mutable<char>();
  int64_t offset = 0;
  for (int64_t k = 0; k < in.count(); ++k) {
    std::memcpy(to + k * width, from + offset * width, static_cast<size_t>(width));
    for (size_t axis = shape.size(); axis-- > 0;) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
  return out;
}

// Codes, one to a byte, packed as the narrow type is.
Result<Tensor> packed(const Tensor& in, DType dtype) {
  Tensor out = Tensor::allocate({dtype, in.shape()});
  const int width = bits(dtype);
  const bool integer = is_integer(dtype);
  for (int64_t k = 0; k < in.count(); ++k) {
    const int64_t code = in.get_int(k);
    // A signed value may also come as its code, zero-extended or sign-extended.
    if (code >= 1 << width || code < -(1 << (width - 1))) {
      return bad(fmt::format("element {} is {}, which is no {}", k, code, to_string(dtype)));
    }
    if (integer) {
      out.set_int(k, code);
    } else {
      auto* bytes = out.as_mutable<uint8_t>();
      bytes[k / 2] = static_cast<uint8_t>(bytes[k / 2] | (code & 15) << (k % 2 * 4));
    }
  }
  return out;
}

Error in_file(Error error, const std::string& path) {
  error.message = path + ": " + error.message;
  return error;
}

}  // namespace

Result<Tensor> parse_npy(std::span<const std::byte> bytes, std::optional<DType> as,
                         std::shared_ptr<const void> owner) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) return bad("not a .npy file, it does not start with \\x93NUMPY");
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (text.size() < 12) return bad("the file ends inside its header");
  const int version = byte(6);
  if (version < 1 || version > 3) {
    return bad(fmt::format("a .npy file of version {}", version), "versions 1 to 3 are known");
  }
  const size_t start = version == 1 ? 10 : 12;
  size_t length = byte(8) | static_cast<size_t>(byte(9)) << 8;
  if (version > 1)
    length |= static_cast<size_t>(byte(10)) << 16 | static_cast<size_t>(byte(11)) << 24;
  if (length > text.size() - start) return bad("the file ends inside its header");
  TRY(Header header, HeaderParser(text.substr(start, length)).run());
  TRY(const Descr descr, parse_descr(header.descr));
  TRY(const Plan plan, obelisk::plan(descr, as));

  const std::span<const std::byte> data = bytes.subspan(start + length);
  const std::optional<int64_t> count = checked_element_count(header.shape);
  const int width = bits(descr.dtype) / 8;
  if (!count || static_cast<uint64_t>(*count) > data.size() / static_cast<size_t>(width) ||
      data.size() != static_cast<size_t>(*count) * static_cast<size_t>(width)) {
    return bad(fmt::format("the header says {} of {} bytes each, but {} bytes follow",
                           to_string(header.shape), width, data.size()),
               "the file is truncated or damaged; save it again");
  }

  Tensor tensor = Tensor::view({plan.stored, header.shape}, data.data(), owner);
  // Users of tensors read whole words, so a view must be aligned for its type.
  const bool aligned = reinterpret_cast<uintptr_t>(data.data()) % static_cast<size_t>(width) == 0;
  const bool swap = descr.big_endian && width > 1;
  if (owner == nullptr || swap || !aligned) {
    tensor = tensor.cast(plan.stored);
    if (swap) swap_bytes(tensor.mutable_data(), *count, width);
  }
  if (plan.result == DType::b1) {  // raw bytes may be wanted as booleans too
    const auto* truths = tensor.as<uint8_t>();
    if (std::any_of(truths, truths + *count, [](uint8_t truth) { return truth > 1; })) {
      return bad("a boolean array with bytes other than 0 and 1", "save it again");
    }
  }
  if (header.fortran_order && header.shape.size() > 1) tensor = from_fortran(tensor);
  if (plan.result == plan.stored) return tensor;
  if (bits(plan.result) < 8) return packed(tensor, plan.result);
  auto keep = std::make_shared<Tensor>(std::move(tensor));
  const void* same_bytes = keep->data();
  return Tensor::view({plan.result, header.shape}, same_bytes, std::move(keep));
}

Result<Tensor> read_npy(const std::string& path, std::optional<DType> as) {
  TRY(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  Result<Tensor> out = parse_npy({file->data(), file->size()}, as, file);
  if (!out.ok()) return in_file(std::move(out.error()), path);
  return out;
}

std::string npy_bytes(const Tensor& tensor) {
  static const std::map<DType, std::string_view> kDescr = {
      {DType::f64, "<f8"}, {DType::f32, "<f4"}, {DType::f16, "<f2"}, {DType::bf16, "<V2"},
      {DType::i64, "<i8"}, {DType::i32, "<i4"}, {DType::i16, "<i2"}, {DType::i8, "|i1"},
      {DType::i4, "|i1"},  {DType::i2, "|i1"},  {DType::u64, "<u8"}, {DType::u32, "<u4"},
      {DType::u16, "<u2"}, {DType::u8, "|u1"},  {DType::u4, "|u1"},  {DType::u2, "|u1"},
      {DType::b1, "|b1"},
  };
  const auto known = kDescr.find(tensor.dtype());
  const std::string_view descr = known == kDescr.end() ? "<V1" : known->second;
  std::string shape;
  for (const int64_t extent : tensor.shape()) shape += fmt::format("{}, ", extent);
  if (tensor.shape().size() > 1) shape.resize(shape.size() - 2);
  if (tensor.shape().size() == 1) shape.resize(shape.size() - 1);  // "(3,)"
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  // Padded, so that the data begins at a multiple of 64.
  const bool long_header = header.size() + 1 + 10 + 63 > 65535;
  const size_t start = long_header ? 12 : 10;
  header.resize((start + header.size() + 1 + 63) / 64 * 64 - start - 1, ' ');
  header += '\n';
  std::string out(kMagic);
  out += static_cast<char>(long_header ? 2 : 1);
  out += '\0';
  for (size_t k = 0; k < start - 8; ++k) out += static_cast<char>(header.size() >> (8 * k) & 255);
  out += header;
  if (bits(tensor.dtype()) >= 8) {
    out.append(tensor.as<char>(), static_cast<size_t>(tensor.bytes()));
    return out;
  }
  // One byte a number: of 4-bit floats their code.
  for (int64_t k = 0; k < tensor.count(); ++k) {
    const int64_t number = is_float(tensor.dtype())
                               ? tensor.as<uint8_t>()[k / 2] >> (k % 2 * 4) & 15
                               : tensor.get_int(k);
    out += static_cast<char>(number);
  }
  return out;
}

Status write_npy(const std::string& path, const Tensor& tensor) {
  return write_file(path, npy_bytes(tensor));
}

}  // namespace obelisk
