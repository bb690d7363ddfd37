// The wire format of onnx.proto, message by message. protozero checks the framing and throws; the
// one catch stands in read_model_bytes().
#include <protozero/pbf_reader.hpp>

#include <filesystem>

#include "frontends/onnx/model.h"

namespace obelisk::frontends::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

constexpr int kMaxDepth =
    48;  // of graphs in attributes and of types in types; real models stay under 10

/// Thrown inside the reader only.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const int more = lead < 0x80       ? 0
                     : lead >> 5 == 6  ? 1
                     : lead >> 4 == 14 ? 2
                     : lead >> 3 == 30 ? 3
                                       : -1;
    if (more < 0 || at + more >= text.size()) return false;
    for (int k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[at + k]) >> 6) != 2) return false;
    at += more + 1;
  }
  return true;
}

// The getters of protozero only assert the wire type, so it is checked here.
void expect(const pbf_reader& in, pbf_wire_type wanted) {
  if (in.wire_type() != wanted)
    throw Malformed(fmt::format("field {} has a foreign wire type", in.tag()));
}
std::string_view text(pbf_reader& in) {
  expect(in, pbf_wire_type::length_delimited);
  const protozero::data_view data = in.get_view();
  return {data.data(), data.size()};
}
int64_t integer(pbf_reader& in) {
  expect(in, pbf_wire_type::varint);
  return in.get_int64();
}
int32_t number(pbf_reader& in) { return static_cast<int32_t>(integer(in)); }
float real(pbf_reader& in) {
  expect(in, pbf_wire_type::fixed32);
  return in.get_float();
}
pbf_reader message(pbf_reader& in) {
  const std::string_view bytes = text(in);
  return pbf_reader(bytes.data(), bytes.size());
}

/// A name: it travels into messages and JSON, so it has to be text.
std::string_view name(pbf_reader& in) {
  const std::string_view bytes = text(in);
  if (!is_utf8(bytes)) throw Malformed("a name is not UTF-8 text");
  return bytes;
}

// Repeated numbers come packed (one length-delimited run) or one by one; both are legal in one
// message.
void add_ints(pbf_reader& in, std::vector<int64_t>& out) {
  if (in.wire_type() == pbf_wire_type::length_delimited) {
    for (const int64_t value : in.get_packed_int64()) out.push_back(value);
  } else {
    out.push_back(integer(in));
  }
}

void add_floats(pbf_reader& in, std::vector<float>& out) {
  if (in.wire_type() == pbf_wire_type::length_delimited) {
    for (const float value : in.get_packed_float()) out.push_back(value);
  } else {
    out.push_back(real(in));
  }
}

std::pair<std::string_view, std::string_view> read_entry(pbf_reader in) {
  std::pair<std::string_view, std::string_view> entry;
  while (in.next()) switch (in.tag()) {
      case 1:
        entry.first = text(in);
        break;
      case 2:
        entry.second = text(in);
        break;
      default:
        in.skip();
    }
  return entry;
}

void read_opset(pbf_reader in, Opsets& opsets) {
  std::string domain;
  int64_t version = 0;
  while (in.next()) switch (in.tag()) {
      case 1:
        domain = std::string(name(in));
        break;
      case 2:
        version = integer(in);
        break;
      default:
        in.skip();
    }
  if (domain == "ai.onnx") domain.clear();
  opsets[domain] = version;
}

TensorDef read_tensor(pbf_reader in) {
  TensorDef tensor;
  const protozero::data_view whole = in.data();
  tensor.wire = {whole.data(), whole.size()};
  while (in.next()) switch (in.tag()) {
      case 1:
        add_ints(in, tensor.dims);
        break;
      case 2:
        tensor.type = static_cast<ElementType>(number(in));
        break;
      case 3:
        throw Malformed("a tensor is stored in segments, which no version of the format defines");
      case 8:
        tensor.name = name(in);
        break;
      case 9:
        tensor.raw = text(in);
        break;
      case 13: {
        const auto [key, value] = read_entry(message(in));
        if (key == "location") tensor.location = value;
        if (key == "offset") tensor.offset_text = value;
        if (key == "length") tensor.length_text = value;
        break;
      }
      case 14:
        tensor.external = number(in) == 1;
        break;
      default:
        in.skip();
    }
  return tensor;
}

SparseTensorDef read_sparse(pbf_reader in) {
  SparseTensorDef sparse;
  while (in.next()) switch (in.tag()) {
      case 1:
        sparse.values = read_tensor(message(in));
        break;
      case 2:
        sparse.indices = read_tensor(message(in));
        break;
      case 3:
        add_ints(in, sparse.dims);
        break;
      default:
        in.skip();
    }
  return sparse;
}

/// Whether a dimension's name says which one it is. Some exporters write "?", "" or "-1" for every
/// dimension that they do not know.
bool is_symbol(std::string_view name) {
  const size_t digits = name.find_first_not_of("-0123456789");
  return name.find_first_not_of("? ") != name.npos && !(name[0] == '-' && digits == name.npos);
}

DimensionDef read_dimension(pbf_reader in) {
  DimensionDef dimension;
  while (in.next()) switch (in.tag()) {
      case 1:
        dimension.value = integer(in);
        break;
      case 2:
        dimension.symbol = name(in);
        if (!is_symbol(dimension.symbol)) dimension.symbol = {};
        break;
      default:
        in.skip();
    }
  return dimension;
}

TypeDef read_type(pbf_reader in, int depth);

/// The message of a tensor type (or of a sparse one, which has the same fields).
void read_tensor_type(pbf_reader in, TypeDef& type) {
  while (in.next()) switch (in.tag()) {
      case 1:
        type.element = static_cast<ElementType>(number(in));
        break;
      case 2: {
        type.has_shape = true;
        type.shape.clear();
        pbf_reader shape = message(in);
        while (shape.next())
          if (shape.tag() == 1)
            type.shape.push_back(read_dimension(message(shape)));
          else
            shape.skip();
        break;
      }
      default:
        in.skip();
    }
}

/// The message of a sequence or an optional: one nested type.
void read_nested_type(pbf_reader in, TypeDef& type, int depth) {
  while (in.next()) switch (in.tag()) {
      case 1:
        type.nested = std::make_shared<TypeDef>(read_type(message(in), depth + 1));
        break;
      default:
        in.skip();
    }
}

TypeDef read_type(pbf_reader in, int depth) {
  if (depth > kMaxDepth) throw Malformed(fmt::format("types nest deeper than {}", kMaxDepth));
  using Kind = TypeDef::Kind;
  TypeDef type;
  while (in.next()) switch (in.tag()) {
      case 1:
        type.kind = Kind::kTensor;
        read_tensor_type(message(in), type);
        break;
      case 4:
        type.kind = Kind::kSequence;
        read_nested_type(message(in), type, depth);
        break;
      case 5:
        type.kind = Kind::kMap;
        in.skip();
        break;
      case 7:
        type.kind = Kind::kOpaque;
        in.skip();
        break;
      case 8:
        type.kind = Kind::kSparse;
        read_tensor_type(message(in), type);
        break;
      case 9:
        type.kind = Kind::kOptional;
        read_nested_type(message(in), type, depth);
        break;
      default:
        in.skip();
    }
  return type;
}

ValueDef read_value(pbf_reader in) {
  ValueDef value;
  while (in.next()) switch (in.tag()) {
      case 1:
        value.name = name(in);
        break;
      case 2:
        value.type = read_type(message(in), 0);
        break;
      default:
        in.skip();
    }
  return value;
}

Body read_body(pbf_reader in, int depth);

/// Old files leave the kind out; the field that is there says which.
AttributeDef::Kind guess_kind(const AttributeDef& attribute, AttributeDef::Kind seen) {
  return attribute.kind == AttributeDef::Kind::kUndefined ? seen : attribute.kind;
}

AttributeDef read_attribute(pbf_reader in, int depth) {
  using Kind = AttributeDef::Kind;
  AttributeDef attribute;
  Kind seen = Kind::kUndefined;
  while (in.next()) switch (in.tag()) {
      case 1:
        attribute.name = name(in);
        break;
      case 2:
        attribute.f = real(in);
        seen = Kind::kFloat;
        break;
      case 3:
        attribute.i = integer(in);
        seen = Kind::kInt;
        break;
      case 4:
        attribute.s = text(in);
        seen = Kind::kString;
        break;
      case 5:
        attribute.tensor = std::make_shared<TensorDef>(read_tensor(message(in)));
        seen = Kind::kTensor;
        break;
      case 6:
        attribute.graph = std::make_shared<Body>(read_body(message(in), depth + 1));
        seen = Kind::kGraph;
        break;
      case 7:
        add_floats(in, attribute.floats);
        seen = Kind::kFloats;
        break;
      case 8:
        add_ints(in, attribute.ints);
        seen = Kind::kInts;
        break;
      case 9:
        attribute.strings.push_back(text(in));
        seen = Kind::kStrings;
        break;
      case 10:
        seen = Kind::kTensors;
        in.skip();
        break;  // no operator of the format has these two
      case 11:
        seen = Kind::kGraphs;
        in.skip();
        break;
      case 14:
        attribute.type = std::make_shared<TypeDef>(read_type(message(in), 0));
        seen = Kind::kType;
        break;
      case 20:
        attribute.kind = static_cast<Kind>(number(in));
        break;
      case 21:
        attribute.reference = name(in);
        break;
      case 22:
        attribute.sparse = std::make_shared<SparseTensorDef>(read_sparse(message(in)));
        seen = Kind::kSparseTensor;
        break;
      default:
        in.skip();
    }
  attribute.kind = guess_kind(attribute, seen);
  return attribute;
}

NodeDef read_node(pbf_reader in, int depth) {
  NodeDef node;
  while (in.next()) switch (in.tag()) {
      case 1:
        node.inputs.push_back(name(in));
        break;
      case 2:
        node.outputs.push_back(name(in));
        break;
      case 3:
        node.name = name(in);
        break;
      case 4:
        node.op = name(in);
        break;
      case 5:
        node.attributes.push_back(read_attribute(message(in), depth));
        break;
      case 7:
        node.domain = name(in);
        break;
      case 8:
        node.overload = name(in);
        break;
      default:
        in.skip();
    }
  if (node.domain == "ai.onnx") node.domain = "";
  return node;
}

Body read_body(pbf_reader in, int depth) {
  if (depth > kMaxDepth) throw Malformed(fmt::format("graphs nest deeper than {}", kMaxDepth));
  Body body;
  while (in.next()) switch (in.tag()) {
      case 1:
        body.nodes.push_back(read_node(message(in), depth));
        break;
      case 2:
        body.name = name(in);
        break;
      case 5:
        body.initializers.push_back(read_tensor(message(in)));
        break;
      case 11:
        body.inputs.push_back(read_value(message(in)));
        break;
      case 12:
        body.outputs.push_back(read_value(message(in)));
        break;
      case 13:
        body.values.push_back(read_value(message(in)));
        break;
      case 15:
        body.sparse_initializers.push_back(read_sparse(message(in)));
        break;
      case 16:
        body.metadata.push_back(read_entry(message(in)));
        break;
      default:
        in.skip();
    }
  return body;
}

FunctionDef read_function(pbf_reader in) {
  FunctionDef function;
  while (in.next()) switch (in.tag()) {
      case 1:
        function.name = name(in);
        break;
      case 4:
        function.inputs.push_back(name(in));
        break;
      case 5:
        function.outputs.push_back(name(in));
        break;
      case 6:
        function.attributes.push_back(name(in));
        break;
      case 7:
        function.nodes.push_back(read_node(message(in), 1));
        break;
      case 9:
        read_opset(message(in), function.opsets);
        break;
      case 10:
        function.domain = name(in);
        break;
      case 11:
        function.attribute_defaults.push_back(read_attribute(message(in), 1));
        break;
      case 13:
        function.overload = name(in);
        break;
      default:
        in.skip();
    }
  return function;
}

void read_fields(pbf_reader in, Model& model, bool& has_graph) {
  while (in.next()) switch (in.tag()) {
      case 1:
        model.ir_version = integer(in);
        break;
      case 2:
        model.producer = name(in);
        break;
      case 3:
        model.producer_version = name(in);
        break;
      case 7:
        if (has_graph) throw Malformed("there are two graphs");
        model.graph = read_body(message(in), 0);
        has_graph = true;
        break;
      case 8:
        read_opset(message(in), model.opsets);
        break;
      case 14:
        model.metadata.push_back(read_entry(message(in)));
        break;
      case 25:
        model.functions.push_back(read_function(message(in)));
        break;
      default:
        in.skip();
    }
}

}  // namespace

Error bad_model(std::string message, std::string node, std::string hint) {
  return {Code::kBadModel, "frontends", std::move(message), std::move(node), std::move(hint)};
}

Result<Model> read_model_bytes(std::string_view bytes, std::shared_ptr<const void> owner,
                               std::string folder, std::string path, ExternalMemory memory) {
  Model model;
  model.owner = std::move(owner);
  model.files = std::make_shared<ExternalFiles>(std::move(folder), std::move(memory));
  model.path = path;
  if (bytes.empty()) return bad_model(fmt::format("'{}' is empty", path));
  bool has_graph = false;
  try {
    read_fields(pbf_reader(bytes.data(), bytes.size()), model, has_graph);
  } catch (const protozero::exception& problem) {
    return bad_model(fmt::format("'{}' is not a whole ONNX file ({})", path, problem.what()), "",
                     "the file may be cut short, or a pointer file of a large-file store");
  } catch (const Malformed& problem) {
    return bad_model(fmt::format("'{}': {}", path, problem.what()));
  }
  if (!has_graph) {
    return bad_model(fmt::format("'{}' is not an ONNX model: it holds no graph", path), "",
                     "the file may be a bare tensor or another format");
  }
  return model;
}

Result<Model> read_model(const std::string& path) {
  TRY(std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  const std::string_view bytes(reinterpret_cast<const char*>(file->data()), file->size());
  std::string folder = std::filesystem::path(path).parent_path().string();
  return read_model_bytes(bytes, file, folder.empty() ? "." : folder, path);
}

}  // namespace obelisk::frontends::onnx
