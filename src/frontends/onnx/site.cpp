#include "frontends/onnx/site.h"

namespace obelisk::frontends::onnx {

Item Item::of(Tensor tensor, std::string name) {
  Item item;
  item.kind = Kind::kTensor;
  item.type = tensor.type();
  item.constant = std::move(tensor);
  item.name = std::move(name);
  return item;
}

Item Item::sequence(std::vector<Item> items) {
  Item item;
  item.kind = Kind::kSequence;
  item.list = std::make_shared<const std::vector<Item>>(std::move(items));
  return item;
}

Item Item::optional(std::vector<Item> items) {
  Item item = sequence(std::move(items));
  item.kind = Kind::kOptional;
  return item;
}

Item Item::unknown(std::string reason) {
  Item item;
  item.kind = Kind::kUnknown;
  item.reason = std::move(reason);
  return item;
}

const Item* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent)
    if (const auto found = scope->names.find(name); found != scope->names.end())
      return &found->second;
  return nullptr;
}

// ---- looking --------------------------------------------------------------------------------

const Item& Site::in(int input) const {
  static const Item absent;
  return input < static_cast<int>(inputs.size()) ? inputs[input] : absent;
}

bool Site::wants(int output) const {
  return output < static_cast<int>(node.outputs.size()) && !node.outputs[output].empty();
}

int Site::wanted() const {
  int count = static_cast<int>(node.outputs.size());
  while (count > 0 && !wants(count - 1)) --count;
  return count;
}

int64_t Site::axis(int64_t axis, int64_t rank) {
  if (axis >= -rank && axis < rank) return axis < 0 ? axis + rank : axis;
  contradict(fmt::format("axis {} but the input has rank {}", axis, rank),
             fmt::format("an axis lies in [{}, {})", -rank, rank));
  return 0;
}

std::vector<int64_t> Site::ints(int input, std::string_view what) {
  if (in(input).is_constant()) return to_ints(in(input).constant);
  if (in(input).is_tensor())
    refuse(fmt::format("{} (input {}) depends on data", what, input),
           "make it a constant, or bind the value of the model's input that it comes from");
  else
    contradict(fmt::format("{} (input {}) is missing", what, input));
  return {};
}

// ---- making ---------------------------------------------------------------------------------

Items Site::emit(std::string_view op, Items inputs, ops::Attrs attrs, int outputs) {
  if (ok()) {
    auto made = importer.emit(op, std::move(inputs), std::move(attrs), name, outputs);
    if (made.ok()) return *std::move(made);
    fail(std::move(made.error()));
  }
  return Items(outputs, Item::unknown());
}

void Site::pass_through() { outputs = emit(op, inputs, attrs, std::max(1, wanted())); }

Item Site::scalar(DType dtype, double value) { return Item::of(tensor_of(dtype, {}, {value})); }

Item Site::filled(DType dtype, const Shape& shape, double value) {
  ops::Attrs attrs;
  attrs.set("value", tensor_of(dtype, {1}, {value}));
  return emit("ConstantOfShape", {vector(shape)}, attrs);
}

Item Site::cast(const Item& item, DType dtype) {
  if (item.type.dtype == dtype) return item;
  return emit("Cast", {item}, ops::Attrs().set("to", ops::number_of_dtype(dtype)));
}

Item Site::reshape(const Item& item, const Shape& shape) {
  if (item.type.shape == shape) return item;
  return emit("Reshape", {item, vector(shape)}, ops::Attrs().set("allowzero", 1));
}

Item Site::expand(const Item& item, const Shape& shape) {
  if (item.type.shape == shape) return item;
  return emit("Expand", {item, vector(shape)});
}

Item Site::slice(const Item& item, int64_t axis, int64_t begin, int64_t end, int64_t step) {
  return emit("Slice", {item, vector({begin}), vector({end}), vector({axis}), vector({step})});
}

Item Site::concat(const Items& items, int64_t axis) {
  if (items.size() == 1) return items[0];
  return emit("Concat", items, ops::Attrs().set("axis", axis));
}

Item Site::transpose(const Item& item, const std::vector<int64_t>& order) {
  return emit("Transpose", {item}, ops::Attrs().set("perm", order));
}

// ---- failing --------------------------------------------------------------------------------

void Site::refuse(std::string reason, std::string hint) {
  fail({Code::kUnsupported, "frontends", std::move(reason), name, std::move(hint)});
}

void Site::contradict(std::string message, std::string hint) {
  fail(bad_model(fmt::format("{}: {}", op, message), name, std::move(hint)));
}

void Site::fail(Error error) {
  if (failure) return;
  if (error.node.empty()) error.node = name;
  failure = std::move(error);
}

}  // namespace obelisk::frontends::onnx
