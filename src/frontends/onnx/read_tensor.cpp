// Tensors: element types, and values out of raw bytes, typed fields or external files.
#include <protozero/pbf_reader.hpp>

#include <charconv>
#include <cstring>

#include "frontends/onnx/model.h"

namespace obelisk::frontends::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

constexpr int64_t kMaxDenseBytes =
    int64_t{1} << 30;  // a sparse tensor made dense: more is surely a lie or a mistake

struct ElementRow {
  ElementType type;
  const char* name;
  std::optional<DType> dtype;
};
constexpr ElementRow kElements[] = {
    {ElementType::kUndefined, "undefined", {}},
    {ElementType::kFloat, "float", DType::f32},
    {ElementType::kUint8, "uint8", DType::u8},
    {ElementType::kInt8, "int8", DType::i8},
    {ElementType::kUint16, "uint16", DType::u16},
    {ElementType::kInt16, "int16", DType::i16},
    {ElementType::kInt32, "int32", DType::i32},
    {ElementType::kInt64, "int64", DType::i64},
    {ElementType::kString, "string", {}},
    {ElementType::kBool, "bool", DType::b1},
    {ElementType::kFloat16, "float16", DType::f16},
    {ElementType::kDouble, "double", DType::f64},
    {ElementType::kUint32, "uint32", DType::u32},
    {ElementType::kUint64, "uint64", DType::u64},
    {ElementType::kComplex64, "complex64", {}},
    {ElementType::kComplex128, "complex128", {}},
    {ElementType::kBfloat16, "bfloat16", DType::bf16},
    {ElementType::kFloat8E4M3FN, "float8e4m3fn", DType::f8e4m3fn},
    {ElementType::kFloat8E4M3FNUZ, "float8e4m3fnuz", DType::f8e4m3fnuz},
    {ElementType::kFloat8E5M2, "float8e5m2", DType::f8e5m2},
    {ElementType::kFloat8E5M2FNUZ, "float8e5m2fnuz", DType::f8e5m2fnuz},
    {ElementType::kUint4, "uint4", DType::u4},
    {ElementType::kInt4, "int4", DType::i4},
    {ElementType::kFloat4E2M1, "float4e2m1", DType::f4e2m1},
    {ElementType::kFloat8E8M0, "float8e8m0", DType::f8e8m0},
    {ElementType::kUint2, "uint2", DType::u2},
    {ElementType::kInt2, "int2", DType::i2},
    {ElementType::kFloat6E2M3, "float6e2m3", {}},
    {ElementType::kFloat6E3M2, "float6e3m2", {}},
};

const ElementRow* find_element(ElementType type) {
  for (const ElementRow& row : kElements)
    if (row.type == type) return &row;
  return nullptr;
}

/// "weight 'w'", for messages.
std::string called(const TensorDef& tensor) {
  return tensor.name.empty() ? "a tensor" : fmt::format("tensor '{}'", tensor.name);
}

Error wrong_size(const TensorDef& tensor, const Type& type, int64_t got, std::string_view unit) {
  return bad_model(fmt::format("{} of {} needs {} bytes but {} {} are there", called(tensor),
                               to_string(type), type.bytes(), got, unit),
                   "", "the file may be cut short");
}

Result<int64_t> parse_count(std::string_view text, int64_t otherwise, const TensorDef& tensor,
                            std::string_view what) {
  if (text.empty()) return otherwise;
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size() || value < 0)
    return bad_model(fmt::format("{}: the {} of its external data is not a count of bytes",
                                 called(tensor), what));
  return value;
}

/// Bytes that are the elements. Booleans are made 0 or 1, which costs a copy only where they are
/// not.
Result<Tensor> from_bytes(const TensorDef& tensor, const Type& type, std::string_view bytes,
                          std::shared_ptr<const void> owner) {
  if (static_cast<int64_t>(bytes.size()) != type.bytes())
    return wrong_size(tensor, type, static_cast<int64_t>(bytes.size()), "bytes");
  if (bytes.empty()) return Tensor::allocate(type);
  const bool odd_bool =
      type.dtype == DType::b1 && bytes.find_first_not_of(std::string_view("\0\1", 2)) != bytes.npos;
  if (!odd_bool) return Tensor::view(type, bytes.data(), std::move(owner));
  Tensor out = Tensor::allocate(type);
  for (size_t at = 0; at < bytes.size(); ++at) out.as_mutable<uint8_t>()[at] = bytes[at] != 0;
  return out;
}

Result<Tensor> from_external(const Model& model, const TensorDef& tensor, const Type& type) {
  TRY(const int64_t offset, parse_count(tensor.offset_text, 0, tensor, "offset"));
  TRY(const int64_t length, parse_count(tensor.length_text, type.bytes(), tensor, "length"));
  if (length != type.bytes()) return wrong_size(tensor, type, length, "bytes of external data");
  std::shared_ptr<const MappedFile> file;
  std::optional<std::span<const std::byte>> data = model.files->in_memory(tensor.location);
  if (!data) {
    auto opened = model.files->open(tensor.location);
    if (!opened.ok()) {
      opened.error().message = fmt::format("{}: {}", called(tensor), opened.error().message);
      return std::move(opened.error());
    }
    file = *opened;
    data.emplace(file->data(), file->size());
  }
  const auto size = static_cast<int64_t>(data->size());
  if (offset > size || length > size - offset)
    return bad_model(fmt::format("{}: external data [{}, {} + {}) but '{}' has {} bytes",
                                 called(tensor), offset, offset, length, tensor.location, size),
                     "", "the data file may be cut short, or belong to another model");
  const std::string_view bytes(reinterpret_cast<const char*>(data->data()) + offset, length);
  return from_bytes(tensor, type, bytes, file);
}

/// Writes the values of one typed field; counts them, and stops writing at the end of the tensor.
struct Filler {
  Tensor tensor;
  int64_t slots;  // how many values the field has to hold
  int64_t filled = 0;

  void put(int64_t value) {
    if (filled < slots) {
      const DType dtype = tensor.dtype();
      char* data = static_cast<char*>(tensor.mutable_data());
      // Narrow floats and types under a byte are stored as their bits, as many to a value as fit a
      // byte.
      if (bits(dtype) <= 8 && dtype != DType::b1) {
        data[filled] = static_cast<char>(value);
      } else if (is_half(dtype)) {
        const auto low = static_cast<uint16_t>(value);
        std::memcpy(data + 2 * filled, &low, 2);
      } else {
        tensor.set_int(filled, value);
      }
    }
    ++filled;
  }
  void put_real(double value) {
    if (filled < slots) tensor.set_double(filled, value);
    ++filled;
  }
};

/// The number of the field that holds values of a type one by one.
uint32_t typed_field(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::f64:
      return 10;
    case DType::i64:
      return 7;
    case DType::u32:
    case DType::u64:
      return 11;
    default:
      return 5;
  }
}

/// Packed or one by one; a field of another wire type is left out and shows in the count of values.
void read_typed(pbf_reader& in, DType dtype, Filler& filler) {
  const bool packed = in.wire_type() == pbf_wire_type::length_delimited;
  const pbf_wire_type single = dtype == DType::f32   ? pbf_wire_type::fixed32
                               : dtype == DType::f64 ? pbf_wire_type::fixed64
                                                     : pbf_wire_type::varint;
  if (!packed && in.wire_type() != single) return in.skip();
  switch (typed_field(dtype)) {
    case 4:
      if (!packed) return filler.put_real(in.get_float());
      for (const float value : in.get_packed_float()) filler.put_real(value);
      return;
    case 10:
      if (!packed) return filler.put_real(in.get_double());
      for (const double value : in.get_packed_double()) filler.put_real(value);
      return;
    case 7:
      if (!packed) return filler.put(in.get_int64());
      for (const int64_t value : in.get_packed_int64()) filler.put(value);
      return;
    case 11:
      if (!packed) return filler.put(static_cast<int64_t>(in.get_uint64()));
      for (const uint64_t value : in.get_packed_uint64()) filler.put(static_cast<int64_t>(value));
      return;
    default:
      if (!packed) return filler.put(in.get_int32());
      for (const int32_t value : in.get_packed_int32()) filler.put(value);
  }
}

Result<Tensor> from_fields(const TensorDef& tensor, const Type& type) {
  const int64_t slots = bits(type.dtype) < 8 ? type.bytes() : type.count();
  // A value takes a byte of the message or more, so a lying shape is found before anything is
  // allocated.
  if (slots > static_cast<int64_t>(tensor.wire.size()))
    return wrong_size(tensor, type, static_cast<int64_t>(tensor.wire.size()), "bytes at most");
  Filler filler{Tensor::allocate(type), slots};
  try {
    pbf_reader in(tensor.wire.data(), tensor.wire.size());
    while (in.next()) {
      if (in.tag() == typed_field(type.dtype))
        read_typed(in, type.dtype, filler);
      else
        in.skip();
    }
  } catch (const protozero::exception&) {
    return bad_model(fmt::format("the values of {} are malformed", called(tensor)));
  }
  if (filler.filled != slots)
    return bad_model(fmt::format("{} of {} needs {} values but {} are there", called(tensor),
                                 to_string(type), slots, filler.filled));
  return filler.tensor;
}

}  // namespace

std::string to_string(ElementType type) {
  const ElementRow* row = find_element(type);
  return row ? row->name : fmt::format("element type {}", static_cast<int>(type));
}

std::optional<DType> to_dtype(ElementType type) {
  const ElementRow* row = find_element(type);
  return row ? row->dtype : std::nullopt;
}

ElementType to_element_type(DType dtype) {
  for (const ElementRow& row : kElements)
    if (row.dtype == dtype) return row.type;
  return ElementType::kUndefined;
}

Status check_extents(const Shape& shape, std::string_view what) {
  if (shape.size() > kMostAxes)
    return Error{Code::kUnsupported, "frontends",
                 fmt::format("{} has {} axes, more than {}", what, shape.size(), kMostAxes), "",
                 "check the shape, or the values that it is computed from"};
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0)
      return bad_model(fmt::format("{} has a negative extent in {}", what, to_string(shape)));
    if (extent > 0 && count > kMaxElements / extent)
      return Error{Code::kMemory, "frontends",
                   fmt::format("{} of shape {} has more than {} elements", what, to_string(shape),
                               kMaxElements),
                   "", "check the shape, or the values that it is computed from"};
    count *= std::max<int64_t>(extent, 1);
  }
  return ok_status();
}

Result<Tensor> decode(const Model& model, const TensorDef& tensor) {
  const std::optional<DType> dtype = to_dtype(tensor.type);
  if (!dtype) {
    const Code code = find_element(tensor.type) && tensor.type != ElementType::kUndefined
                          ? Code::kUnsupported
                          : Code::kBadModel;
    return Error{code, "frontends",
                 fmt::format("{} has the type {}", called(tensor), to_string(tensor.type)), "",
                 code == Code::kUnsupported ? "only numbers and booleans can be run" : ""};
  }
  TRY_STATUS(check_extents(tensor.dims, called(tensor)));
  const Type type{*dtype, tensor.dims};
  if (tensor.external) return from_external(model, tensor, type);
  if (tensor.raw) return from_bytes(tensor, type, *tensor.raw, model.owner);
  return from_fields(tensor, type);
}

Result<Tensor> decode(const Model& model, const SparseTensorDef& sparse) {
  TRY(const Tensor values, decode(model, sparse.values));
  TRY(const Tensor indices, decode(model, sparse.indices));
  TRY_STATUS(check_extents(sparse.dims, "sparse " + called(sparse.values)));
  const auto rank = static_cast<int64_t>(sparse.dims.size());
  const int64_t stored = values.count();
  const Type type{values.dtype(), sparse.dims};
  if (type.bytes() > kMaxDenseBytes)
    return Error{Code::kMemory, "frontends",
                 fmt::format("sparse {} of {} would take {} when made dense", called(sparse.values),
                             to_string(type), to_string(Bytes{type.bytes()})),
                 "", ""};
  const bool linear = indices.type() == Type{DType::i64, {stored}};
  if (values.type().rank() != 1 || (!linear && indices.type() != Type{DType::i64, {stored, rank}}))
    return bad_model(fmt::format("sparse {} has values {} and indices {}", called(sparse.values),
                                 to_string(values.type()), to_string(indices.type())));
  const std::vector<int64_t> at = to_ints(indices);
  const Shape strides = row_major_strides(sparse.dims);
  Tensor out = Tensor::allocate(type);
  for (int64_t k = 0; k < stored; ++k) {
    int64_t place = linear ? at[k] : 0;
    bool inside = !linear || (place >= 0 && place < type.count());
    for (int64_t d = 0; !linear && d < rank; ++d) {
      const int64_t index = at[k * rank + d];
      inside = inside && index >= 0 && index < sparse.dims[d];
      if (inside) place += index * strides[d];
    }
    if (!inside)
      return bad_model(fmt::format("sparse {}: entry {} lies outside of {}", called(sparse.values),
                                   k, to_string(sparse.dims)));
    if (is_float(type.dtype))
      out.set_double(place, values.get_double(k));
    else
      out.set_int(place, values.get_int(k));
  }
  return out;
}

}  // namespace obelisk::frontends::onnx
