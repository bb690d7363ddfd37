#include "passes/pad_channels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// Maps whose answers to zeros and other finite numbers are finite, channel by channel.
bool is_tame_map(const Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::Abs:
    case Op::Add:
    case Op::Celu:
    case Op::Clip:
    case Op::Elu:
    case Op::Erf:
    case Op::Gelu:
    case Op::HardSigmoid:
    case Op::HardSwish:
    case Op::Identity:
    case Op::LeakyRelu:
    case Op::Max:
    case Op::Min:
    case Op::Mish:
    case Op::Mul:
    case Op::Neg:
    case Op::PRelu:
    case Op::Relu:
    case Op::Selu:
    case Op::Sigmoid:
    case Op::Softplus:
    case Op::Softsign:
    case Op::Sub:
    case Op::SwiGLU:
    case Op::Swish:
    case Op::Tanh:
      return true;
    case Op::Div: {
      const auto by = uniform_value(graph, node.inputs[1]);
      return by && *by != 0;
    }
    case Op::Cast: {
      const DType from = graph.type(node.inputs[0]).dtype, to = graph.type(node.outputs[0]).dtype;
      return is_float(from) && is_float(to);
    }
    default:
      return false;
  }
}

/// Ops that compute each channel of their first input by itself, whatever their number.
bool is_pool(const Graph& graph, const Node& node) {
  const auto rank = static_cast<int64_t>(graph.type(node.inputs[0]).shape.size());
  const auto beyond_channels = [&](int64_t axis) { return (axis < 0 ? axis + rank : axis) >= 2; };
  switch (node.op) {
    case Op::MaxPool:
    case Op::AveragePool:
    case Op::GlobalAveragePool:
    case Op::GlobalMaxPool:
      return node.outputs.size() == 1;
    case Op::ReduceMean:
    case Op::ReduceMax: {
      const Tensor* axes = constant_input(graph, node, 1);
      if (!axes || axes->count() == 0 || node.attrs.get_int("keepdims", 1) == 0) return false;
      for (int64_t k = 0; k < axes->count(); ++k)
        if (!beyond_channels(axes->get_int(k))) return false;
      return true;
    }
    default:
      return false;
  }
}

bool is_finite(const Tensor& tensor) {
  for (int64_t k = 0; k < tensor.count(); ++k)
    if (!std::isfinite(tensor.get_double(k))) return false;
  return true;
}

/// Of Pad: nothing is put before or behind channels, and finite numbers elsewhere.
bool pads_no_channels(const Graph& graph, const Node& node) {
  const std::vector<int64_t> pads = pads_by_axis(graph, node);
  if (pads.size() < 4 || pads[1] != 0 || pads[1 + pads.size() / 2] != 0) return false;
  if (node.inputs.size() < 3 || node.inputs[2] == kNone) return true;
  const Tensor* value = constant_input(graph, node, 2);
  return value && is_finite(*value);
}

/// Of Resize: the channels keep their number. Its sizes name it.
bool resizes_no_channels(const Graph& graph, const Node& node) {
  if (!node.attrs.get_ints("axes").empty()) return false;
  const Tensor *scales = constant_input(graph, node, 2), *sizes = constant_input(graph, node, 3);
  if (sizes && sizes->count() > 1)
    return sizes->get_int(1) == graph.type(node.inputs[0]).shape[1] &&
           node.attrs.get_string("keep_aspect_ratio_policy", "stretch") == "stretch";
  return scales && scales->count() > 1 && scales->get_double(1) == 1;
}

/// A copy with zeros behind the elements along axes 0 and 1.
Tensor padded(const Tensor& tensor, Shape to) {
  const Shape& from = tensor.shape();
  const auto axes = from.size();
  const int64_t rows = from[0], columns = axes > 1 ? from[1] : 1,
                inner = tensor.count() / (rows * columns), size = tensor.bytes() / tensor.count(),
                run = columns * inner * size;
  Tensor made = Tensor::allocate({tensor.dtype(), to});
  const int64_t step = made.bytes() / to[0];
  auto* out = static_cast<char*>(made.mutable_data());
  memset(out, 0, static_cast<size_t>(made.bytes()));
  for (int64_t row = 0; row < rows; ++row)
    memcpy(out + row * step, static_cast<const char*>(tensor.data()) + row * run,
           static_cast<size_t>(run));
  return made;
}

class Padder {
 public:
  Padder(Graph& graph, const WantedChannels& wanted) : graph_(graph), wanted_(wanted) {}

  /// Whether anything was padded.
  bool run() {
    const std::vector<NodeId> order = graph_.order();
    for (size_t k = order.size(); k-- > 0;) note_readers(order[k]);
    for (NodeId id : order) {
      const Node node = graph_.node(id);
      if (node.op == Op::Conv)
        convolution(node);
      else if (passes_on(node))
        pass(node);
    }
    for (const auto& [narrow, wide] : wide_) replace_value(graph_, narrow, slice(narrow, wide));
    return !wide_.empty();
  }

 private:
  int64_t channels(ValueId value) const { return graph_.type(value).shape[1]; }
  bool has_channels(ValueId value) const { return graph_.type(value).shape.size() > 2; }
  ValueId wide(ValueId value) const {
    const auto found = wide_.find(value);
    return found == wide_.end() ? kNone : found->second;
  }
  /// Constant weights and bias, of one group or depthwise.
  bool takes_padding(const Node& node) const {
    const Tensor* weights = constant_input(graph_, node, 1);
    if (!weights || weights->count() == 0 || !has_channels(node.inputs[0])) return false;
    if (node.inputs.size() > 2 && node.inputs[2] != kNone && !constant_input(graph_, node, 2))
      return false;
    return node.attrs.get_int("group", 1) == 1 || is_depthwise(node, *weights);
  }
  /// Sums over channels and more than one pixel.
  bool sums_windows(const Node& node) const {
    const Tensor& weights = *constant_input(graph_, node, 1);
    return node.attrs.get_int("group", 1) == 1 &&
           weights.count() > weights.shape()[0] * weights.shape()[1];
  }
  bool is_depthwise(const Node& node, const Tensor& weights) const {
    const int64_t groups = node.attrs.get_int("group", 1);
    return groups > 1 && groups == channels(node.inputs[0]) && groups == weights.shape()[0];
  }

  /// Whether an answer of padded inputs is padded.
  bool passes_on(const Node& node) const {
    return is_tame_map(graph_, node) || is_pool(graph_, node) ||
           (node.op == Op::Pad && pads_no_channels(graph_, node)) ||
           (node.op == Op::Resize && resizes_no_channels(graph_, node));
  }
  /// Those of which each channel of the answer reads its own.
  size_t mapped_inputs(const Node& node) const {
    return is_tame_map(graph_, node) ? node.inputs.size() : 1;
  }

  /// Which values a convolution reads, directly or not; from the last node to the first.
  void note_readers(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op == Op::Conv && takes_padding(node)) {
      if (sums_windows(node) || readers_.contains(node.outputs[0])) readers_.insert(node.inputs[0]);
    } else if (passes_on(node) && readers_.contains(node.outputs[0])) {
      for (size_t k = 0; k < mapped_inputs(node); ++k)
        if (node.inputs[k] != kNone && has_channels(node.inputs[k]))
          readers_.insert(node.inputs[k]);
    }
  }

  void convolution(const Node& node) {
    if (!takes_padding(node)) return;
    const Tensor weights = *constant_input(graph_, node, 1);
    const ValueId y = node.outputs[0], x = wide(node.inputs[0]);
    const bool depthwise = node.attrs.get_int("group", 1) > 1;
    const int64_t outputs = channels(y), inputs = channels(node.inputs[0]);
    int64_t more_inputs = x == kNone ? inputs : channels(x), more_outputs = outputs;
    if (depthwise)
      more_outputs = more_inputs;
    else if (readers_.contains(y))
      more_outputs = std::max(wanted_(graph_.type(y).dtype, outputs), outputs);
    if (more_inputs == inputs && more_outputs == outputs) return;
    Shape shape = weights.shape();
    shape[0] = more_outputs;
    if (!depthwise) shape[1] = more_inputs;
    std::vector<ValueId> all{x == kNone ? node.inputs[0] : x,
                             graph_.add_constant(padded(weights, shape))};
    if (const Tensor* bias = constant_input(graph_, node, 2))
      all.push_back(graph_.add_constant(padded(*bias, {more_outputs})));
    Attrs attrs = node.attrs;
    if (depthwise) attrs.set("group", more_outputs);
    const ValueId made = graph_.must_add(Op::Conv, std::move(all), std::move(attrs), node.name);
    if (more_outputs != outputs)
      wide_[y] = made;
    else
      replace_value(graph_, y, made);
  }

  /// The same op of padded inputs.
  void pass(const Node& node) {
    const ValueId y = node.outputs[0];
    if (!has_channels(y) || !readers_.contains(y)) return;
    const size_t rank = graph_.type(y).shape.size();
    const int64_t narrow = channels(y);
    int64_t more = 0;
    for (ValueId input : node.inputs)
      if (input != kNone && wide(input) != kNone) more = std::max(more, channels(wide(input)));
    if (more == 0) return;
    std::vector<ValueId> all = node.inputs;
    for (size_t k = 0; k < mapped_inputs(node); ++k) {
      if (all[k] == kNone) continue;
      const Shape shape = graph_.type(all[k]).shape;
      const Tensor* known = constant(graph_, all[k]);
      if (known && !is_finite(*known)) return;
      const size_t missing = rank - std::min(rank, shape.size());
      if (missing > 1 || shape[1 - missing] == 1) continue;  // the same for all channels
      if (shape[1 - missing] != narrow) return;
      if (const ValueId with = wide(all[k]); with != kNone && channels(with) == more) {
        all[k] = with;
      } else if (known && (missing == 1 || shape[0] == 1)) {
        Shape to = shape;
        to[1 - missing] = more;
        all[k] = graph_.add_constant(padded(*known, to));
      } else {
        return;
      }
    }
    if (const Tensor* sizes = node.op == Op::Resize ? constant_input(graph_, node, 3) : nullptr) {
      Shape to;
      for (int64_t k = 0; k < sizes->count(); ++k) to.push_back(k == 1 ? more : sizes->get_int(k));
      all[3] = graph_.add_constant(tensor_of(to));
    }
    wide_[y] = graph_.must_add(node.op, std::move(all), node.attrs, node.name);
  }

  ValueId slice(ValueId narrow, ValueId wide) {
    const auto ints = [&](int64_t value) { return graph_.add_constant(tensor_of(Shape{value})); };
    return graph_.must_add(Op::Slice, {wide, ints(0), ints(channels(narrow)), ints(1)});
  }

  Graph& graph_;
  const WantedChannels& wanted_;
  std::set<ValueId> readers_;        // what convolutions read, also through ops that pass it on
  std::map<ValueId, ValueId> wide_;  // padded values
};

}  // namespace

Result<Graph> pad_channels(Graph graph, const WantedChannels& wanted) {
  if (!Padder(graph, wanted).run()) return graph;
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes
