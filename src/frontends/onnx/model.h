/// frontends/onnx/model.h — an ONNX file as plain structs that look into its mapped bytes.
///
///   in   a file, mapped (never read whole), or bytes in memory
///   out  Model: names, nodes, attributes, types; tensors stay where they are in the file
///
/// Every string_view here points into the mapping that Model::owner keeps alive. Weights are not
/// copied: decode() views raw and external data in place and allocates only for values spelled one
/// by one.
/// Errors  kBadModel for anything malformed, at once and with a reason; no input may crash it.
/// Source  onnx.proto of onnx 1.23 (proto2): field numbers are facts of that file.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"

namespace obelisk::frontends::onnx {

using obelisk::to_string;

/// The numbers of the format's element types.
enum class ElementType : int32_t {
  kUndefined = 0,
  kFloat,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kInt32,
  kInt64,
  kString,
  kBool,
  kFloat16,
  kDouble,
  kUint32,
  kUint64,
  kComplex64,
  kComplex128,
  kBfloat16,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kUint4,
  kInt4,
  kFloat4E2M1,
  kFloat8E8M0,
  kUint2,
  kInt2,
  kFloat6E2M3,
  kFloat6E3M2,
};
std::string to_string(ElementType type);          // "float16", or "element type 99"
std::optional<DType> to_dtype(ElementType type);  // nothing for strings, complex numbers, float6
ElementType to_element_type(DType dtype);

struct TensorDef {
  std::string_view name;
  ElementType type = ElementType::kUndefined;
  Shape dims;
  std::string_view wire;                // the whole message; decode() walks it for typed values
  std::optional<std::string_view> raw;  // little-endian elements
  bool external = false;
  std::string_view location;                  // of external data, relative to the model's folder
  std::string_view offset_text, length_text;  // decimal, may be empty
};

struct SparseTensorDef {
  TensorDef values, indices;
  Shape dims;
};

struct DimensionDef {
  std::optional<int64_t> value;
  std::string_view symbol;  // "batch"; empty when the dimension has neither value nor name
};

struct TypeDef {
  enum class Kind : uint8_t { kUnknown, kTensor, kSequence, kMap, kSparse, kOptional, kOpaque };
  Kind kind = Kind::kUnknown;
  ElementType element = ElementType::kUndefined;  // of tensors
  bool has_shape = false;
  std::vector<DimensionDef> shape;
  std::shared_ptr<const TypeDef> nested;  // of sequences and optionals
};

struct ValueDef {
  std::string_view name;
  TypeDef type;
};

struct Body;

struct AttributeDef {
  enum class Kind : int32_t {
    kUndefined = 0,
    kFloat,
    kInt,
    kString,
    kTensor,
    kGraph,
    kFloats,
    kInts,
    kStrings,
    kTensors,
    kGraphs,
    kSparseTensor,
    kSparseTensors,
    kType,
    kTypes,
  };
  std::string_view name;
  std::string_view reference;  // inside a function: the name of the caller's attribute
  Kind kind = Kind::kUndefined;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
  std::shared_ptr<const TensorDef> tensor;
  std::shared_ptr<const SparseTensorDef> sparse;
  std::shared_ptr<const Body> graph;
  std::shared_ptr<const TypeDef> type;
};

struct NodeDef {
  std::string_view name, op, domain, overload;
  std::vector<std::string_view> inputs, outputs;  // "" where an optional one is absent
  std::vector<AttributeDef> attributes;
};

using Opsets = std::map<std::string, int64_t, std::less<>>;  // domain -> version; "ai.onnx" is ""
using Metadata = std::vector<std::pair<std::string_view, std::string_view>>;

/// A graph: of the model, of an attribute of If, Loop or Scan.
struct Body {
  std::string_view name;
  std::vector<NodeDef> nodes;
  std::vector<ValueDef> inputs, outputs, values;
  std::vector<TensorDef> initializers;
  std::vector<SparseTensorDef> sparse_initializers;
  Metadata metadata;
};

struct FunctionDef {
  std::string_view name, domain, overload;
  std::vector<std::string_view> inputs, outputs;
  std::vector<std::string_view> attributes;  // without defaults
  std::vector<AttributeDef> attribute_defaults;
  std::vector<NodeDef> nodes;
  Opsets opsets;
};

/// Bytes of external data that the caller holds in memory, by location.
using ExternalMemory = std::map<std::string, std::span<const std::byte>, std::less<>>;

/// Maps each external file once. Safe to use from several threads.
class ExternalFiles {
 public:
  explicit ExternalFiles(std::string folder, ExternalMemory memory = {})
      : folder_(std::move(folder)), memory_(std::move(memory)) {}
  /// What the caller holds of this location; no file of that name is looked for.
  std::optional<std::span<const std::byte>> in_memory(std::string_view location) const {
    const auto found = memory_.find(location);
    return found == memory_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Errors: kBadModel when `location` is absolute, leaves the folder (by `..` or by a symbolic
  /// link), or is no regular file.
  Result<std::shared_ptr<const MappedFile>> open(std::string_view location);

 private:
  const std::string folder_;
  const ExternalMemory memory_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const MappedFile>, std::less<>> files_;  // under mutex_
};

struct Model {
  std::shared_ptr<const void> owner;  // of the bytes that all views look into
  std::shared_ptr<ExternalFiles> files;
  std::string path;  // for messages
  int64_t ir_version = 0;
  std::string_view producer, producer_version;
  Opsets opsets;
  Body graph;
  std::vector<FunctionDef> functions;
  Metadata metadata;
};

/// Maps and reads a file. Errors: kUsage when it is not there, kBadModel when it is not a model.
Result<Model> read_model(const std::string& path);

/// Reads bytes that `owner` keeps alive; `folder` is where external data may lie, what `memory`
/// names is read there, and is the caller's to keep for as long as anything views it.
Result<Model> read_model_bytes(std::string_view bytes, std::shared_ptr<const void> owner,
                               std::string folder = ".", std::string path = "model",
                               ExternalMemory memory = {});

/// The values of a tensor: a view of the file where its bytes are the elements, else an allocation.
Result<Tensor> decode(const Model& model, const TensorDef& tensor);
Result<Tensor> decode(const Model& model, const SparseTensorDef& tensor);

/// Checks extents and their product. Errors: kBadModel when negative, kMemory beyond kMaxElements,
/// kUnsupported beyond kMostAxes.
/// Everything that this frontend lets into a graph has passed it.
Status check_extents(const Shape& shape, std::string_view what);
inline constexpr int64_t kMaxElements =
    int64_t{1} << 36;                    // 256 GiB of f32: larger than any tensor of a device
inline constexpr size_t kMostAxes = 64;  // as in numpy

Error bad_model(std::string message, std::string node = "", std::string hint = "");

}  // namespace obelisk::frontends::onnx
