#include "passes/split_reductions.h"

#include <algorithm>
#include <set>

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

/// How long a part is: of as many as wished, or of somewhat fewer where these divide the length;
/// else what is left of it is the last of them.
int64_t fitting_part(int64_t wished, int64_t length) {
  for (int64_t parts = wished; parts * 4 >= wished * 3 && parts > 1; --parts)
    if (length % parts == 0) return length / parts;
  return (length + wished - 1) / wished;
}

class Splitter {
 public:
  Splitter(Graph& graph, const ReductionParts& parts, const ChannelsLast& channels_last)
      : graph_(graph), parts_(parts), channels_last_(channels_last) {}

  void split(NodeId id) {
    if (gone_.count(id)) return;
    const auto cut = cut_of(id);
    if (!cut) return;
    name_ = graph_.node(id).name;
    if (cut->variance != kNone && cut->rest == 0) return split_moments(id, *cut);
    const Halves halves = *halves_of(graph_.node(id).op);
    const ValueId y = graph_.node(id).outputs[0];
    const ValueId row = row_of(id, *cut);
    const auto partial = [&](ValueId from, int64_t count, int64_t size) {
      return reduced(halves.part, parts_of(from, *cut, count, size), cut->inside);
    };
    const int64_t in_parts = cut->parts * cut->part;
    ValueId given =
        partial(cut->rest ? sliced(row, cut->of_parts, 0, in_parts) : row, cut->parts, cut->part);
    if (cut->rest) {
      const ValueId left = partial(sliced(row, cut->of_parts, in_parts, cut->length), 1, cut->rest);
      given = graph_.must_add(Op::Concat, {given, left}, Attrs().set("axis", cut->of_parts), name_);
    }
    ValueId whole = reduced(halves.whole, given, {cut->of_parts});
    if (graph_.node(id).op == Op::ReduceMean)
      whole = graph_.must_add(Op::Div, {whole, scalar_of(whole, folded_by(id))}, {}, name_);
    answer(y, whole);
  }

 private:
  /// How a reduction's input is cut: `length` elements of its longest run of neighbouring axes into
  /// `parts` of `part`, and `rest` that are left.
  struct Cut {
    Shape before, after;          // of the run
    std::vector<int64_t> inside;  // axes that a part folds, the parts before them
    int64_t of_parts = 0;         // the axis of the parts
    int64_t length = 0, parts = 0, part = 0, rest = 0;
    NodeId variance = kNone;  // about the mean, if that is what it is
    ValueId pixels = kNone;   // whose channels are stored last, if the run is cut by its pixels
  };
  /// None: the reduction stays as it is.
  std::optional<Cut> cut_of(NodeId id) {
    const auto halves = halves_of(graph_.node(id).op);
    if (!halves) return std::nullopt;
    const ValueId x = graph_.node(id).inputs[0];
    const Type type = graph_.type(x);
    const bool real = is_half(type.dtype) || type.dtype == DType::f32 || type.dtype == DType::f64;
    if (!real && !(halves->of_integers && (type.dtype == DType::i32 || type.dtype == DType::i64)))
      return std::nullopt;
    const std::vector<int64_t> axes = axes_of(id, type.rank());
    if (axes.empty() || type.count() == 0) return std::nullopt;
    const auto [first, last] = longest_run(type.shape, axes);
    Cut cut{.variance = variance_beside(id)};
    cut.before.assign(type.shape.begin(), type.shape.begin() + static_cast<int64_t>(first));
    cut.after.assign(type.shape.begin() + static_cast<int64_t>(last) + 1, type.shape.end());
    cut.length = type.count() / element_count(cut.before) / element_count(cut.after);
    const int64_t outputs = graph_.type(graph_.node(id).outputs[0]).count(),
                  passes = cut.variance == kNone ? 1 : 3, inner = neighbours(x, axes, last);
    // Behind the run there is one dimension more, the parts.
    cut.of_parts = static_cast<int64_t>(first);
    cut.inside = {cut.of_parts + 1};
    for (int64_t axis : axes)
      if (axis < static_cast<int64_t>(first))
        cut.inside.push_back(axis);
      else if (axis > static_cast<int64_t>(last))
        cut.inside.push_back(axis - static_cast<int64_t>(last - first) + 1);
    follow_memory(x, cut);
    const int64_t wished = parts_({type, outputs, inner, cut.length, passes, cut.pixels != kNone});
    if (wished < 2) return std::nullopt;
    cut.part = fitting_part(std::min(wished, cut.length), cut.length);
    cut.parts = cut.length / cut.part, cut.rest = cut.length - cut.part * cut.parts;
    if (cut.parts < 2 && cut.rest == 0) return std::nullopt;
    return cut;
  }

  /// What an op of these inputs makes of `value`; kNone where none does.
  ValueId reader(ValueId value, Op op, const std::vector<ValueId>& inputs) const {
    for (NodeId user : graph_.users(value))
      if (graph_.node(user).op == op && graph_.node(user).inputs == inputs)
        return graph_.node(user).outputs[0];
    return kNone;
  }

  /// Of a mean: the variance about it, which is the mean along the same axes of the squares of what
  /// remains of its input without it.
  NodeId variance_beside(NodeId mean) const {
    const Node& node = graph_.node(mean);
    const int64_t rank = graph_.type(node.inputs[0]).rank();
    if (node.op != Op::ReduceMean || graph_.type(node.outputs[0]).rank() != rank) return kNone;
    const ValueId less = reader(node.outputs[0], Op::Sub, {node.inputs[0], node.outputs[0]});
    const ValueId squares = less == kNone ? kNone : reader(less, Op::Mul, {less, less});
    if (squares == kNone || !has_one_reader(graph_, squares)) return kNone;
    const NodeId variance = graph_.users(squares).front();
    const bool same = graph_.node(variance).op == Op::ReduceMean &&
                      axes_of(variance, rank) == axes_of(mean, rank);
    return same ? variance : kNone;
  }

  /// Each part gives its mean and the sum of the squares about it. Both are read while the part is
  /// on its way once, and nothing cancels as in sums of squares about zero.
  void split_moments(NodeId mean, const Cut& cut) {
    gone_.insert(cut.variance);
    const ValueId row = parts_of(row_of(mean, cut), cut, cut.parts, cut.part),
                  means = reduced(Op::ReduceMean, row, cut.inside),
                  about = squared(op(Op::Sub, row, means)),
                  squares = reduced(Op::ReduceSum, about, cut.inside),
                  whole = reduced(Op::ReduceMean, means, {cut.of_parts}),
                  between = squared(op(Op::Sub, means, whole));
    const double folded = folded_by(mean), each = folded / static_cast<double>(cut.parts);
    const ValueId all = op(Op::Add, squares, op(Op::Mul, between, scalar_of(between, each))),
                  sum = reduced(Op::ReduceSum, all, {cut.of_parts});
    answer(graph_.node(mean).outputs[0], whole);
    answer(graph_.node(cut.variance).outputs[0], op(Op::Div, sum, scalar_of(sum, folded)));
  }

  double folded_by(NodeId id) const {
    const graph::Node& node = graph_.node(id);
    return static_cast<double>(graph_.type(node.inputs[0]).count() /
                               graph_.type(node.outputs[0]).count());
  }
  /// The input, with the run as one dimension; of 16 bits as f32.
  ValueId row_of(NodeId id, const Cut& cut) {
    ValueId row = graph_.node(id).inputs[0];
    if (cut.pixels != kNone) {  // [N, pixels, groups, channels of a group], then groups first
      const auto rank = graph_.type(cut.pixels).rank();
      std::vector<int64_t> order{0};
      for (int64_t d = 2; d < rank; ++d) order.push_back(d);
      order.push_back(1);
      const int64_t batch = cut.before[0], groups = cut.before[1], each = cut.after[0];
      row = transposed(reshaped(transposed(cut.pixels, order), {batch, cut.length, groups, each}),
                       {0, 2, 1, 3});
    }
    const DType type = graph_.type(row).dtype, wide = is_half(type) ? DType::f32 : type;
    row = reshaped(row, joined(cut.before, {cut.length}, cut.after));
    return type == wide ? row : cast(row, wide);
  }
  /// A reshape, or a cast that row_of() makes too.
  bool keeps_numbers(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.op == Op::Reshape ||
           (node.op == Op::Cast && is_half(graph_.type(node.inputs[0]).dtype) &&
            graph_.type(node.outputs[0]).dtype == DType::f32);
  }
  /// Where a run takes all pixels of some channels, and these are stored last, a part is pixels
  /// with their channels, which lie next to each other, instead of channels with their pixels.
  void follow_memory(ValueId x, Cut& cut) const {
    const auto last = [&](ValueId v) {
      return static_cast<size_t>(v) < stored_last_.size() && stored_last_[v];
    };
    ValueId v = x;
    for (NodeId maker = graph_.value(v).producer; !last(v); maker = graph_.value(v).producer) {
      if (maker == kNone || !keeps_numbers(maker)) return;
      v = graph_.node(maker).inputs[0];
    }
    const Shape& shape = graph_.type(v).shape;
    const int64_t batch = shape[0], runs = element_count(cut.before), channels = shape[1];
    if (element_count(cut.after) != 1 || cut.inside.size() != 1 || runs % batch != 0 ||
        channels % (runs / batch) != 0 || runs * cut.length != graph_.type(v).count())
      return;
    const int64_t groups = runs / batch, each = channels / groups;
    if (each == 1) return;
    cut.pixels = v, cut.before = {batch, groups}, cut.after = {each};
    cut.length /= each, cut.of_parts = 2, cut.inside = {3, 4};
  }
  ValueId transposed(ValueId value, const std::vector<int64_t>& order) {
    return graph_.must_add(Op::Transpose, {value}, Attrs().set("perm", order), name_);
  }
  ValueId parts_of(ValueId row, const Cut& cut, int64_t count, int64_t size) {
    return reshaped(row, joined(cut.before, {count, size}, cut.after));
  }
  void answer(ValueId y, ValueId value) {
    const Type type = graph_.type(y);
    value = reshaped(value, type.shape);
    replace_value(graph_, y,
                  graph_.type(value).dtype == type.dtype ? value : cast(value, type.dtype));
  }
  ValueId op(Op op, ValueId a, ValueId b) { return graph_.must_add(op, {a, b}, {}, name_); }
  ValueId squared(ValueId value) { return op(Op::Mul, value, value); }
  ValueId scalar_of(ValueId like, double value) {
    return scalar(graph_, graph_.type(like).dtype, value);
  }
  /// Results that are neighbours in memory: by the dimensions behind the run that is folded, or by
  /// the channels of a value that has them last.
  int64_t neighbours(ValueId x, const std::vector<int64_t>& axes, size_t last) {
    const Shape& shape = graph_.type(x).shape;
    if (!asked_ && channels_last_) stored_last_ = channels_last_(graph_);
    asked_ = true;
    if (static_cast<size_t>(x) < stored_last_.size() && stored_last_[x])
      return folds(axes, 1) ? 1 : shape[1];
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
  std::set<NodeId> gone_;          // their readers have what came in their place
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
