#include "passes/spread_uniform_weights.h"

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// The number that a ConstantOfShape spreads.
std::optional<double> spread_number(const Graph& graph, ValueId id) {
  const NodeId producer = id == kNone ? kNone : graph.value(id).producer;
  if (producer == kNone || graph.node(producer).op != Op::ConstantOfShape) return std::nullopt;
  const Tensor* value = graph.node(producer).attrs.get_tensor("value");
  return value == nullptr ? 0.0 : value->get_double(0);
}

class Spreader {
 public:
  Spreader(Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)) {}

  /// The product's answer told anew, or kNone.
  ValueId run(Reason& why) {
    const ValueId made = run();
    if (made == kNone && number_)
      why.no("its weights are one number, but of one channel or of more than two axes");
    return made;
  }

 private:
  ValueId run() {
    if (node_.op != Op::Conv && node_.op != Op::MatMul && node_.op != Op::Gemm) return kNone;
    number_ = spread_number(graph_, node_.inputs[1]);
    if (!number_) return kNone;
    weights_ = graph_.type(node_.inputs[1]);
    out_ = graph_.type(node_.outputs[0]).shape;
    if (element_count(out_) == 0 || weights_.count() == 0) return kNone;
    return node_.op == Op::Conv ? conv() : product();
  }

  ValueId add(Op op, std::vector<ValueId> inputs, ops::Attrs attrs = {}) {
    return graph_.must_add(op, std::move(inputs), std::move(attrs), node_.name);
  }
  ValueId uniform(Shape shape) {
    Tensor tensor = Tensor::allocate({weights_.dtype, std::move(shape)});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, *number_);
    return graph_.add_constant(std::move(tensor));
  }
  ValueId ints(const Shape& values) { return graph_.add_constant(tensor_of(values)); }
  ValueId reshape(ValueId value, const Shape& to) {
    if (graph_.type(value).shape == to) return value;
    return add(Op::Reshape, {value, ints(to)});
  }
  ValueId spread(ValueId value, const Shape& to) { return add(Op::Expand, {value, ints(to)}); }
  ValueId input(size_t k) const { return k < node_.inputs.size() ? node_.inputs[k] : kNone; }

  /// One output channel of each group: [groups, C / groups, kernel...].
  ValueId conv() {
    const int64_t groups = node_.attrs.get_int("group", 1), outputs = weights_.shape[0];
    if (outputs == groups) return kNone;
    const ValueId bias = input(2);
    Shape one = weights_.shape;
    one[0] = groups;
    ops::Attrs attrs = node_.attrs;
    ValueId y = add(Op::Conv, {input(0), uniform(one)}, std::move(attrs));
    Shape apart{out_[0], groups, 1}, whole{out_[0], groups, outputs / groups};
    apart.insert(apart.end(), out_.begin() + 2, out_.end());
    whole.insert(whole.end(), out_.begin() + 2, out_.end());
    y = groups == 1 ? spread(y, out_) : reshape(spread(reshape(y, apart), whole), out_);
    if (bias == kNone) return y;
    Shape channels(out_.size(), 1);
    channels[1] = outputs;
    return add(Op::Add, {y, reshape(bias, channels)});
  }

  /// One column of the weights: [K, 1].
  ValueId product() {
    if (weights_.rank() != 2 || graph_.type(input(0)).rank() < 2) return kNone;
    const bool transposed = node_.op == Op::Gemm && node_.attrs.get_int("transB", 0) != 0;
    const int64_t k = weights_.shape[transposed ? 1 : 0];
    if (weights_.count() == k) return kNone;
    ops::Attrs attrs = node_.attrs;
    attrs.erase("transB");
    attrs.erase("beta");
    ValueId y = spread(add(node_.op, {input(0), uniform({k, 1})}, std::move(attrs)), out_);
    ValueId bias = node_.op == Op::Gemm ? input(2) : kNone;
    if (bias == kNone) return y;
    const double beta = node_.attrs.get_float("beta", 1);
    if (beta != 1) {
      bias = add(Op::Mul, {bias, graph_.add_constant(tensor_of(weights_.dtype, {}, {beta}))});
    }
    return add(Op::Add, {y, bias});
  }

  Graph& graph_;
  const Node node_;
  std::optional<double> number_;
  Type weights_;
  Shape out_;
};

}  // namespace

Result<Graph> spread_uniform_weights(Graph graph, Remarks* remarks) {
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const ValueId old = graph.node(id).outputs.empty() ? kNone : graph.node(id).outputs[0];
    Reason why;
    const ValueId made = Spreader(graph, id).run(why);
    why.tell(remarks, graph, id);
    if (made != kNone) replace_value(graph, old, made);
  }
  return tidy(std::move(graph), remarks);
}

}  // namespace obelisk::passes
