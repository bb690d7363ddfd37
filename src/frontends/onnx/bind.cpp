// Symbolic dimensions get their extents: by name, by the shape of an input, or by the value of one.
#include <algorithm>
#include <charconv>

#include "frontends/onnx/inspect.h"
#include "frontends/onnx/site.h"

namespace obelisk::frontends {
namespace {

Error usage(std::string message, std::string hint = "") {
  return {Code::kUsage, "frontends", std::move(message), "", std::move(hint)};
}

bool has_input(const onnx::Model& model, std::string_view name) {
  return std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(),
                     [&](const onnx::ValueDef& input) { return input.name == name; });
}

std::optional<int64_t> parse_extent(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc{} && end == text.data() + text.size();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

std::set<std::string_view> names_of_initializers(const onnx::Model& model) {
  std::set<std::string_view> names;
  for (const onnx::TensorDef& tensor : model.graph.initializers) names.insert(tensor.name);
  for (const onnx::SparseTensorDef& tensor : model.graph.sparse_initializers)
    names.insert(tensor.values.name);
  return names;
}

}  // namespace

Status bind_shape(const onnx::Model& model, std::string_view text, ImportOptions& options) {
  const size_t equals = text.rfind('=');
  const auto wrong = [&] {
    return usage(fmt::format("--shape '{}' is not understood", text),
                 "write NAME=2x128 for an input, or NAME=2 for a symbolic dimension");
  };
  if (equals == text.npos || equals == 0) return wrong();
  const std::string name(text.substr(0, equals));
  std::string_view rest = text.substr(equals + 1);
  Shape shape;
  while (!rest.empty()) {
    const size_t cut = rest.find('x');
    const std::optional<int64_t> extent = parse_extent(rest.substr(0, cut));
    if (!extent || cut == rest.size() - 1) return wrong();
    shape.push_back(*extent);
    rest = cut == rest.npos ? std::string_view() : rest.substr(cut + 1);
  }
  const auto twice = [&] {
    return usage(fmt::format("--shape binds '{}' to {}, but it was bound otherwise before", name,
                             text.substr(equals + 1)),
                 "give each name once");
  };
  if (has_input(model, name)) {
    const auto [known, fresh] = options.input_shapes.try_emplace(name, shape);
    if (!fresh && known->second != shape) return twice();
  } else if (shape.size() == 1) {
    const auto [known, fresh] = options.dimensions.try_emplace(name, shape[0]);
    if (!fresh && known->second != shape[0]) return twice();
  } else {
    return usage(fmt::format("--shape '{}': the model has no input '{}'", text, name),
                 "`obelisk inspect` prints the inputs");
  }
  return ok_status();
}

namespace onnx {

/// Matches given shapes against declared ones, and learns the extents of symbols from them.
Status Importer::bind_symbols() {
  std::set<std::string, std::less<>> known;
  for (const ValueDef& input : model_.graph.inputs)
    for (const DimensionDef& dimension : input.type.shape)
      if (!dimension.value && !dimension.symbol.empty())
        known.insert(std::string(dimension.symbol));
  for (const auto& [name, extent] : options_.dimensions) {
    if (!known.contains(name))
      return usage(fmt::format("the model has no input and no symbolic dimension '{}'", name),
                   fmt::format("its symbolic dimensions are: {}", fmt::join(known, ", ")));
    symbols_[name] = extent;
  }
  const auto match = [&](const ValueDef& input, const Shape& shape) -> Status {
    if (!input.type.has_shape) return ok_status();
    const bool same_rank = input.type.shape.size() == shape.size();
    for (size_t axis = 0; same_rank && axis < shape.size(); ++axis) {
      const DimensionDef& dimension = input.type.shape[axis];
      if (dimension.value && *dimension.value >= 0 && *dimension.value != shape[axis])
        return usage(fmt::format("input '{}': {} is given, but dimension {} is {} in the model",
                                 input.name, to_string(shape), axis, *dimension.value));
      if (dimension.symbol.empty()) continue;
      const auto [at, fresh] = symbols_.emplace(dimension.symbol, shape[axis]);
      if (fresh || at->second == shape[axis]) continue;
      std::string why =
          fmt::format("dimension '{}' is {} by one binding, and {} by input '{}' of {}",
                      dimension.symbol, at->second, shape[axis], input.name, to_string(shape));
      if (options_.dimensions.contains(std::string(dimension.symbol))) return usage(std::move(why));
      ambiguous_.try_emplace(std::string(dimension.symbol), std::move(why));
    }
    if (same_rank) return ok_status();
    return usage(fmt::format("input '{}': {} is given, but it has {} dimensions in the model",
                             input.name, to_string(shape), input.type.shape.size()));
  };
  for (const auto& [name, shape] : options_.input_shapes)
    if (!has_input(model_, name)) return usage(fmt::format("the model has no input '{}'", name));
  for (const auto& [name, tensor] : options_.bound_inputs)
    if (!has_input(model_, name)) return usage(fmt::format("the model has no input '{}'", name));
  for (const ValueDef& input : model_.graph.inputs) {
    const std::string name(input.name);
    if (const auto given = options_.input_shapes.find(name); given != options_.input_shapes.end())
      TRY_STATUS(match(input, given->second));
    if (const auto given = options_.bound_inputs.find(name); given != options_.bound_inputs.end())
      TRY_STATUS(match(input, given->second.shape()));
  }
  return ok_status();
}

/// The shape of an input; what nothing binds is added to `missing`.
Result<Shape> Importer::bound_shape(const ValueDef& input, Unbound& missing) {
  const std::string name(input.name);
  const auto given = options_.input_shapes.find(name);
  if (given != options_.input_shapes.end()) return given->second;
  Shape shape, suggested;  // with 2 for what is not known
  bool whole = !input.type.has_shape;
  if (whole) missing.what.push_back(fmt::format("the shape of input '{}'", name));
  for (const DimensionDef& dimension : input.type.shape) {
    const std::string symbol(dimension.symbol);
    const auto bound = symbols_.find(symbol);
    const bool known = dimension.value && *dimension.value >= 0;
    const bool by_symbol = !known && !symbol.empty();
    if (const auto two = ambiguous_.find(symbol); by_symbol && two != ambiguous_.end())
      return usage(two->second + fmt::format("; which one is that of input '{}'?", name),
                   fmt::format("give the shape of '{}' too", name));
    shape.push_back(known                                  ? *dimension.value
                    : by_symbol && bound != symbols_.end() ? bound->second
                                                           : 0);
    suggested.push_back(known || (by_symbol && bound != symbols_.end()) ? shape.back() : 2);
    if (known || (by_symbol && bound != symbols_.end())) continue;
    if (!by_symbol) {
      missing.what.push_back(fmt::format("dimension {} of input '{}'", shape.size() - 1, name));
      whole = true;
    } else if (missing.symbols.insert(symbol).second) {
      missing.what.push_back(fmt::format("dimension '{}' of input '{}'", symbol, name));
      missing.flags.push_back(fmt::format("--shape {}=2", symbol));
    }
  }
  if (!input.type.has_shape) suggested = {2, 3};
  if (whole) missing.flags.push_back(fmt::format("--shape {}={}", name, fmt::join(suggested, "x")));
  return shape;
}

Status Importer::enter_inputs(Scope& scope) {
  const std::set<std::string_view> defaults = names_of_initializers(model_);
  Unbound missing;
  std::set<std::string_view> seen;
  for (const ValueDef& input : model_.graph.inputs) {
    const std::string name(input.name);
    if (!seen.insert(input.name).second)
      return bad_model(fmt::format("the model has two inputs '{}'", name));
    if (const auto bound = options_.bound_inputs.find(name); bound != options_.bound_inputs.end()) {
      if (input.type.kind == TypeDef::Kind::kTensor &&
          to_dtype(input.type.element) != bound->second.dtype())
        return usage(fmt::format("input '{}' is {} but the value given is {}", name,
                                 to_string(input.type.element), to_string(bound->second.type())));
      scope.names[input.name] = Item::of(bound->second, name);
      continue;
    }
    if (defaults.contains(input.name)) continue;
    const std::optional<DType> dtype = to_dtype(input.type.element);
    if (input.type.kind != TypeDef::Kind::kTensor || !dtype) {
      const std::string type =
          input.type.kind == TypeDef::Kind::kTensor ? to_string(input.type.element) : "no tensor";
      scope.names[input.name] = Item::unknown(fmt::format(
          "the model's input '{}' is {}: only tensors of numbers or booleans can be run", name,
          type));
      continue;
    }
    TRY(const Shape shape, bound_shape(input, missing));
    TRY_STATUS(check_extents(shape, fmt::format("input '{}'", name)));
    Item item;
    item.kind = Item::Kind::kTensor;
    item.type = {*dtype, shape};
    item.id = graph_.add_input(name, item.type);
    scope.names[input.name] = std::move(item);
  }
  if (!missing.what.empty()) {
    Error error = usage(fmt::format("shapes have to be known when compiling, but these are not: {}",
                                    fmt::join(missing.what, ", ")));
    error.hint = fmt::format("{}", fmt::join(missing.flags, " "));
    return error;
  }
  // Names that an exporter gave twice: the shapes are what counts, and the ops say whether they
  // fit.
  for (const auto& [symbol, why] : ambiguous_) LOG(kWarning, "frontends", "{}", why);
  return ok_status();
}

}  // namespace onnx
}  // namespace obelisk::frontends
