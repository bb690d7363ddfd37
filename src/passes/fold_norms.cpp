#include "passes/fold_norms.h"

#include <algorithm>

#include "base/parallel.h"
#include "passes/beside.h"
#include "passes/moves.h"

namespace obelisk::passes {
namespace {

constexpr int64_t kBlock = 64;  // elements of k that tiles take at once

/// A vector of the row's length, as f32.
std::optional<std::vector<float>> along_row(const Graph& graph, ValueId value, int64_t width) {
  const Tensor* tensor = constant(graph, value);
  if (tensor == nullptr || tensor->count() != width || tensor->shape().empty() ||
      tensor->shape().back() != width)
    return std::nullopt;
  std::vector<float> out(static_cast<size_t>(width));
  for (int64_t k = 0; k < width; ++k)
    out[static_cast<size_t>(k)] = static_cast<float>(tensor->get_double(k));
  return out;
}

/// Whether a move hands on its input's rows one after the other: only dimensions of one element
/// come, go or change places.
bool hands_on_rows(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!keeps_order(node.op) && node.op != Op::Transpose) return false;
  const Shape &from = graph.type(node.inputs[0]).shape, &to = graph.type(node.outputs[0]).shape;
  const auto longer = [](const Shape& shape) {
    Shape out;
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(out),
                 [](int64_t extent) { return extent != 1; });
    return out;
  };
  if (from.empty() || to.empty() || from.back() != to.back() || longer(from) != longer(to))
    return false;
  if (node.op != Op::Transpose) return true;
  std::vector<int64_t> order = order_of(graph, id);
  std::erase_if(order, [&](int64_t axis) { return from[static_cast<size_t>(axis)] == 1; });
  return std::is_sorted(order.begin(), order.end());
}

struct Norm {
  NodeId node = kNone;
  ValueId x = kNone, y = kNone;
  bool centred = false;
  double epsilon = 0;
  std::vector<float> scale, shift;  // shift: empty where there is none
  std::vector<Product> products;    // that read y
  std::vector<size_t> moved;        // of which these do behind a move
  std::vector<NodeId> others;       // elementwise
  int64_t width() const { return static_cast<int64_t>(scale.size()); }
};

/// Whether a reshape keeps the last axis: rows of several axes become rows of one, or the reverse.
bool regroups_rows(const Graph& graph, const Node& node) {
  const Shape& from = graph.type(node.inputs[0]).shape;
  const Shape& to = graph.type(node.outputs[0]).shape;
  return node.op == Op::Reshape && !from.empty() && !to.empty() && from.back() == to.back();
}

/// `gemms`: a Gemm counts as the MatMul that unflatten_gemm makes of it.
std::optional<Norm> read_norm(const Graph& graph, NodeId id, Reason& why, bool gemms = false) {
  const Node& node = graph.node(id);
  if (node.op != Op::LayerNormalization && node.op != Op::RMSNormalization) return std::nullopt;
  const Type type = graph.type(node.inputs[0]);
  if (!is_half(type.dtype) || type.rank() < 2 || type.count() == 0) return std::nullopt;
  if (graph.type(node.outputs[0]).dtype != type.dtype) return std::nullopt;
  const int64_t axis = node.attrs.get_int("axis", -1), width = type.shape.back();
  if ((axis != -1 && axis != type.rank() - 1) || width % kBlock != 0) return std::nullopt;
  Norm norm{.node = id,
            .x = node.inputs[0],
            .y = node.outputs[0],
            .centred = node.op == Op::LayerNormalization};
  norm.epsilon = node.attrs.get_float("epsilon", 1e-5f);
  for (size_t k = 1; k < node.outputs.size(); ++k)
    if (node.outputs[k] != kNone &&
        (!graph.users(node.outputs[k]).empty() || graph.is_output(node.outputs[k]))) {
      why.no("its statistics are read");
      return std::nullopt;
    }
  auto scale = along_row(graph, node.inputs[1], width);
  if (!scale) {
    why.no("its scale is no constant of a row's length");
    return std::nullopt;
  }
  norm.scale = std::move(*scale);
  if (node.inputs.size() > 2 && node.inputs[2] != kNone) {
    auto shift = along_row(graph, node.inputs[2], width);
    if (!shift) {
      why.no("its shift is no constant of a row's length");
      return std::nullopt;
    }
    norm.shift = std::move(*shift);
  }
  if (graph.is_output(norm.y)) {
    why.no("its answer is one of the graph's");
    return std::nullopt;
  }
  for (NodeId user : graph.users(norm.y)) {
    const Node& reader = graph.node(user);
    Reason ignored;
    // A product may read y with its dimensions of one element elsewhere.
    const bool moves = reader.outputs.size() == 1 &&
                       (hands_on_rows(graph, user) || (gemms && regroups_rows(graph, reader))) &&
                       has_one_reader(graph, reader.outputs[0]);
    const NodeId multiplies = moves ? graph.users(reader.outputs[0]).front() : user;
    const auto product = gemms || graph.node(multiplies).op == Op::MatMul
                             ? constant_product(graph, multiplies, ignored)
                             : std::nullopt;
    if (product && graph.node(multiplies).inputs[0] == (moves ? reader.outputs[0] : norm.y) &&
        graph.type(product->weights).dtype == type.dtype) {
      if (moves) norm.moved.push_back(norm.products.size());
      norm.products.push_back(*product);
    } else if (ops::row(reader.op).kind == ops::Kind::kMap && reader.outputs.size() == 1 &&
               graph.type(reader.outputs[0]).shape == type.shape) {
      norm.others.push_back(user);
    } else {
      why.no(fmt::format(
          "{} '{}' reads it, which is neither elementwise nor a product with constant weights",
          ops::to_string(reader.op), reader.name));
      return std::nullopt;
    }
  }
  if (norm.products.empty()) return std::nullopt;
  return norm;
}

/// Weights scaled along k, with what their columns sum to: those of the scaled ones as they were
/// rounded, and of the weights times `shift`.
struct Scaled {
  Tensor weights;
  std::vector<float> sums, shifts;
};

Scaled scaled(const Tensor& weights, const Norm& norm) {
  constexpr int64_t kColumns = 64;  // of a job
  const int64_t depth = weights.shape()[0], columns = weights.shape()[1];
  Scaled out{Tensor::allocate(weights.type()), std::vector<float>(static_cast<size_t>(columns)),
             std::vector<float>(static_cast<size_t>(columns))};
  const auto* from = static_cast<const uint16_t*>(weights.data());
  auto* to = static_cast<uint16_t*>(out.weights.mutable_data());
  for_each_on_all_cores(static_cast<size_t>((columns + kColumns - 1) / kColumns), [&](size_t job) {
    const int64_t first = static_cast<int64_t>(job) * kColumns,
                  count = std::min(kColumns, columns - first);
    double sums[kColumns] = {}, shifts[kColumns] = {};
    float row[kColumns];
    for (int64_t k = 0; k < depth; ++k) {
      const uint16_t* source = from + k * columns + first;
      uint16_t* target = to + k * columns + first;
      const float g = norm.scale[static_cast<size_t>(k)],
                  b = norm.shift.empty() ? 0 : norm.shift[static_cast<size_t>(k)];
      widen(weights.dtype(), source, row, count);
      for (int64_t n = 0; n < count; ++n) shifts[n] += double(b) * row[n], row[n] *= g;
      narrow(weights.dtype(), row, target, count);
      widen(weights.dtype(), target, row, count);
      for (int64_t n = 0; n < count; ++n) sums[n] += row[n];
    }
    for (int64_t n = 0; n < count; ++n) {
      out.sums[static_cast<size_t>(first + n)] = static_cast<float>(sums[n]);
      out.shifts[static_cast<size_t>(first + n)] = static_cast<float>(shifts[n]);
    }
  });
  return out;
}

ValueId vector_of(Graph& graph, const std::vector<float>& values) {
  return graph.add_constant(
      tensor_of(DType::f32, {static_cast<int64_t>(values.size())}, {values.begin(), values.end()}));
}

ValueId cast(Graph& graph, ValueId value, DType to, const std::string& name) {
  Attrs attrs = Attrs().set("to", ops::number_of_dtype(to));
  if (bits(to) < bits(graph.type(value).dtype)) attrs.set("loose", int64_t{1});
  return graph.must_add(Op::Cast, {value}, std::move(attrs), name);
}

/// What is added to a product's answer and nothing else reads: a constant of its columns.
struct Bias {
  ValueId answer = kNone;
  std::vector<float> values;
};
std::optional<Bias> bias_of(const Graph& graph, ValueId product) {
  if (!has_one_reader(graph, product)) return std::nullopt;
  const Node& add = graph.node(graph.users(product).front());
  if (add.op != Op::Add || graph.type(add.outputs[0]) != graph.type(product)) return std::nullopt;
  const ValueId other = add.inputs[add.inputs[0] == product ? 1 : 0];
  auto values = along_row(graph, other, graph.type(product).shape.back());
  if (!values) return std::nullopt;
  return Bias{add.outputs[0], std::move(*values)};
}

/// The split of a product's columns into two halves, where nothing else reads it.
NodeId halves_of(const Graph& graph, const Product& product) {
  if (!has_one_reader(graph, product.answer)) return kNone;
  const NodeId id = graph.users(product.answer).front();
  const Node& split = graph.node(id);
  const int64_t rank = graph.type(product.answer).rank(), axis = split.attrs.get_int("axis", 0);
  if (split.op != Op::Split || split.outputs.size() != 2 || (axis != -1 && axis != rank - 1))
    return kNone;
  for (ValueId half : split.outputs)
    if (half == kNone || graph.type(half).shape.back() * 2 != product.columns) return kNone;
  return id;
}

void fold(Graph& graph, const Norm& norm) {
  const DType half = graph.type(norm.x).dtype;
  const std::string name = graph.node(norm.node).name;
  ValueId mean = kNone, inverse = kNone;  // of the first product: the residual's
  for (const Product& product : norm.products) {
    const std::string named = graph.node(product.node).name;
    const Scaled by = scaled(graph.value(product.weights).constant, norm);
    const ValueId weights = graph.add_constant(by.weights);
    const ValueId sum = graph.must_add(
        Op::MatMul,
        {cast(graph, norm.x, DType::f32, named), cast(graph, weights, DType::f32, named)}, {},
        named);
    // A gate and what it gates stay halves of one product, which meet in its epilogue.
    const NodeId halves = halves_of(graph, product);
    std::vector<ValueId> sums{sum}, answers{product.answer};
    if (halves != kNone) {
      const Node split = graph.node(halves);
      std::vector<ValueId> inputs = split.inputs;
      inputs[0] = sum;
      const auto made = graph.add_node(Op::Split, inputs, split.attrs, split.name, 2);
      CHECK(made.ok(), "{}", made.error().text());
      sums = graph.node(*made).outputs, answers = split.outputs;
    }
    const Attrs how = Attrs().set("epsilon", norm.epsilon).set("centred", int64_t{norm.centred});
    const auto made = graph.add_node(Op::NormStatistics, {norm.x, sums[0]}, how, name, 2);
    CHECK(made.ok(), "{}", made.error().text());
    const ValueId m = graph.node(*made).outputs[0], r = graph.node(*made).outputs[1];
    if (mean == kNone) mean = m, inverse = r;
    const size_t each = by.sums.size() / sums.size();
    for (size_t side = 0; side < sums.size(); ++side) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + side * each, all.begin() + (side + 1) * each);
      };
      ValueId answer = sums[side], replaced = answers[side];
      if (norm.centred)
        answer = graph.must_add(
            Op::Sub,
            {answer, graph.must_add(Op::Mul, {m, vector_of(graph, part(by.sums))}, {}, named)}, {},
            named);
      answer = graph.must_add(Op::Mul, {answer, r}, {}, named);
      std::vector<float> added = part(by.shifts);
      const auto bias = bias_of(graph, replaced);
      if (bias) {
        replaced = bias->answer;
        for (size_t n = 0; n < added.size(); ++n) added[n] += bias->values[n];
      }
      if (bias || !norm.shift.empty())
        answer = graph.must_add(Op::Add, {answer, vector_of(graph, added)}, {}, named);
      replace_value(graph, replaced, cast(graph, answer, half, named));
    }
  }
  if (norm.others.empty()) return;
  ValueId own = cast(graph, norm.x, DType::f32, name);
  if (norm.centred) own = graph.must_add(Op::Sub, {own, mean}, {}, name);
  own = graph.must_add(Op::Mul, {own, inverse}, {}, name);
  own = graph.must_add(Op::Mul, {own, vector_of(graph, norm.scale)}, {}, name);
  if (!norm.shift.empty())
    own = graph.must_add(Op::Add, {own, vector_of(graph, norm.shift)}, {}, name);
  replace_value(graph, norm.y, cast(graph, own, half, name));
}

/// Products behind a move read the norm itself, and what they give is moved, behind their biases:
/// rows stay in their order.
void sink_moves(Graph& graph, Norm& norm) {
  for (size_t k : norm.moved) {
    const Product product = norm.products[k];
    const Node node = graph.node(product.node);
    ValueId value = graph.must_add(Op::MatMul, {norm.y, product.weights}, node.attrs, node.name),
            moved = product.answer;
    Reason ignored;
    norm.products[k] = *constant_product(graph, graph.value(value).producer, ignored);
    if (const auto bias = bias_of(graph, moved)) {
      const std::vector<double> values(bias->values.begin(), bias->values.end());
      moved = bias->answer;
      value = graph.must_add(Op::Add,
                             {value, graph.add_constant(tensor_of(graph.type(value).dtype,
                                                                  {product.columns}, values))},
                             {}, node.name);
    }
    const ValueId shape = graph.add_constant(tensor_of(graph.type(moved).shape));
    replace_value(graph, moved, graph.must_add(Op::Reshape, {value, shape}, {}, node.name));
  }
}

/// Whether elementwise ops make `value` of a product that split_products computes in parts.
bool adds_parts(const Graph& graph, ValueId value, const OfProduct& in_planes, int most = 6) {
  const NodeId id = graph.value(value).producer;
  if (id == kNone || most == 0) return false;
  const Node& node = graph.node(id);
  Reason ignored;
  if (const auto product = constant_product(graph, id, ignored))
    return node.op == Op::MatMul &&
           in_planes(graph.type(value).dtype, graph.type(value).count() / product->columns,
                     product->columns, graph.type(product->weights).shape[0]);
  if (hands_on_rows(graph, id))
    return has_one_reader(graph, node.inputs[0]) &&
           adds_parts(graph, node.inputs[0], in_planes, most - 1);
  if (ops::row(node.op).kind != ops::Kind::kMap) return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
    return input != kNone && has_one_reader(graph, input) &&
           adds_parts(graph, input, in_planes, most - 1);
  });
}

/// Whether the epilogue of a product stores `value`: elementwise ops make it of what the product
/// gives, which nobody else reads.
bool made_by_product(const Graph& graph, ValueId value, int most = 8) {
  const NodeId id = graph.value(value).producer;
  if (id == kNone || most == 0) return false;
  const Node& node = graph.node(id);
  Reason ignored;
  if (node.op == Op::MatMul || node.op == Op::Gemm)
    return constant_product(graph, id, ignored).has_value();
  if (hands_on_rows(graph, id))
    return has_one_reader(graph, node.inputs[0]) &&
           made_by_product(graph, node.inputs[0], most - 1);
  if (ops::row(node.op).kind != ops::Kind::kMap ||
      graph.type(node.outputs[0]).shape != graph.type(value).shape)
    return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
    return input != kNone && graph.type(input).shape == graph.type(value).shape &&
           has_one_reader(graph, input) && made_by_product(graph, input, most - 1);
  });
}

}  // namespace

bool may_fold_norm(const Graph& graph, NodeId id) {
  Reason ignored;
  return read_norm(graph, id, ignored, true).has_value();
}

Result<Graph> fold_norms(Graph graph, const OfProduct& takes, const OfProduct& in_planes,
                         Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    Reason why;
    std::optional<Norm> norm = read_norm(graph, id, why);
    bool taken = norm.has_value();
    if (taken && !made_by_product(graph, norm->x))
      taken = why.no("no product stores what it reads");
    if (taken && adds_parts(graph, norm->x, in_planes))
      taken = why.no("it adds the parts of a product's sum");
    for (size_t k = 0; taken && k < norm->products.size(); ++k) {
      const Product& product = norm->products[k];
      const Type& type = graph.type(norm->x);
      taken = takes(type.dtype, type.count() / norm->width(), product.columns, norm->width()) ||
              why.no(fmt::format("the tile of '{}' gives no statistics",
                                 graph.node(product.node).name));
    }
    if (!taken) {
      why.tell(remarks, graph, id);
      continue;
    }
    sink_moves(graph, *norm);
    fold(graph, *norm);
  }
  return tidy(std::move(graph), remarks);
}

NodeId product_of_statistics(const Graph& graph, NodeId statistics) {
  const Node& node = graph.node(statistics);
  if (node.op != Op::NormStatistics || node.inputs.size() < 2 || node.inputs[1] == kNone)
    return kNone;
  const NodeId split = graph.producer(node.inputs[1], Op::Split);
  const NodeId product =
      graph.producer(split == kNone ? node.inputs[1] : graph.node(split).inputs[0], Op::MatMul);
  if (product == kNone) return kNone;
  const auto stored = [&](ValueId value) {
    const NodeId widened = graph.producer(value, Op::Cast);
    return widened == kNone ? value : graph.node(widened).inputs[0];
  };
  const ValueId a = stored(graph.node(product).inputs[0]),
                b = stored(graph.node(product).inputs[1]);
  const bool fits = a == node.inputs[0] && graph.value(b).is_constant() &&
                    is_half(graph.type(a).dtype) && graph.type(b).dtype == graph.type(a).dtype;
  return fits ? product : kNone;
}

}  // namespace obelisk::passes
