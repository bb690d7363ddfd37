/// graph/random_maker.h — random graphs step by step: the steps of ordinary ops, and what the steps
/// that move elements (random_moves.cpp) share with them. For random.cpp and random_moves.cpp only.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/random.h"

namespace obelisk::graph {

inline constexpr double kModerate = 50;  // above this a value is squeezed before it is multiplied

class RandomMaker {
 public:
  virtual ~RandomMaker() = default;
  RandomMaker(uint64_t seed, const RandomOptions& options) : random_(seed), options_(options) {
    graph_.name = fmt::format("random {}", seed);
  }

  Graph run() {
    const int64_t inputs = random_.between(1, 3);
    for (int64_t k = 0; k < inputs; ++k) {
      pool_.push_back(graph_.add_input(fmt::format("x{}", k), {options_.dtype, shape()}));
      bounds_.resize(static_cast<size_t>(graph_.value_count()), 6);
    }
    for (int step = 0, tries = 0; step < options_.nodes && tries < 100 * options_.nodes; ++tries) {
      step += make_one();
    }
    mark_outputs();
    graph_.remove_dead();  // squeezed operands of what was then not made
    return std::move(graph_);
  }

 protected:
  virtual bool make_one() {
    using Make = bool (RandomMaker::*)();
    struct Choice {
      int weight;
      Make make;
    };
    static constexpr Choice kChoices[] = {
        {20, &RandomMaker::map_one},
        {20, &RandomMaker::map_two},
        {10, &RandomMaker::reduce},
        {6, &RandomMaker::reshape},
        {6, &RandomMaker::transpose},
        {4, &RandomMaker::slice},
        {4, &RandomMaker::concat},
        {3, &RandomMaker::expand},
        {3, &RandomMaker::split},
        {3, &RandomMaker::gather},
        {3, &RandomMaker::pad},
        {4, &RandomMaker::softmax},
        {3, &RandomMaker::masked_softmax},
        {5, &RandomMaker::layer_norm},
        {3, &RandomMaker::select},
        {8, &RandomMaker::matmul},
        {4, &RandomMaker::convolve},
        {2, &RandomMaker::squeeze},
        {2, &RandomMaker::arg_max},
    };
    int64_t ticket = 0;
    for (const Choice& choice : kChoices) ticket += choice.weight;
    ticket = random_.below(ticket);
    for (const Choice& choice : kChoices) {
      ticket -= choice.weight;
      if (ticket < 0) return (this->*choice.make)();
    }
    return false;
  }

  // ---- small parts ----
  virtual Shape shape() {
    Shape out;
    // Small extents, odd ones, ones, and now and then the width of a vector register.
    static constexpr int64_t kExtents[] = {1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17};
    const int64_t rank = random_.between(0, 4);
    for (int64_t axis = 0; axis < rank; ++axis) {
      out.push_back(kExtents[random_.below(std::size(kExtents))]);
    }
    while (element_count(out) > options_.elements) out.pop_back();
    return out;
  }

  const Type& type(ValueId id) const { return graph_.type(id); }
  double& bound(ValueId id) {
    bounds_.resize(static_cast<size_t>(graph_.value_count()), 1);
    return bounds_[static_cast<size_t>(id)];
  }

  // Recent values more often, so that graphs become deep.
  ValueId pick() {
    const int64_t size = static_cast<int64_t>(pool_.size());
    const int64_t back = std::min(random_.below(size), random_.below(size));
    return pool_[static_cast<size_t>(size - 1 - back)];
  }

  // A value of at least this rank, or kNone.
  ValueId pick(int rank) {
    for (int tries = 0; tries < 4; ++tries) {
      const ValueId id = pick();
      if (type(id).rank() >= rank && type(id).count() > 0) return id;
    }
    return kNone;
  }

  ValueId add(std::string_view op, std::vector<ValueId> inputs, ops::Attrs attrs = {}) {
    return graph_.must_add(*ops::parse_op(op), std::move(inputs), std::move(attrs),
                           fmt::format("{}{}", op, graph_.node_count()));
  }
  static bool known(std::string_view op) { return ops::parse_op(op).has_value(); }

  ValueId keep(ValueId id, double bound_of_it) {
    bound(id) = bound_of_it;
    pool_.push_back(id);
    return id;
  }
  bool made(ValueId id, double bound_of_it) {
    keep(id, bound_of_it);
    return true;
  }

  ValueId squeezed(ValueId id, double most = kModerate) {
    if (bound(id) <= most) return id;
    const ValueId out = add("Tanh", {id});
    bound(out) = 1;
    return out;
  }

  ValueId weights(Shape shape, double scale = 1) {
    Tensor tensor = Tensor::allocate({options_.dtype, std::move(shape)});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, scale * random_.normal());
    const ValueId id = graph_.add_constant(tensor);
    bound(id) = 6 * scale;
    return id;
  }
  ValueId ints(const std::vector<int64_t>& values) {
    return graph_.add_constant(tensor_of(values));
  }

  // ---- one function per kind of node; false: nothing fitting was at hand ----
  bool map_one() {
    struct One {
      const char* op;
      double bound;  // of the answer; 0: that of the operand
    };
    static constexpr One kSmooth[] = {
        {"Relu", 0}, {"Neg", 0},  {"Abs", 0},  {"Tanh", 1},      {"Sigmoid", 1}, {"Erf", 1},
        {"Sin", 1},  {"Cos", 1},  {"Gelu", 0}, {"Softplus", 0},  {"Swish", 0},   {"Elu", 0},
        {"Sqrt", 0}, {"Exp", 55}, {"Log", 8},  {"Reciprocal", 1}};
    static constexpr One kSteps[] = {{"Floor", 0}, {"Ceil", 0}, {"Round", 0}, {"Sign", 1}};
    const bool step = options_.steps && random_.chance(15);
    const One one = step ? kSteps[random_.below(std::size(kSteps))]
                         : kSmooth[random_.below(std::size(kSmooth))];
    if (!known(one.op)) return false;
    ValueId x = pick();
    const std::string_view op = one.op;
    if (op == "Exp") x = squeezed(x, 4);
    // Into the domain: |x| + 1.
    if (op == "Sqrt" || op == "Log" || op == "Reciprocal") {
      const ValueId one_more = graph_.add_constant(tensor_of(options_.dtype, {}, {1}));
      const double before = bound(x);
      x = add("Add", {add("Abs", {x}), one_more});
      bound(x) = before + 1;
    }
    return made(add(op, {x}), one.bound > 0 ? one.bound : bound(x) + 1);
  }

  // A value that broadcasts with x: one at hand, or weights over the last axes.
  virtual ValueId partner(ValueId x) {
    for (int tries = 0; tries < 3; ++tries) {
      const ValueId y = pick();
      const auto both = broadcast(type(x).shape, type(y).shape);
      if (both && element_count(*both) <= options_.elements) return y;
    }
    Shape shape = type(x).shape;
    if (!shape.empty()) {
      shape.erase(shape.begin(), shape.begin() + random_.below(static_cast<int64_t>(shape.size())));
    }
    for (int64_t& extent : shape) {
      if (random_.chance(25)) extent = 1;
    }
    return weights(shape);
  }

  bool map_two() {
    static constexpr const char* kOps[] = {"Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min"};
    const std::string_view op = kOps[random_.below(std::size(kOps))];
    ValueId x = pick(), y = partner(x);
    if (random_.chance(30)) std::swap(x, y);
    if (op == "Mul" || op == "Div") {
      x = squeezed(x);
      y = squeezed(y);
    }
    if (op == "Div") {
      y = add("Exp", {add("Tanh", {y})});  // within [1/e, e]
      bound(y) = 2.8;
    }
    const double most = op == "Mul"   ? bound(x) * bound(y)
                        : op == "Div" ? bound(x) * 2.8
                                      : bound(x) + bound(y);
    return made(add(op, {x, y}), most);
  }

  std::vector<int64_t> some_axes(int rank) {
    std::vector<int64_t> out;
    for (int axis = 0; axis < rank; ++axis) {
      if (random_.chance(50)) out.push_back(random_.chance(30) ? axis - rank : axis);
    }
    if (out.empty()) out.push_back(random_.chance(50) ? -1 : rank - 1);
    return out;
  }

  bool reduce() {
    static constexpr const char* kOps[] = {"ReduceSum",  "ReduceSum",      "ReduceMean",
                                           "ReduceMean", "ReduceMax",      "ReduceMin",
                                           "ReduceL2",   "ReduceSumSquare"};
    const std::string_view op = kOps[random_.below(std::size(kOps))];
    ValueId x = pick(1);
    if (x == kNone || !known(op)) return false;
    x = squeezed(x);
    const std::vector<int64_t> axes = some_axes(type(x).rank());
    const ops::Attrs attrs = ops::Attrs().set("keepdims", int64_t{random_.chance(60)});
    const double count = static_cast<double>(type(x).count());
    const bool small = op == "ReduceMean" || op == "ReduceMax" || op == "ReduceMin";
    const double most = small               ? bound(x)
                        : op == "ReduceSum" ? bound(x) * count
                                            : bound(x) * bound(x) * count;
    return made(add(op, {x, ints(axes)}, attrs), most);
  }

  bool reshape() {
    const ValueId x = pick();
    int64_t rest = type(x).count();
    std::vector<int64_t> to;
    while (to.size() < 4 && (rest > 1 || random_.chance(30))) {
      std::vector<int64_t> divisors;
      for (int64_t k = 1; k <= rest; ++k) {
        if (rest % k == 0) divisors.push_back(k);
      }
      to.push_back(divisors[static_cast<size_t>(random_.below(std::ssize(divisors)))]);
      rest /= to.back();
    }
    if (rest > 1) to.push_back(rest);
    if (!to.empty() && random_.chance(20))
      to[static_cast<size_t>(random_.below(std::ssize(to)))] = -1;
    return made(add("Reshape", {x, ints(to)}), bound(x));
  }

  bool transpose() {
    const ValueId x = pick(2);
    if (x == kNone) return false;
    std::vector<int64_t> order(type(x).shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t k = order.size(); k-- > 1;) {
      std::swap(order[k], order[static_cast<size_t>(random_.below(static_cast<int64_t>(k) + 1))]);
    }
    return made(add("Transpose", {x}, ops::Attrs().set("perm", order)), bound(x));
  }

  bool slice() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = random_.below(type(x).rank());
    const int64_t extent = type(x).shape[static_cast<size_t>(axis)];
    const int64_t from = random_.below(extent), to = random_.between(from + 1, extent);
    const int64_t step = random_.between(1, 2);
    // Backwards: from to-1 down past from.
    const bool back = random_.chance(20);
    const ValueId starts = ints({back ? to - 1 : from});
    const ValueId ends = ints({back ? from - 1 - extent : to});
    return made(add("Slice", {x, starts, ends, ints({axis}), ints({back ? -step : step})}),
                bound(x));
  }

  bool concat() {
    const ValueId x = pick(1);
    if (x == kNone || 2 * type(x).count() > options_.elements) return false;
    const int64_t axis = random_.below(type(x).rank());
    ValueId y = weights(type(x).shape);
    for (const ValueId other : pool_) {
      Shape a = type(x).shape, b = type(other).shape;
      if (a.size() != b.size()) continue;
      a[static_cast<size_t>(axis)] = b[static_cast<size_t>(axis)] = 0;
      if (a == b && type(x).count() + type(other).count() <= options_.elements) y = other;
    }
    const double most = std::max(bound(x), bound(y));
    return made(add("Concat", {x, y}, ops::Attrs().set("axis", axis)), most);
  }

  bool expand() {
    const ValueId x = pick();
    Shape to = type(x).shape;
    for (int64_t& extent : to) {
      if (extent == 1) extent = random_.between(1, 4);
    }
    if (random_.chance(50)) to.insert(to.begin(), random_.between(1, 3));
    if (element_count(to) > options_.elements || to == type(x).shape) return false;
    return made(add("Expand", {x, ints(to)}), bound(x));
  }

  bool split() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = random_.below(type(x).rank());
    const int64_t extent = type(x).shape[static_cast<size_t>(axis)];
    if (extent < 2) return false;
    const int64_t first = random_.between(1, extent - 1);
    const Result<NodeId> id = graph_.add_node(
        *ops::parse_op("Split"), {x, ints({first, extent - first})}, ops::Attrs().set("axis", axis),
        fmt::format("Split{}", graph_.node_count()), 2);
    CHECK(id.ok(), "{}", id.error().text());
    const double most = bound(x);
    for (const ValueId part : graph_.node(*id).outputs) keep(part, most);
    return true;
  }

  bool gather() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    const int64_t axis = random_.below(type(x).rank());
    const int64_t extent = type(x).shape[static_cast<size_t>(axis)];
    std::vector<int64_t> rows(static_cast<size_t>(random_.between(1, 4)));
    for (int64_t& row : rows) row = random_.between(-extent, extent - 1);
    if (type(x).count() / extent * std::ssize(rows) > options_.elements) return false;
    return made(add("Gather", {x, ints(rows)}, ops::Attrs().set("axis", axis)), bound(x));
  }

  bool pad() {
    const ValueId x = pick(1);
    if (x == kNone) return false;
    std::vector<int64_t> pads(2 * type(x).shape.size());
    for (int64_t& each : pads) each = random_.chance(40) ? random_.between(0, 2) : 0;
    Shape to = type(x).shape;
    for (size_t axis = 0; axis < to.size(); ++axis) to[axis] += pads[axis] + pads[axis + to.size()];
    if (element_count(to) > options_.elements) return false;
    return made(add("Pad", {x, ints(pads)}), bound(x));
  }

  bool softmax() {
    ValueId x = pick(1);
    if (x == kNone || !known("Softmax")) return false;
    x = squeezed(x);
    const int64_t axis = random_.between(-type(x).rank(), type(x).rank() - 1);
    return made(add("Softmax", {x}, ops::Attrs().set("axis", axis)), 1);
  }

  // As exporters write it: a scale, and then what is added, or a number where nothing is seen.
  bool masked_softmax() {
    ValueId x = pick(1);
    if (x == kNone || !known("Softmax")) return false;
    x = squeezed(x);
    const Shape shape = type(x).shape;
    const Shape last(shape.end() - random_.between(1, std::ssize(shape)), shape.end());
    ValueId scores = x;
    if (random_.chance(50)) {
      const ValueId factor = graph_.add_constant(tensor_of(options_.dtype, {}, {0.125}));
      scores = add(random_.chance(50) ? "Mul" : "Div", {x, factor});
    }
    if (random_.chance(50)) {
      scores = add("Add", {scores, weights(last)});
    } else {
      Tensor seen = Tensor::allocate({DType::b1, last});
      // Some place of each row is seen: else all weights are NaN, which hides what is wrong.
      for (int64_t k = 0; k < seen.count(); ++k)
        seen.set_int(k, k % last.back() == 0 || random_.chance(60));
      const ValueId mask = graph_.add_constant(seen);
      const ValueId fill = graph_.add_constant(tensor_of(options_.dtype, {}, {-3e4}));
      scores = add("Where", {mask, scores, fill});
    }
    return made(add("Softmax", {scores}, ops::Attrs().set("axis", int64_t{-1})), 1);
  }

  bool layer_norm() {
    ValueId x = pick(1);
    const bool root = random_.chance(40);
    const std::string_view op = root ? "RMSNormalization" : "LayerNormalization";
    // Over one element the deviation is zero, and the answer mere rounding.
    if (x == kNone || !known(op) || type(x).shape.back() < 2) return false;
    const Shape last = {type(x).shape.back()};
    std::vector<ValueId> inputs = {x, weights(last)};
    if (!root && random_.chance(70)) inputs.push_back(weights(last));
    return made(add(op, inputs, ops::Attrs().set("epsilon", 1e-2)), 6 * std::sqrt(last[0]) + 6);
  }

  bool select() {
    if (!options_.steps) return false;
    static constexpr const char* kOps[] = {"Less", "Greater", "LessOrEqual", "GreaterOrEqual"};
    const ValueId x = pick(), y = partner(x);
    const ValueId truth = add(kOps[random_.below(std::size(kOps))], {x, y});
    const double most = std::max(bound(x), bound(y));
    return made(add("Where", {truth, x, y}), most);
  }

  bool arg_max() {
    const ValueId x = pick(1);
    if (x == kNone || !options_.steps || !known("ArgMax")) return false;
    const int64_t axis = random_.below(type(x).rank());
    const double extent = static_cast<double>(type(x).shape[static_cast<size_t>(axis)]);
    const ValueId which = add("ArgMax", {x}, ops::Attrs().set("axis", axis));
    const ops::Attrs to = ops::Attrs().set("to", ops::number_of_dtype(options_.dtype));
    return made(add("Cast", {which}, to), extent);
  }

  bool squeeze() {
    const ValueId x = pick();
    const Shape& shape = type(x).shape;
    const auto one = std::find(shape.begin(), shape.end(), 1);
    if (one != shape.end() && random_.chance(50)) {
      return made(add("Squeeze", {x, ints({one - shape.begin()})}), bound(x));
    }
    if (shape.size() > 4) return false;
    const int64_t axis = random_.between(0, type(x).rank());
    return made(add("Unsqueeze", {x, ints({axis})}), bound(x));
  }

  bool matmul() {
    ValueId x = pick(2);
    if (x == kNone || !options_.compute || !known("MatMul")) return false;
    x = squeezed(x, 8);
    const Shape shape = type(x).shape;
    const int64_t rows = shape[shape.size() - 2], inner = shape.back();
    const int64_t batch = type(x).count() / (rows * inner);
    if (random_.chance(30) && batch * rows * rows <= options_.elements) {
      std::vector<int64_t> order(shape.size());
      std::iota(order.begin(), order.end(), 0);
      std::swap(order[order.size() - 1], order[order.size() - 2]);
      const ValueId transposed = add("Transpose", {x}, ops::Attrs().set("perm", order));
      return made(add("MatMul", {x, transposed}), bound(x) * bound(x) * static_cast<double>(inner));
    }
    const int64_t columns = random_.between(1, 20);
    if (batch * rows * columns > options_.elements) return false;
    const double scale = 1 / std::sqrt(static_cast<double>(inner));
    const double most = bound(x) * 6 * static_cast<double>(inner) * scale;
    const ValueId right = weights({inner, columns}, scale);
    if (shape.size() == 2 && random_.chance(40) && known("Gemm")) {
      const ValueId bias = weights({columns});
      return made(add("Gemm", {x, right, bias}), most + 6);
    }
    return made(add("MatMul", {x, right}), most);
  }

  virtual bool convolve() {
    ValueId x = pick(3);
    if (x == kNone || !options_.compute || type(x).rank() != 4) return false;
    x = squeezed(x, 8);
    const Shape shape = type(x).shape;  // [N, C, H, W]
    const int64_t height = random_.between(1, 3), width = random_.between(1, 3);
    const int64_t stride = random_.between(1, 2);
    ops::Attrs attrs;
    attrs.set("pads", std::vector<int64_t>{height / 2, width / 2, height / 2, width / 2});
    attrs.set("strides", std::vector<int64_t>{stride, stride});
    const std::vector<int64_t> kernel = {height, width};
    if (shape[2] + 2 * (height / 2) < height || shape[3] + 2 * (width / 2) < width) return false;
    if (random_.chance(40)) {
      const std::string_view op = random_.chance(50) ? "MaxPool" : "AveragePool";
      if (!known(op)) return false;
      return made(add(op, {x}, attrs.set("kernel_shape", kernel)), bound(x));
    }
    const int64_t channels = random_.between(1, 6);
    if (!known("Conv") ||
        shape[0] * channels * (shape[2] + 2) * (shape[3] + 2) > options_.elements) {
      return false;
    }
    const double count = static_cast<double>(shape[1] * height * width);
    const ValueId filter = weights({channels, shape[1], height, width}, 1 / std::sqrt(count));
    std::vector<ValueId> inputs = {x, filter};
    if (random_.chance(50)) inputs.push_back(weights({channels}));
    return made(add("Conv", inputs, attrs), bound(x) * 6 * std::sqrt(count) + 6);
  }

  // What nobody reads, so that nothing is dead; and now and then a value that is read as well.
  virtual void mark_outputs() {
    std::vector<ValueId> outputs;
    for (const ValueId id : pool_) {
      const bool from_node = graph_.value(id).producer != kNone;
      if (from_node && (graph_.users(id).empty() || random_.chance(5))) outputs.push_back(id);
    }
    if (outputs.empty()) outputs.push_back(pool_.back());
    for (size_t k = 0; k < outputs.size(); ++k) {
      graph_.mark_output(outputs[k], fmt::format("y{}", k));
    }
  }

  Random random_;
  const RandomOptions& options_;
  Graph graph_;
  std::vector<ValueId> pool_;   // the floating values made so far
  std::vector<double> bounds_;  // by value: about the largest magnitude
};

/// Of options with moves (random_moves.cpp).
Graph random_moving_graph(uint64_t seed, const RandomOptions& options);

}  // namespace obelisk::graph
