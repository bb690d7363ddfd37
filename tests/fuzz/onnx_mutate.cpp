// ONNX models as a tree of fields, read by the messages of onnx.proto and written again with the
// lengths that follow.
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/base.h"
#include "fuzz/mutate.h"
#include "ops/ops.h"

namespace obelisk::fuzz {
namespace {

using protozero::pbf_wire_type;

enum class Kind : uint8_t {
  kBytes,    // a name, a text, raw data
  kNumbers,  // varints, packed
  kModel,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kSparse,
  kValue,
  kType,
  kTensorType,
  kNestedType,  // of a sequence or an optional
  kShape,
  kDim,
  kOpset,
  kFunction,
  kEntry,
};

/// What a field with a length holds, by the message that it stands in.
Kind kind_of(Kind message, uint32_t field) {
  static const std::map<std::pair<Kind, uint32_t>, Kind> table = {
      {{Kind::kModel, 7}, Kind::kGraph},         {{Kind::kModel, 8}, Kind::kOpset},
      {{Kind::kModel, 14}, Kind::kEntry},        {{Kind::kModel, 25}, Kind::kFunction},
      {{Kind::kGraph, 1}, Kind::kNode},          {{Kind::kGraph, 5}, Kind::kTensor},
      {{Kind::kGraph, 11}, Kind::kValue},        {{Kind::kGraph, 12}, Kind::kValue},
      {{Kind::kGraph, 13}, Kind::kValue},        {{Kind::kGraph, 15}, Kind::kSparse},
      {{Kind::kNode, 5}, Kind::kAttribute},      {{Kind::kAttribute, 5}, Kind::kTensor},
      {{Kind::kAttribute, 6}, Kind::kGraph},     {{Kind::kAttribute, 8}, Kind::kNumbers},
      {{Kind::kAttribute, 10}, Kind::kTensor},   {{Kind::kAttribute, 11}, Kind::kGraph},
      {{Kind::kAttribute, 14}, Kind::kType},     {{Kind::kAttribute, 22}, Kind::kSparse},
      {{Kind::kTensor, 1}, Kind::kNumbers},      {{Kind::kTensor, 5}, Kind::kNumbers},
      {{Kind::kTensor, 7}, Kind::kNumbers},      {{Kind::kTensor, 11}, Kind::kNumbers},
      {{Kind::kTensor, 13}, Kind::kEntry},       {{Kind::kSparse, 1}, Kind::kTensor},
      {{Kind::kSparse, 2}, Kind::kTensor},       {{Kind::kSparse, 3}, Kind::kNumbers},
      {{Kind::kValue, 2}, Kind::kType},          {{Kind::kType, 1}, Kind::kTensorType},
      {{Kind::kType, 4}, Kind::kNestedType},     {{Kind::kType, 8}, Kind::kTensorType},
      {{Kind::kType, 9}, Kind::kNestedType},     {{Kind::kTensorType, 2}, Kind::kShape},
      {{Kind::kNestedType, 1}, Kind::kType},     {{Kind::kShape, 1}, Kind::kDim},
      {{Kind::kFunction, 7}, Kind::kNode},       {{Kind::kFunction, 9}, Kind::kOpset},
      {{Kind::kFunction, 11}, Kind::kAttribute},
  };
  const auto found = table.find({message, field});
  return found == table.end() ? Kind::kBytes : found->second;
}
bool is_message(Kind kind) { return kind >= Kind::kModel; }

struct Field {
  uint32_t number = 0;
  pbf_wire_type wire = pbf_wire_type::varint;
  Kind kind = Kind::kBytes;       // of what has a length
  uint64_t value = 0;             // of a varint, or the bits of a fixed width
  std::string bytes;              // kBytes
  std::vector<uint64_t> numbers;  // kNumbers
  std::vector<Field> fields;      // of a message

  Field* find(uint32_t which) {
    for (Field& each : fields)
      if (each.number == which) return &each;
    return nullptr;
  }
};

constexpr int kDeepest = 24;

std::vector<Field> read(Kind kind, protozero::data_view bytes, int depth) {
  std::vector<Field> out;
  for (protozero::pbf_reader in(bytes); in.next();) {
    Field field;
    field.number = in.tag(), field.wire = in.wire_type();
    switch (field.wire) {
      case pbf_wire_type::varint:
        field.value = in.get_uint64();
        break;
      case pbf_wire_type::fixed64:
        field.value = in.get_fixed64();
        break;
      case pbf_wire_type::fixed32:
        field.value = in.get_fixed32();
        break;
      default: {
        const protozero::data_view view = in.get_view();
        field.kind = kind_of(kind, field.number);
        if (is_message(field.kind) && depth < kDeepest) {
          field.fields = read(field.kind, view, depth + 1);
        } else if (field.kind == Kind::kNumbers) {
          const char* at = view.data();
          const char* const end = at + view.size();
          while (at != end) field.numbers.push_back(protozero::decode_varint(&at, end));
        } else {
          field.kind = Kind::kBytes, field.bytes.assign(view.data(), view.size());
        }
      }
    }
    out.push_back(std::move(field));
  }
  return out;
}

void write(const std::vector<Field>& fields, std::string& out) {
  protozero::pbf_writer to(out);
  for (const Field& field : fields) {
    switch (field.wire) {
      case pbf_wire_type::varint:
        to.add_uint64(field.number, field.value);
        break;
      case pbf_wire_type::fixed64:
        to.add_fixed64(field.number, field.value);
        break;
      case pbf_wire_type::fixed32:
        to.add_fixed32(field.number, static_cast<uint32_t>(field.value));
        break;
      default: {
        std::string inside;
        if (is_message(field.kind)) write(field.fields, inside);
        for (const uint64_t number : field.numbers)
          protozero::write_varint(std::back_inserter(inside), number);
        to.add_bytes(field.number, field.kind == Kind::kBytes ? field.bytes : inside);
      }
    }
  }
}

Field text_field(uint32_t number, std::string bytes) {
  Field field;
  field.number = number, field.wire = pbf_wire_type::length_delimited;
  field.bytes = std::move(bytes);
  return field;
}

/// What can be changed in a model.
struct Model {
  Field root;
  std::vector<Field*> messages;               // every one
  std::map<Kind, std::vector<Field*>> kinds;  // by kind, lists of numbers and texts too
  std::vector<Field*> varints, reals;
  std::vector<uint64_t> values;    // numbers that stand somewhere
  std::vector<std::string> names;  // of values

  void look_around() {
    messages.clear(), kinds.clear(), varints.clear(), reals.clear(), values.clear();
    std::set<std::string> named;
    look(root, named);
    names.assign(named.begin(), named.end());
  }

 private:
  void look(Field& message, std::set<std::string>& named) {
    messages.push_back(&message), kinds[message.kind].push_back(&message);
    for (Field& field : message.fields) {
      if (field.wire == pbf_wire_type::varint) {
        varints.push_back(&field), values.push_back(field.value);
      } else if (field.wire != pbf_wire_type::length_delimited) {
        reals.push_back(&field);
      } else if (is_message(field.kind)) {
        look(field, named);
      } else {
        kinds[field.kind].push_back(&field);
        values.insert(values.end(), field.numbers.begin(), field.numbers.end());
        if (is_name(message.kind, field.number)) named.insert(field.bytes);
      }
    }
  }

 public:
  /// Whether a field names a value: a node's inputs and outputs, an initializer, a port.
  static bool is_name(Kind message, uint32_t field) {
    switch (message) {
      case Kind::kNode:
        return field == 1 || field == 2;
      case Kind::kTensor:
        return field == 8;
      case Kind::kValue:
        return field == 1;
      case Kind::kFunction:
        return field == 4 || field == 5;
      default:
        return false;
    }
  }
};

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {
#define OP(name, ...) #name,
#include "ops/ops.def"
#undef OP
    };
    for (const char* other : {"If",
                              "Loop",
                              "Scan",
                              "Constant",
                              "ConstantOfShape",
                              "Shape",
                              "Size",
                              "Dropout",
                              "Upsample",
                              "CastLike",
                              "SequenceConstruct",
                              "SequenceAt",
                              "SequenceEmpty",
                              "SequenceInsert",
                              "SequenceErase",
                              "SequenceLength",
                              "SequenceMap",
                              "SplitToSequence",
                              "ConcatFromSequence",
                              "Optional",
                              "OptionalGetElement",
                              "OptionalHasElement",
                              "NonZero",
                              "NonMaxSuppression",
                              "Unique",
                              "StringNormalizer",
                              "FusedMatMul",
                              "BiasGelu",
                              "SkipLayerNormalization",
                              "EmbedLayerNormalization"})
      all.push_back(other);
    return all;
  }();
  return names;
}

const std::vector<std::string>& attribute_names() {
  static const std::vector<std::string> names = {"axis",
                                                 "axes",
                                                 "perm",
                                                 "keepdims",
                                                 "kernel_shape",
                                                 "strides",
                                                 "pads",
                                                 "dilations",
                                                 "group",
                                                 "auto_pad",
                                                 "ceil_mode",
                                                 "to",
                                                 "alpha",
                                                 "beta",
                                                 "epsilon",
                                                 "mode",
                                                 "value",
                                                 "equation",
                                                 "num_outputs",
                                                 "hidden_size",
                                                 "direction",
                                                 "batch_dims",
                                                 "blocksize",
                                                 "largest",
                                                 "sorted",
                                                 "noop_with_empty_axes",
                                                 "allowzero",
                                                 "body",
                                                 "then_branch",
                                                 "else_branch",
                                                 "start",
                                                 "end",
                                                 "split",
                                                 "shape",
                                                 "transA",
                                                 "transB",
                                                 "num_heads",
                                                 "reduction",
                                                 "coordinate_transformation_mode",
                                                 "num_scan_inputs"};
  return names;
}

void change_op(Model& model, Dice& dice) {
  auto& nodes = model.kinds[Kind::kNode];
  if (nodes.empty()) return;
  Field& node = *dice.pick(nodes);
  if (Field* op = node.find(4)) op->bytes = dice.pick(op_names());
}

/// A node reads another value, one more, one less, or none where it read one.
void change_edge(Model& model, Dice& dice) {
  auto& nodes = model.kinds[Kind::kNode];
  if (nodes.empty() || model.names.empty()) return;
  Field& node = *dice.pick(nodes);
  std::vector<size_t> inputs;
  for (size_t k = 0; k < node.fields.size(); ++k)
    if (node.fields[k].number == 1) inputs.push_back(k);
  const std::string name = dice.once_in(6) ? "" : dice.pick(model.names);
  if (inputs.empty() || dice.once_in(4)) {
    node.fields.push_back(text_field(1, name));
  } else if (dice.once_in(4)) {
    node.fields.erase(node.fields.begin() + static_cast<int64_t>(dice.pick(inputs)));
  } else {
    node.fields[dice.pick(inputs)].bytes = name;
  }
}

/// A value has another name wherever it is named: a new one, or one that another value has.
void change_name(Model& model, Dice& dice) {
  if (model.names.empty()) return;
  const std::string before = dice.pick(model.names),
                    now = dice.once_in(2) ? "v" + std::to_string(dice.below(9))
                                          : std::string(dice.pick(model.names));
  for (Field* message : model.messages)
    for (Field& field : message->fields)
      if (Model::is_name(message->kind, field.number) && field.bytes == before) field.bytes = now;
}

int bytes_of_element(uint64_t onnx_type) {
  constexpr int kSizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1};
  return onnx_type < std::size(kSizes) ? kSizes[onnx_type] : 1;
}

/// A tensor's shape or element type, and as much data as that has.
void change_tensor(Model& model, Dice& dice) {
  auto& tensors = model.kinds[Kind::kTensor];
  if (tensors.empty()) return;
  Field& tensor = *dice.pick(tensors);
  Field *type = tensor.find(2), *raw = tensor.find(9);
  if (type == nullptr) return;
  std::vector<uint64_t> dims;
  for (const Field& field : tensor.fields)
    if (field.number == 1) {
      if (field.wire == pbf_wire_type::varint) dims.push_back(field.value);
      dims.insert(dims.end(), field.numbers.begin(), field.numbers.end());
    }
  if (dice.once_in(3)) {
    type->value = 1 + dice.below(23);
  } else {
    switch (dice.below(5)) {
      case 0:
        dims.push_back(dice.below(4));
        break;
      case 1:
        if (!dims.empty()) dims.erase(dims.begin() + static_cast<int64_t>(dice.below(dims.size())));
        break;
      case 2:
        dims.insert(dims.begin(), 1);
        break;
      case 3:
        if (dims.size() > 1) std::swap(dice.pick(dims), dice.pick(dims));
        break;
      default:
        if (!dims.empty()) {
          uint64_t& dim = dice.pick(dims);
          dim = another_number(dim, dims, dice);
        }
    }
  }
  std::erase_if(tensor.fields, [](const Field& field) { return field.number == 1; });
  uint64_t count = 1;
  for (const uint64_t dim : dims) {
    Field field;
    field.number = 1, field.value = dim;
    tensor.fields.push_back(field);
    count = dim > 4096 ? 4096 : std::min<uint64_t>(4096, count * dim);
  }
  type = tensor.find(2), raw = tensor.find(9);
  if (raw != nullptr && type != nullptr) {
    const std::string before = raw->bytes.empty() ? std::string(1, '\0') : raw->bytes;
    const size_t size = count * static_cast<size_t>(bytes_of_element(type->value));
    std::string& bytes = raw->bytes;
    bytes.resize(size);
    for (size_t k = 0; k < size; ++k) bytes[k] = before[k % before.size()];
  }
  for (Field& field : tensor.fields)
    if (field.kind == Kind::kNumbers && !field.numbers.empty() && count <= 256) {
      const std::vector<uint64_t> before = field.numbers;
      field.numbers.resize(count);
      for (size_t k = 0; k < field.numbers.size(); ++k)
        field.numbers[k] = before[k % before.size()];
    }
}

/// A number of an attribute's list, the list's length, or the attribute's name.
void change_attribute(Model& model, Dice& dice) {
  auto& attributes = model.kinds[Kind::kAttribute];
  if (attributes.empty()) return;
  Field& attribute = *dice.pick(attributes);
  if (dice.once_in(4)) {
    if (Field* name = attribute.find(1)) name->bytes = dice.pick(attribute_names());
    return;
  }
  if (dice.once_in(6)) {  // another kind of value
    if (Field* type = attribute.find(20)) type->value = 1 + dice.below(14);
    return;
  }
  if (attribute.fields.empty()) return;
  Field& field = dice.pick(attribute.fields);
  if (field.kind == Kind::kNumbers && !field.numbers.empty()) {
    if (dice.once_in(3)) {
      field.numbers.push_back(dice.pick(field.numbers));
    } else if (dice.once_in(3)) {
      field.numbers.pop_back();
    } else {
      uint64_t& number = dice.pick(field.numbers);
      number = another_number(number, model.values, dice);
    }
  } else if (field.wire == pbf_wire_type::varint) {
    field.value = another_number(field.value, model.values, dice);
  }
}

/// Fields of one message and number: one is left out, told twice, or two change places.
void change_entries(Model& model, Dice& dice) {
  Field& message = *dice.pick(model.messages);
  if (message.fields.empty()) return;
  const size_t k = dice.below(message.fields.size());
  switch (dice.below(3)) {
    case 0:
      message.fields.erase(message.fields.begin() + static_cast<int64_t>(k));
      return;
    case 1: {
      Field copy = message.fields[k];
      message.fields.insert(message.fields.begin() + static_cast<int64_t>(k), std::move(copy));
      return;
    }
    default:
      std::swap(message.fields[k], message.fields[dice.below(message.fields.size())]);
  }
}

size_t size_of(const Field& field) {
  size_t size = 1;
  for (const Field& each : field.fields) size += size_of(each);
  return size;
}

/// A message in the place of another of its kind, or a graph inside an attribute.
void graft(Model& model, Dice& dice) {
  const Field from = *dice.pick(model.messages);
  if (from.kind == Kind::kModel || size_of(from) > 400) return;
  if (from.kind == Kind::kGraph && dice.once_in(2) && !model.kinds[Kind::kNode].empty()) {
    constexpr const char* kNames[] = {"body", "then_branch", "else_branch"};
    Field attribute;
    attribute.number = 5, attribute.wire = pbf_wire_type::length_delimited;
    attribute.kind = Kind::kAttribute;
    Field type;
    type.number = 20, type.value = 5;  // a graph
    Field inside = from;
    inside.number = 6;
    attribute.fields = {text_field(1, dice.pick(kNames)), type, inside};
    dice.pick(model.kinds[Kind::kNode])->fields.push_back(std::move(attribute));
    return;
  }
  Field& to = *dice.pick(model.kinds[from.kind]);
  const uint32_t number = to.number;
  to = from, to.number = number;
}

std::optional<Model> model_of(std::string_view bytes) {
  Model model;
  model.root.kind = Kind::kModel;
  try {
    model.root.fields = read(Kind::kModel, {bytes.data(), bytes.size()}, 0);
  } catch (const protozero::exception&) {
    return {};
  }
  return model;
}

}  // namespace

std::string mutate_onnx(std::string_view bytes, size_t most, Dice& dice, const Scramble& scramble) {
  std::optional<Model> model = model_of(bytes);
  if (!model || model->root.fields.empty() || dice.once_in(16))
    return scramble(std::string(bytes), most);
  const size_t edits = 1 + (dice.once_in(3) ? dice.below(4) : 0);
  for (size_t k = 0; k < edits; ++k) {
    model->look_around();
    switch (dice.below(10)) {
      case 0:
        if (Field* field = model->varints.empty() ? nullptr : dice.pick(model->varints))
          field->value = another_number(field->value, model->values, dice);
        break;
      case 1:
        if (Field* field = model->reals.empty() ? nullptr : dice.pick(model->reals))
          field->value = another_number(field->value, {}, dice);
        break;
      case 2:
        change_op(*model, dice);
        break;
      case 3:
        change_edge(*model, dice);
        break;
      case 4:
        change_name(*model, dice);
        break;
      case 5:
        change_tensor(*model, dice);
        break;
      case 6:
        change_attribute(*model, dice);
        break;
      case 7:
        change_entries(*model, dice);
        break;
      case 8:
        graft(*model, dice);
        break;
      default:
        if (auto& texts = model->kinds[Kind::kBytes]; !texts.empty()) {
          Field& field = *dice.pick(texts);
          field.bytes = scramble(field.bytes, field.bytes.size() + 16);
        }
    }
  }
  std::string out;
  write(model->root.fields, out);
  return out.size() <= most ? out : scramble(std::string(bytes), most);
}

}  // namespace obelisk::fuzz
