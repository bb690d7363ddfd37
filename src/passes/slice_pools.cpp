#include "passes/slice_pools.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// Steps that are given to a convolution at most: what it takes itself is bounded, too.
constexpr int64_t kMostStep = int64_t{1} << 30;

/// The steps of a pool of one output, if its windows are single elements and nothing is padded.
std::optional<std::vector<int64_t>> steps_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if ((node.op != Op::AveragePool && node.op != Op::MaxPool) || node.outputs.size() != 1)
    return std::nullopt;
  const std::vector<int64_t> kernel = node.attrs.get_ints("kernel_shape"),
                             pads = node.attrs.get_ints("pads");
  const auto is = [](int64_t wanted) { return [=](int64_t each) { return each == wanted; }; };
  if (kernel.empty() || !std::all_of(kernel.begin(), kernel.end(), is(1)) ||
      !std::all_of(pads.begin(), pads.end(), is(0)) || node.attrs.get_int("ceil_mode", 0) != 0)
    return std::nullopt;
  std::vector<int64_t> steps = node.attrs.get_ints("strides");
  if (steps.empty()) steps.assign(kernel.size(), 1);
  return steps;
}

/// Elements of an axis that are sampled, and zeros before and behind them.
struct Samples {
  int64_t from = 0, count = 0, before = 0, behind = 0;
};

/// Of `out` samples, `step` apart, of `extent` elements with `zeros` before them: fewer than none
/// where the first elements are cropped.
Samples samples_of(int64_t extent, int64_t zeros, int64_t step, int64_t out) {
  Samples made;
  made.before = zeros > 0 ? std::min((zeros + step - 1) / step, out) : 0;
  made.from = made.before * step - zeros;
  const int64_t there = extent > made.from ? (extent - made.from + step - 1) / step : 0;
  made.count = std::min(out - made.before, there);
  made.behind = out - made.before - made.count;
  return made;
}

ValueId numbers(Graph& graph, const std::vector<int64_t>& all) {
  return graph.add_constant(tensor_of(all));
}

/// The attributes of a convolution of single elements that takes the pool's steps, too; nothing of
/// another one, or where the pool's input is padded.
std::optional<Attrs> with_steps(const Graph& graph, const Node& conv, NodeId pool) {
  if (pool == kNone || graph.producer(graph.node(pool).inputs[0], Op::Pad) != kNone)
    return std::nullopt;
  const auto steps = steps_of(graph, pool);
  if (!steps) return std::nullopt;
  const Shape kernel = graph.type(conv.inputs[1]).shape;
  const std::vector<int64_t> pads = conv.attrs.get_ints("pads");
  const std::string mode = conv.attrs.get_string("auto_pad", "NOTSET");
  if (!std::all_of(kernel.begin() + 2, kernel.end(), [](int64_t each) { return each == 1; }) ||
      !std::all_of(pads.begin(), pads.end(), [](int64_t each) { return each == 0; }) ||
      !(mode == "NOTSET" || mode == "VALID" || mode.empty()))
    return std::nullopt;
  std::vector<int64_t> strides = conv.attrs.get_ints("strides");
  if (strides.empty()) strides.assign(steps->size(), 1);
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    if (strides[axis] > kMostStep / (*steps)[axis]) return std::nullopt;
    strides[axis] *= (*steps)[axis];
  }
  Attrs attrs = conv.attrs;
  attrs.set("strides", std::move(strides));
  return attrs;
}

bool give_steps_to_convs(Graph& graph) {
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    Node conv = graph.node(id);
    if (conv.op != Op::Conv || conv.outputs.size() != 1) continue;
    for (const Op op : {Op::AveragePool, Op::MaxPool}) {
      const NodeId pool = graph.producer(conv.inputs[0], op);
      std::optional<Attrs> attrs = with_steps(graph, conv, pool);
      if (!attrs) continue;
      conv.inputs[0] = graph.node(pool).inputs[0];
      const ValueId made = graph.must_add(Op::Conv, conv.inputs, std::move(*attrs), conv.name);
      changed = replace_value(graph, conv.outputs[0], made) || changed;
      break;
    }
  }
  return changed;
}

}  // namespace

Result<Graph> slice_pools(Graph graph) {
  bool changed = give_steps_to_convs(graph);
  const std::vector<NodeId> order = graph.order();
  for (NodeId id : order) {
    const auto strides = steps_of(graph, id);
    if (!strides) continue;
    const Node node = graph.node(id);
    const ValueId y = node.outputs[0];
    if (graph.users(y).empty() && !graph.is_output(y)) continue;  // its convolutions took the steps
    const size_t rank = strides->size() + 2;
    std::vector<int64_t> around(2 * rank, 0);
    ValueId x = node.inputs[0];
    if (const NodeId pad = graph.producer(x, Op::Pad); pad != kNone) {
      std::vector<int64_t> zeros = zeros_around(graph, graph.node(pad));
      const bool spatial = !zeros.empty() && zeros[0] == 0 && zeros[1] == 0 && zeros[rank] == 0 &&
                           zeros[rank + 1] == 0;
      if (spatial) x = graph.node(pad).inputs[0], around = std::move(zeros);
    }
    const Shape extents = graph.type(x).shape;
    std::vector<int64_t> starts, ends, axes, steps, pads(2 * rank, 0);
    bool some = true, whole = true;
    for (size_t axis = 2; axis < rank; ++axis) {
      const int64_t step = (*strides)[axis - 2];
      const Samples of = samples_of(extents[axis], around[axis], step, graph.type(y).shape[axis]);
      some = some && of.count > 0, whole = whole && step == 1 && of.count == extents[axis];
      starts.push_back(of.from), ends.push_back(of.from + (of.count - 1) * step + 1);
      axes.push_back(static_cast<int64_t>(axis)), steps.push_back(step);
      pads[axis] = of.before, pads[axis + rank] = of.behind;
    }
    if (!some) continue;
    ValueId made = x;
    if (!whole)
      made = graph.must_add(Op::Slice,
                            {x, numbers(graph, starts), numbers(graph, ends), numbers(graph, axes),
                             numbers(graph, steps)},
                            {}, node.name);
    if (std::any_of(pads.begin(), pads.end(), [](int64_t each) { return each != 0; }))
      made = graph.must_add(Op::Pad, {made, numbers(graph, pads)}, {}, node.name);
    changed = replace_value(graph, y, made) || changed;
  }
  return changed ? tidy(std::move(graph)) : graph;
}

}  // namespace obelisk::passes
