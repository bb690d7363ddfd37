#include "passes/split_reductions.h"

#include <algorithm>

#include "passes/rewrite.h"

namespace obelisk::passes {
namespace {

/// How an op is split: an op for each part, and one that combines their results.
struct Halves {
  Op part, whole;
  bool of_integers = false;  // these come out the same
};
std::optional<Halves> halves_of(Op op) {
  switch (op) {
    case Op::ReduceSum:
      return Halves{op, op, true};
    case Op::ReduceMax:
    case Op::ReduceMin:
    case Op::ReduceProd:
      return Halves{op, op, true};
    case Op::ReduceMean:
      return Halves{Op::ReduceSum, Op::ReduceSum};  // then divided
    case Op::ReduceL1:
    case Op::ReduceL2:
      return Halves{op, op};
    case Op::ReduceSumSquare:
      return Halves{op, Op::ReduceSum};
    case Op::ReduceLogSum:
      return Halves{Op::ReduceSum, op};
    default:
      return std::nullopt;
  }
}

/// The longest run of neighbouring axes, as [first, last].
std::pair<size_t, size_t> longest_run(const Shape& shape, const std::vector<int64_t>& axes) {
  std::pair<size_t, size_t> best{0, 0};
  int64_t most = -1;
  for (size_t k = 0; k < axes.size();) {
    size_t end = k;
    int64_t length = shape[axes[k]];
    while (end + 1 < axes.size() && axes[end + 1] == axes[end] + 1) length *= shape[axes[++end]];
    if (length > most)
      most = length, best = {static_cast<size_t>(axes[k]), static_cast<size_t>(axes[end])};
    k = end + 1;
  }
  return best;
}

/// As many parts as wished, or somewhat fewer where these divide the length; else what is left of
/// it is the last of them.
int64_t fitting_parts(int64_t wished, int64_t length) {
  for (int64_t parts = wished; parts * 4 >= wished * 3 && parts > 1; --parts)
    if (length % parts == 0) return parts;
  return std::max<int64_t>(wished - 1, 1);
}

class Splitter {
 public:
  Splitter(Graph& graph, const ReductionParts& parts, const ChannelsLast& channels_last)
      : graph_(graph), parts_(parts), channels_last_(channels_last) {}

  void split(NodeId id) {
    const auto halves = halves_of(graph_.node(id).op);
    if (!halves) return;
    const ValueId x = graph_.node(id).inputs[0], y = graph_.node(id).outputs[0];
    const Type type = graph_.type(x);
    const bool half = is_half(type.dtype),
               real = half || type.dtype == DType::f32 || type.dtype == DType::f64;
    if (!real && !(halves->of_integers && (type.dtype == DType::i32 || type.dtype == DType::i64)))
      return;
    const std::vector<int64_t> axes = axes_of(id, type.rank());
    if (axes.empty() || type.count() == 0) return;
    const auto [first, last] = longest_run(type.shape, axes);
    Shape before(type.shape.begin(), type.shape.begin() + static_cast<int64_t>(first)),
        after(type.shape.begin() + static_cast<int64_t>(last) + 1, type.shape.end());
    const int64_t length = type.count() / element_count(before) / element_count(after),
                  outputs = graph_.type(y).count();
    const int64_t wished =
        std::min(parts_({type, outputs, neighbours(x, axes, last), length}), length);
    if (wished < 2) return;

    name_ = graph_.node(id).name;
    const DType wide = half ? DType::f32 : type.dtype;
    const int64_t parts = fitting_parts(wished, length), part = length / parts,
                  rest = length - part * parts;
    const ValueId row = reshaped(half ? cast(x, wide) : x, joined(before, {length}, after));
    // Axes of what a part folds: behind the run there is one dimension more, the parts.
    std::vector<int64_t> inside{static_cast<int64_t>(first) + 1};
    for (int64_t axis : axes)
      if (axis < static_cast<int64_t>(first))
        inside.push_back(axis);
      else if (axis > static_cast<int64_t>(last))
        inside.push_back(axis - static_cast<int64_t>(last - first) + 1);
    const int64_t of_parts = static_cast<int64_t>(first);
    const auto partial = [&](ValueId from, int64_t count, int64_t size) {
      return reduced(halves->part, reshaped(from, joined(before, {count, size}, after)), inside);
    };
    ValueId given = partial(rest ? sliced(row, of_parts, 0, part * parts) : row, parts, part);
    if (rest) {
      const ValueId last_part = partial(sliced(row, of_parts, part * parts, length), 1, rest);
      given = graph_.must_add(Op::Concat, {given, last_part}, Attrs().set("axis", of_parts), name_);
    }
    ValueId whole = reduced(halves->whole, given, {of_parts});
    if (graph_.node(id).op == Op::ReduceMean)
      whole = graph_.must_add(
          Op::Div, {whole, scalar(graph_, wide, static_cast<double>(type.count() / outputs))}, {},
          name_);
    whole = reshaped(whole, graph_.type(y).shape);
    replace_value(graph_, y, half ? cast(whole, type.dtype) : whole);
  }

 private:
  /// Results that are neighbours in memory: by the dimensions behind the run that is folded, or by
  /// the channels of a value that has them last.
  int64_t neighbours(ValueId x, const std::vector<int64_t>& axes, size_t last) {
    const Shape& shape = graph_.type(x).shape;
    if (!asked_ && channels_last_) stored_last_ = channels_last_(graph_);
    asked_ = true;
    if (x < stored_last_.size() && stored_last_[x]) return folds(axes, 1) ? 1 : shape[1];
    int64_t inner = 1;
    for (size_t d = last + 1; d < shape.size(); ++d)
      if (!folds(axes, d)) inner *= shape[d];
    return inner;
  }
  /// Ascending; none where they are not known.
  std::vector<int64_t> axes_of(NodeId id, int64_t rank) const {
    const graph::Node& node = graph_.node(id);
    const bool told = node.inputs.size() > 1 && node.inputs[1] != kNone;
    const Tensor* known = constant_input(graph_, node, 1);
    if (told && !known) return {};
    std::vector<int64_t> axes = known ? to_ints(*known) : std::vector<int64_t>();
    if (axes.empty() && !node.attrs.get_int("noop_with_empty_axes", 0))
      for (int64_t d = 0; d < rank; ++d) axes.push_back(d);
    for (int64_t& axis : axes) axis += axis < 0 ? rank : 0;
    std::sort(axes.begin(), axes.end());
    return axes;
  }
  static bool folds(const std::vector<int64_t>& axes, size_t d) {
    return std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
  }
  static Shape joined(const Shape& before, const Shape& run, const Shape& after) {
    Shape shape = before;
    shape.insert(shape.end(), run.begin(), run.end());
    shape.insert(shape.end(), after.begin(), after.end());
    return shape;
  }
  ValueId numbers(const std::vector<int64_t>& values) {
    return graph_.add_constant(tensor_of(values));
  }
  ValueId reshaped(ValueId value, const Shape& shape) {
    if (graph_.type(value).shape == shape) return value;
    return graph_.must_add(Op::Reshape, {value, numbers({shape.begin(), shape.end()})}, {}, name_);
  }
  ValueId cast(ValueId value, DType to) {
    return graph_.must_add(Op::Cast, {value}, Attrs().set("to", ops::number_of_dtype(to)), name_);
  }
  ValueId sliced(ValueId value, int64_t axis, int64_t from, int64_t to) {
    return graph_.must_add(Op::Slice, {value, numbers({from}), numbers({to}), numbers({axis})}, {},
                           name_);
  }
  ValueId reduced(Op op, ValueId value, const std::vector<int64_t>& axes) {
    return graph_.must_add(op, {value, numbers(axes)}, Attrs().set("keepdims", int64_t{1}), name_);
  }

  Graph& graph_;
  const ReductionParts& parts_;
  const ChannelsLast& channels_last_;
  bool asked_ = false;
  std::vector<bool> stored_last_;  // of the graph as it came; what is added is not looked at
  std::string name_;
};

}  // namespace

Result<Graph> split_reductions(Graph graph, const ReductionParts& parts,
                               const ChannelsLast& channels_last) {
  Splitter splitter(graph, parts, channels_last);
  const std::vector<NodeId> order = graph.order();  // what is added is not asked
  for (NodeId id : order) splitter.split(id);
  return tidy(std::move(graph));
}

}  // namespace obelisk::passes
