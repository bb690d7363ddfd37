// What some rows of a graph's outputs depend on, and its interpretation.
#include <algorithm>
#include <new>
#include <numeric>

#include "verify/rows.h"

namespace obelisk::verify {
namespace {

using graph::Node;
using graph::NodeId;
using ops::Op;

Coordinates all_of(int64_t extent) { return Coordinates::run(0, extent); }

Region whole_region(const Shape& shape) {
  Region region;
  for (int64_t extent : shape) region.push_back(all_of(extent));
  return region;
}

Shape extents(const Region& region) {
  Shape shape;
  for (const Coordinates& at : region) shape.push_back(at.size());
  return shape;
}

bool is_run(const Coordinates& at) { return at.empty() || at.back() - at.front() + 1 == at.size(); }

Coordinates united(const Coordinates& a, const Coordinates& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  for (const auto& [big, small] : {std::pair(&a, &b), std::pair(&b, &a)})
    if (is_run(*big) && big->front() <= small->front() && small->back() <= big->back()) return *big;
  std::vector<int64_t> all;
  int64_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const bool left = j == b.size() || (i < a.size() && a[i] <= b[j]);
    const int64_t at = left ? a[i++] : b[j++];
    if (all.empty() || all.back() != at) all.push_back(at);
  }
  return all;
}

std::vector<int64_t> dims_from(int64_t first, int64_t rank) {
  std::vector<int64_t> dims;
  for (int64_t d = first; d < rank; ++d) dims.push_back(d);
  return dims;
}

/// Where the dimensions of an input come from.
constexpr int kAll = -1;       // from no dimension of the output: all coordinates are read
constexpr int kRepeated = -2;  // one element, for every coordinate of the output

/// An op whose output at some coordinate of a dimension reads its inputs at that coordinate only.
struct Links {
  std::vector<bool> free;              // dimensions of the output that are so
  std::vector<std::vector<int>> from;  // by input, then its dimension: of the output, or the above
};

/// A dimension each, aligned at the end as numpy broadcasts.
std::vector<int> broadcast_links(const Shape& in, const Shape& out) {
  std::vector<int> links;
  for (size_t d = 0; d < in.size(); ++d) {
    const size_t to = out.size() - in.size() + d;
    links.push_back(in[d] == 1 && out[to] != 1 ? kRepeated : static_cast<int>(to));
  }
  return links;
}

std::vector<int> none_linked(size_t rank) { return std::vector<int>(rank, kAll); }

/// The same rank in and out; `bound` dimensions are read whole.
Links links_but(const ops::Call& call, const std::vector<int64_t>& bound) {
  const auto rank = static_cast<size_t>(call.out().rank());
  Links links{std::vector<bool>(rank, true), {}};
  for (int64_t d : bound) links.free[static_cast<size_t>(d)] = false;
  for (int k = 0; k < call.arity(); ++k) {
    links.from.push_back(call.has(k) ? none_linked(static_cast<size_t>(call.in(k).rank()))
                                     : std::vector<int>{});
    if (k > 0) continue;
    for (size_t d = 0; d < rank; ++d)
      if (links.free[d]) links.from[0][d] = static_cast<int>(d);
  }
  return links;
}

std::optional<int64_t> axis_of(const ops::Call& call, int64_t otherwise) {
  const auto axis =
      ops::normalize_axis(call, call.attrs.get_int("axis", otherwise), call.in(0).rank());
  return axis.ok() ? std::optional<int64_t>(*axis) : std::nullopt;
}

std::optional<Links> product_links(const ops::Call& call) {
  const Shape &a = call.in(0).shape, &b = call.in(1).shape, &out = call.out().shape;
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  Links links{std::vector<bool>(out.size(), true), {}};
  for (const Shape* side : {&a, &b}) {
    Shape aligned = *side;  // the summed dimension is named below
    std::vector<int> from = broadcast_links(aligned, out);
    from[side->size() - (side == &a ? 1 : 2)] = kAll;
    const size_t kept = side->size() - (side == &a ? 2 : 1);
    from[kept] = static_cast<int>(out.size() - side->size() + kept);
    links.from.push_back(std::move(from));
  }
  return links;
}

std::optional<Links> gemm_links(const ops::Call& call) {
  const bool turn_a = call.attrs.get_int("transA", 0) != 0;
  const bool turn_b = call.attrs.get_int("transB", 0) != 0;
  Links links{{true, true}, {}};
  links.from.push_back(turn_a ? std::vector<int>{kAll, 0} : std::vector<int>{0, kAll});
  links.from.push_back(turn_b ? std::vector<int>{1, kAll} : std::vector<int>{kAll, 1});
  if (call.has(2)) links.from.push_back(broadcast_links(call.in(2).shape, call.out().shape));
  return links;
}

/// Dimensions of the output that a reduction's input has, in order.
std::optional<Links> reduction_links(const ops::Call& call) {
  const auto rank = static_cast<size_t>(call.in(0).rank());
  std::vector<bool> folded(rank, false);
  std::vector<int64_t> axes;
  if (call.op == Op::ArgMax || call.op == Op::ArgMin)
    axes = {call.attrs.get_int("axis", 0)};
  else if (call.has(1)) {
    auto known = call.ints(1, "axes");
    if (!known.ok()) return std::nullopt;
    axes = *known;
  }
  if (axes.empty()) return std::nullopt;  // all of them, or none: not worth a case
  for (int64_t axis : axes)
    folded[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis)] = true;
  const bool kept = call.attrs.get_int("keepdims", 1) != 0;
  Links links{std::vector<bool>(static_cast<size_t>(call.out().rank()), true), {}};
  std::vector<int> from;
  int at = 0;
  for (size_t d = 0; d < rank; ++d) {
    from.push_back(folded[d] ? kAll : at);
    if (folded[d] && kept) links.free[static_cast<size_t>(at)] = false;
    if (!folded[d] || kept) ++at;
  }
  links.from.push_back(std::move(from));
  if (call.has(1)) links.from.push_back(none_linked(static_cast<size_t>(call.in(1).rank())));
  return links;
}

std::optional<Links> gather_links(const ops::Call& call) {
  const auto axis = axis_of(call, 0);
  if (!axis) return std::nullopt;
  const int indices = call.in(1).rank();
  Links links{std::vector<bool>(static_cast<size_t>(call.out().rank()), true), {}};
  std::vector<int> data, at(static_cast<size_t>(indices));
  for (int d = 0; d < call.in(0).rank(); ++d)
    data.push_back(d == *axis ? kAll : d < *axis ? d : d + indices - 1);
  std::iota(at.begin(), at.end(), static_cast<int>(*axis));
  links.from = {std::move(data), std::move(at)};
  return links;
}

std::optional<Links> transpose_links(const ops::Call& call) {
  const auto rank = static_cast<size_t>(call.out().rank());
  std::vector<int64_t> order = call.attrs.get_ints("perm");
  if (order.empty())
    for (size_t d = rank; d-- > 0;) order.push_back(static_cast<int64_t>(d));
  Links links{std::vector<bool>(rank, true), {std::vector<int>(rank)}};
  for (size_t d = 0; d < rank; ++d)
    links.from[0][static_cast<size_t>(order[d])] = static_cast<int>(d);
  return links;
}

/// The dimensions that a move does something to; nothing where its numbers are not known.
std::optional<std::vector<int64_t>> touched_dims(const ops::Call& call) {
  const int64_t rank = call.in(0).rank();
  const int axes_at = call.op == Op::Slice || call.op == Op::Pad ? 3 : -1;
  auto numbers = call.ints(1, "a move");
  if (!numbers.ok()) return std::nullopt;
  std::vector<int64_t> axes;
  if (axes_at > 0 && call.has(axes_at)) {
    auto given = call.ints(axes_at, "axes");
    if (!given.ok()) return std::nullopt;
    axes = *given;
  } else if (call.op == Op::CumSum || call.op == Op::CumProd) {
    axes = *numbers;
  } else {
    axes = dims_from(0, call.op == Op::Slice ? static_cast<int64_t>(numbers->size()) : rank);
  }
  std::vector<int64_t> touched;
  for (size_t k = 0; k < axes.size(); ++k) {
    const bool pads = call.op == Op::Pad && (*numbers)[k] == 0 && (*numbers)[axes.size() + k] == 0;
    const bool repeats = call.op == Op::Tile && (*numbers)[k] == 1;
    if (!pads && !repeats) touched.push_back(axes[k] < 0 ? axes[k] + rank : axes[k]);
  }
  return touched;
}

/// Images of a batch: of the first input, and of a mask and cached keys where they have one each.
std::optional<Links> batch_links(const ops::Call& call) {
  const int64_t batch = call.out().shape[0];
  Links links{std::vector<bool>(static_cast<size_t>(call.out().rank()), false), {}};
  links.free[0] = true;
  for (int k = 0; k < call.arity(); ++k) {
    links.from.emplace_back();
    if (!call.has(k)) continue;
    links.from.back() = none_linked(static_cast<size_t>(call.in(k).rank()));
    const bool mask = k == 3;  // of lower rank it has no batch
    if (call.in(k).rank() > 0 && call.in(k).shape[0] == batch && (!mask || call.in(k).rank() == 4))
      links.from.back()[0] = 0;
  }
  return links;
}

std::optional<Links> links_of(const ops::Call& call) {
  const ops::Row& row = ops::row(call.op);
  const int64_t rank = call.out().rank();
  switch (call.op) {
    case Op::MatMul:
      return product_links(call);
    case Op::Gemm:
      return gemm_links(call);
    case Op::Gather:
      return gather_links(call);
    case Op::Transpose:
      return transpose_links(call);
    case Op::Softmax:
    case Op::LogSoftmax:
    case Op::Hardmax:
    case Op::LpNormalization: {
      const auto axis = axis_of(call, -1);
      return axis ? std::optional(links_but(call, {*axis})) : std::nullopt;
    }
    case Op::Split: {
      const auto axis = axis_of(call, 0);
      return axis ? std::optional(links_but(call, {*axis})) : std::nullopt;
    }
    case Op::Slice:
    case Op::Pad:
    case Op::Tile:
    case Op::CumSum:
    case Op::CumProd: {
      const auto touched = touched_dims(call);
      return touched ? std::optional(links_but(call, *touched)) : std::nullopt;
    }
    case Op::Trilu:
      return rank < 2 ? std::nullopt : std::optional(links_but(call, {rank - 2, rank - 1}));
    case Op::LayerNormalization:
    case Op::RMSNormalization: {
      const auto axis = axis_of(call, -1);
      return axis && call.outputs == 1 ? std::optional(links_but(call, dims_from(*axis, rank)))
                                       : std::nullopt;
    }
    case Op::BatchNormalization:
      if (call.outputs != 1 || rank < 2) return std::nullopt;
      return links_but(call, {1});
    case Op::InstanceNormalization:
    case Op::GroupNormalization:
    case Op::LRN:
    case Op::DepthToSpace:
    case Op::SpaceToDepth:
    case Op::ConvTranspose:
      return rank < 2 ? std::nullopt : std::optional(links_but(call, dims_from(1, rank)));
    case Op::MaxPool:
    case Op::AveragePool:
    case Op::LpPool:
    case Op::GlobalMaxPool:
    case Op::GlobalAveragePool:
    case Op::GlobalLpPool:
      return call.outputs != 1 || rank < 3 ? std::nullopt
                                           : std::optional(links_but(call, dims_from(2, rank)));
    case Op::Attention:
      return call.outputs == 1 ? batch_links(call) : std::nullopt;
    case Op::QuantizeLinear:
    case Op::DequantizeLinear:
      if (call.in(1).count() != 1) return std::nullopt;
      break;
    case Op::Resize:
      return rank < 3 || call.in(0).shape[0] != call.out().shape[0] ||
                     call.in(0).shape[1] != call.out().shape[1]
                 ? std::nullopt
                 : std::optional(links_but(call, dims_from(2, rank)));
    case Op::Dropout:          // draws by position
    case Op::RotaryEmbedding:  // these are no maps of elements, whatever their kind
    case Op::GridSample:
    case Op::AffineGrid:
    case Op::Range:
      return std::nullopt;
    case Op::Concat: {
      const auto axis = axis_of(call, 0);
      if (!axis) return std::nullopt;
      Links links = links_but(call, {*axis});
      for (auto& from : links.from) from = links.from[0];
      return links;
    }
    default:
      break;
  }
  if (row.kind == ops::Kind::kReduce && row.max_outputs == 1 && call.in(0).rank() > 0)
    return reduction_links(call);
  if (row.kind != ops::Kind::kMap || call.outputs != 1) return std::nullopt;
  // Elementwise: whatever broadcasts to the output.
  Links links{std::vector<bool>(static_cast<size_t>(rank), true), {}};
  std::optional<Shape> met = Shape{};
  for (int k = 0; k < call.arity(); ++k) {
    links.from.emplace_back();
    if (!call.has(k)) continue;
    met = broadcast(*met, call.in(k).shape);
    if (!met) return std::nullopt;
    if (call.in(k).rank() > rank) return std::nullopt;
    links.from.back() = broadcast_links(call.in(k).shape, call.out().shape);
  }
  if (*met != call.out().shape) return std::nullopt;
  return links;
}

/// A move whose element o comes from the element of the same number, or of a broadcast.
bool is_reshape(Op op) {
  return op == Op::Reshape || op == Op::Flatten || op == Op::Squeeze || op == Op::Unsqueeze ||
         op == Op::Identity;
}

/// Runs of dimensions of equal products on both sides: [6,4] and [2,3,4] are 6|4 and 2,3|4.
struct Run {
  size_t a0, a1, b0, b1;
};
std::vector<Run> equal_runs(const Shape& a, const Shape& b) {
  std::vector<Run> runs;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    Run run{i, i, j, j};
    int64_t left = 1, right = 1;
    do {
      const bool first = i < a.size() && (left <= right || j == b.size());
      if (first)
        left *= a[i++];
      else
        right *= b[j++];
    } while (left != right && (i < a.size() || j < b.size()));
    // ones that follow belong to nobody
    run.a1 = i, run.b1 = j;
    runs.push_back(run);
  }
  return runs;
}

/// The coordinates of dims [begin, end) of `to` whose numbers are those of a region of `from`.
void carry_run(const Region& from, const Shape& from_shape, size_t f0, size_t f1, Region& to,
               const Shape& to_shape, size_t t0, size_t t1) {
  std::vector<int64_t> numbers{0};
  bool whole = true;
  for (size_t d = f0; d < f1; ++d) {
    whole = whole && from[d].size() == from_shape[d];
  }
  if (whole) {
    for (size_t d = t0; d < t1; ++d) to[d] = all_of(to_shape[d]);
    return;
  }
  for (size_t d = f0; d < f1; ++d) {
    std::vector<int64_t> next;
    next.reserve(numbers.size() * static_cast<size_t>(from[d].size()));
    for (int64_t number : numbers)
      for (int64_t k = 0; k < from[d].size(); ++k)
        next.push_back(number * from_shape[d] + from[d][k]);
    numbers = std::move(next);
  }
  int64_t inner = 1;
  for (size_t d = t1; d-- > t0; inner *= to_shape[d]) {
    std::vector<bool> seen(static_cast<size_t>(to_shape[d]), false);
    for (int64_t number : numbers) seen[static_cast<size_t>(number / inner % to_shape[d])] = true;
    std::vector<int64_t> found;
    for (int64_t at = 0; at < to_shape[d]; ++at)
      if (seen[static_cast<size_t>(at)]) found.push_back(at);
    to[d] = std::move(found);
  }
}

Region reshaped(const Region& from, const Shape& from_shape, const Shape& to_shape) {
  Region to(to_shape.size());
  for (const Run& run : equal_runs(from_shape, to_shape))
    carry_run(from, from_shape, run.a0, run.a1, to, to_shape, run.b0, run.b1);
  return to;
}

/// Pixels: an interval of each spatial dimension, its window's pixels and the padding that is left.
bool narrow_conv(const ops::Call& call, Part& part) {
  Region& to = part.out[0];
  const auto geometry = ops::conv_geometry(call);
  if (!geometry.ok()) return false;
  const size_t rank = geometry->in.size();
  std::vector<int64_t> before, after;
  part.in[0] = {to[0], all_of(geometry->inputs)};
  for (size_t d = 0; d < rank; ++d) {
    Coordinates& out = to[2 + d];
    if (out.empty()) return false;
    const int64_t first = out.front(), last = out.back();
    out = Coordinates::run(first, last - first + 1);
    const int64_t low = first * geometry->strides[d] - geometry->begin[d];
    const int64_t high = last * geometry->strides[d] - geometry->begin[d] +
                         (geometry->kernel[d] - 1) * geometry->dilations[d];
    const int64_t end = geometry->in[d] - 1;
    if (high < 0 || low > end) return false;  // nothing but padding
    before.push_back(std::max<int64_t>(-low, 0)), after.push_back(std::max<int64_t>(high - end, 0));
    const int64_t from = std::max<int64_t>(low, 0);
    part.in[0].push_back(Coordinates::run(from, std::min(high, end) - from + 1));
  }
  before.insert(before.end(), after.begin(), after.end());
  part.attrs = call.attrs;
  part.attrs.erase("auto_pad");
  part.attrs.set("pads", before);
  const bool one_group = geometry->groups == 1;
  if (!one_group) to[1] = all_of(geometry->outputs);
  part.in[1] = whole_region(call.in(1).shape);
  part.in[1][0] = to[1];
  if (call.has(2)) part.in[2] = {to[1]};
  return true;
}

bool narrow_links(const ops::Call& call, Part& part) {
  const auto links = links_of(call);
  if (!links) return false;
  part.attrs = call.attrs;
  const size_t rank = links->free.size();
  for (size_t output = 0; output < part.out.size(); ++output)
    for (size_t d = 0; d < rank; ++d)
      if (!links->free[d])
        part.out[output][d] = all_of(call.out(static_cast<int>(output)).shape[d]);
  for (int k = 0; k < call.arity(); ++k) {
    if (!call.has(k)) continue;
    const auto slot = static_cast<size_t>(k);
    const Shape& shape = call.in(k).shape;
    part.in[slot].resize(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      const int from = slot < links->from.size() ? links->from[slot][d] : kAll;
      part.in[slot][d] = from == kAll        ? all_of(shape[d])
                         : from == kRepeated ? all_of(1)
                                             : part.out[0][static_cast<size_t>(from)];
    }
  }
  return true;
}

/// The types of a call on regions, for as long as it lives.
struct SmallCall {
  std::vector<Type> inputs, results;
  ops::Call call;

  SmallCall(const ops::Call& whole, const Part& part) : call{.op = whole.op, .attrs = part.attrs} {
    for (size_t k = 0; k < part.in.size(); ++k)
      inputs.push_back(whole.has(static_cast<int>(k))
                           ? Type{whole.in(static_cast<int>(k)).dtype, extents(part.in[k])}
                           : Type{});
    for (size_t k = 0; k < part.in.size(); ++k) {
      const bool has = whole.has(static_cast<int>(k));
      call.inputs.push_back(has ? &inputs[k] : nullptr);
      const bool same = has && inputs[k] == whole.in(static_cast<int>(k));
      call.constants.push_back(same ? whole.constants[k] : nullptr);
    }
    call.outputs = whole.outputs;
    for (size_t k = 0; k < part.out.size(); ++k)
      results.push_back({whole.out(static_cast<int>(k)).dtype, extents(part.out[k])});
    for (const Type& result : results) call.results.push_back(&result);
  }
  SmallCall(const SmallCall&) = delete;
  bool sound() const {
    const auto types = ops::infer(call);
    return types.ok() && *types == results;
  }
};

/// The part of a node that gives `out` of each of its outputs, or the whole node.
Part narrowed(const Graph& graph, NodeId id, const Region& out) {
  const Node& node = graph.node(id);
  const ops::Call call = graph.call(id);
  Part part{.needed = true, .whole = false, .out = {}, .in = {}, .attrs = {}}, whole = part;
  part.out.assign(node.outputs.size(), out), part.in.resize(node.inputs.size());
  whole.whole = true;
  for (size_t k = 0; k < node.outputs.size(); ++k)
    whole.out.push_back(whole_region(call.out(static_cast<int>(k)).shape));
  if ((node.outputs.size() != 1 && node.op != Op::Split) || extents(out) == call.out().shape)
    return whole;
  if (is_reshape(node.op)) {
    part.in[0] = reshaped(out, call.out().shape, call.in(0).shape);
    return part;  // other inputs say the shape, which the regions know
  }
  if (node.op == Op::Expand) {
    const Shape& shape = call.in(0).shape;
    const std::vector<int> links = broadcast_links(shape, call.out().shape);
    for (size_t d = 0; d < shape.size(); ++d)
      part.in[0].push_back(links[d] == kRepeated ? all_of(1) : out[static_cast<size_t>(links[d])]);
    return part;
  }
  const bool narrow = node.op == Op::Conv ? narrow_conv(call, part) : narrow_links(call, part);
  if (!narrow || extents(part.out[0]) == call.out().shape) return whole;
  return SmallCall(call, part).sound() ? part : whole;
}

/// Where each coordinate of `some` stands among those of `all`.
std::vector<std::vector<int64_t>> places(const Region& all, const Region& some) {
  std::vector<std::vector<int64_t>> at(some.size());
  for (size_t d = 0; d < some.size(); ++d)
    for (int64_t k = 0; k < some[d].size(); ++k) {
      at[d].push_back(all[d].find(some[d][k]));
      CHECK(at[d].back() >= 0, "coordinate {} was not asked for", some[d][k]);
    }
  return at;
}

void copy_one(Tensor& to, int64_t at, const Tensor& from, int64_t place) {
  if (is_float(to.dtype()))
    to.set_double(at, from.get_double(place));
  else
    to.set_int(at, from.get_int(place));
}

/// The elements of `some` of a tensor that holds those of `all`.
Tensor selected(const Tensor& tensor, const Region& all, const Region& some) {
  if (extents(all) == extents(some)) return tensor;
  const auto at = places(all, some);
  const Shape strides = row_major_strides(tensor.shape());
  Tensor out = Tensor::allocate({tensor.dtype(), extents(some)});
  const int64_t count = out.count();
  std::vector<size_t> point(some.size(), 0);
  for (int64_t k = 0; k < count; ++k) {
    int64_t from = 0;
    for (size_t d = 0; d < point.size(); ++d) from += at[d][point[d]] * strides[d];
    copy_one(out, k, tensor, from);
    for (size_t d = point.size(); d-- > 0;) {
      if (++point[d] < at[d].size()) break;
      point[d] = 0;
    }
  }
  return out;
}

/// A move by numbers: element `out` of the output is the element of that number (Reshape), or of
/// the coordinates that it is repeated from (Expand).
Tensor moved(const Part& part, const ops::Call& call, const Tensor& from) {
  const Region& to = part.out[0];
  Tensor out = Tensor::allocate({from.dtype(), extents(to)});
  const Shape &whole = call.out().shape, &source = call.in(0).shape;
  const Region& have = part.in[0];
  const Shape strides = row_major_strides(extents(have));
  std::vector<size_t> point(to.size(), 0);
  const int64_t count = out.count();
  for (int64_t k = 0; k < count; ++k) {
    int64_t number = 0, place = 0;
    for (size_t d = 0; d < point.size(); ++d)
      number = number * whole[d] + to[d][static_cast<int64_t>(point[d])];
    for (size_t d = source.size(); d-- > 0;) {
      int64_t at = 0;
      const size_t aligned = d + whole.size() - source.size();
      if (call.op != Op::Expand)
        at = number % source[d], number /= source[d];
      else if (source[d] != 1)
        at = to[aligned][static_cast<int64_t>(point[aligned])];
      const int64_t found = have[d].find(at);
      CHECK(found >= 0, "a move reads what was not asked for");
      place += found * strides[d];
    }
    copy_one(out, k, from, place);
    for (size_t d = point.size(); d-- > 0;) {
      if (static_cast<int64_t>(++point[d]) < to[d].size()) break;
      point[d] = 0;
    }
  }
  return out;
}

Region region_of(const Type& type, const Rows& rows) {
  Region region = whole_region(type.shape);
  if (!rows.all()) region[rows.dim] = rows.at;
  return region;
}

}  // namespace

Coordinates::Coordinates(std::vector<int64_t> at)
    : first_(at.empty() ? 0 : at.front()), count_(static_cast<int64_t>(at.size())) {
  if (!at.empty() && at.back() - at.front() + 1 != count_) at_ = std::move(at);
}

Coordinates Coordinates::run(int64_t first, int64_t count) {
  Coordinates all;
  all.first_ = first, all.count_ = count;
  return all;
}

int64_t Coordinates::find(int64_t wanted) const {
  if (at_.empty()) return wanted >= first_ && wanted - first_ < count_ ? wanted - first_ : -1;
  const auto found = std::lower_bound(at_.begin(), at_.end(), wanted);
  return found != at_.end() && *found == wanted ? found - at_.begin() : -1;
}

std::vector<Rows> spread_rows(const Graph& graph, int64_t count) {
  std::vector<Rows> all;
  for (ValueId v : graph.outputs()) {
    Rows rows;
    const Shape& shape = graph.type(v).shape;
    while (rows.dim < shape.size() && shape[rows.dim] == 1) ++rows.dim;
    if (rows.dim < shape.size()) rows.of = shape[rows.dim];
    if (rows.of > count)
      for (int64_t k = 0; k < count; ++k)
        rows.at.push_back(count == 1 ? rows.of - 1 : k * (rows.of - 1) / (count - 1));
    else
      rows.dim = 0;
    all.push_back(std::move(rows));
  }
  return all;
}

/// Of a Split's outputs the coordinates that any of them is asked for.
Region Demand::needed_of_any(const Node& node) const {
  Region wanted;
  for (ValueId out : node.outputs) {
    if (!needed_[static_cast<size_t>(out)]) continue;
    const Region& one = regions_[static_cast<size_t>(out)];
    if (wanted.empty())
      wanted = one;
    else
      for (size_t d = 0; d < one.size(); ++d) wanted[d] = united(wanted[d], one[d]);
  }
  return wanted;
}

void Demand::need(ValueId value, const Region& region) {
  if (value == graph::kNone) return;
  for (const auto& at : region)
    if (at.empty()) return;
  const auto v = static_cast<size_t>(value);
  if (!needed_[v]) {
    needed_[v] = true, regions_[v] = region;
    return;
  }
  for (size_t d = 0; d < region.size(); ++d) regions_[v][d] = united(regions_[v][d], region[d]);
}

Demand::Demand(const Graph& graph, std::span<const Rows> rows)
    : graph_(graph),
      rows_(rows.begin(), rows.end()),
      regions_(static_cast<size_t>(graph.value_count())),
      needed_(static_cast<size_t>(graph.value_count()), false),
      parts_(static_cast<size_t>(graph.node_count())) {
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    need(graph.outputs()[k], region_of(graph.type(graph.outputs()[k]), rows_[k]));
  for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
    const Node& node = graph.node(*at);
    Part& part = parts_[static_cast<size_t>(*at)];
    for (ValueId out : node.outputs) part.needed |= needed_[static_cast<size_t>(out)];
    if (!part.needed) continue;
    Region wanted = regions_[static_cast<size_t>(node.outputs[0])];
    if (node.op == Op::Split) wanted = needed_of_any(node);
    part = narrowed(graph, *at, wanted);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId in = node.inputs[k];
      if (in == graph::kNone) continue;
      if (part.whole)
        need(in, whole_region(graph.type(in).shape));
      else if (!part.in[k].empty() || graph.type(in).rank() == 0)
        need(in, part.in[k]);
    }
    // What is computed, which may be more than what is needed.
    for (size_t k = 0; k < node.outputs.size(); ++k)
      regions_[static_cast<size_t>(node.outputs[k])] = part.out[k];
  }
}

double Demand::flops() const {
  double sum = 0;
  for (NodeId id : graph_.order()) {
    const Part& part = parts_[static_cast<size_t>(id)];
    if (!part.needed) continue;
    const ops::Call call = graph_.call(id);
    if (part.whole) {
      sum += ops::cost(call).flops.count;
    } else if (!is_reshape(call.op) && call.op != Op::Expand) {
      sum += ops::cost(SmallCall(call, part).call).flops.count;
    }
  }
  return sum;
}

double Demand::elements() const {
  double sum = 0;
  for (NodeId id : graph_.order())
    if (const Part& part = parts_[static_cast<size_t>(id)]; part.needed)
      for (const Region& out : part.out) sum += static_cast<double>(element_count(extents(out)));
  return sum;
}

double Demand::peak_bytes() const {
  constexpr double kWide = 8;
  std::vector<NodeId> last(regions_.size(), graph::kNone);
  const auto bytes = [&](ValueId v) {
    return needed_[static_cast<size_t>(v)]
               ? kWide *
                     static_cast<double>(element_count(extents(regions_[static_cast<size_t>(v)])))
               : 0;
  };
  for (NodeId id : graph_.order())
    if (parts_[static_cast<size_t>(id)].needed)
      for (ValueId in : graph_.node(id).inputs)
        if (in != graph::kNone && !graph_.value(in).is_constant())
          last[static_cast<size_t>(in)] = id;
  double held = 0, peak = 0;
  for (ValueId in : graph_.inputs()) held += bytes(in);
  for (NodeId id : graph_.order()) {
    if (!parts_[static_cast<size_t>(id)].needed) continue;
    const Node& node = graph_.node(id);
    double copies = 0;  // of what the node reads and writes
    for (ValueId out : node.outputs) held += bytes(out), copies += bytes(out);
    for (size_t k = 0; k < node.inputs.size(); ++k)
      if (node.inputs[k] != graph::kNone && !graph::reads_as_stored(graph_, node, k))
        copies += bytes(node.inputs[k]);
    peak = std::max(peak, held + copies);
    for (ValueId in : node.inputs)
      if (in != graph::kNone && last[static_cast<size_t>(in)] == id) {
        held -= bytes(in);
        last[static_cast<size_t>(in)] = graph::kNone;  // read twice by this node: given back once
      }
  }
  return peak;
}

Result<std::vector<Tensor>> Demand::interpret(std::span<const Tensor> inputs,
                                              const graph::Interpretation& how) const {
  try {
    return interpret_parts(inputs, how);
  } catch (const std::bad_alloc&) {
    return Error{
        .code = Code::kMemory, .room = "verify", .message = "not enough memory for the reference"};
  }
}

Result<std::vector<Tensor>> Demand::interpret_parts(std::span<const Tensor> inputs,
                                                    const graph::Interpretation& how) const {
  const auto carried = [&](DType dtype) {
    return how.exact && is_float(dtype) && !is_low_float(dtype) ? DType::f64 : dtype;
  };
  const auto widened = [&](const Tensor& tensor) {
    const DType dtype = carried(tensor.dtype());
    return dtype == tensor.dtype() ? tensor : tensor.cast(dtype);
  };
  std::vector<Tensor> values(static_cast<size_t>(graph_.value_count()));
  std::vector<NodeId> last(values.size(), graph::kNone);
  for (NodeId id : graph_.order())
    if (parts_[static_cast<size_t>(id)].needed)
      for (ValueId in : graph_.node(id).inputs)
        if (in != graph::kNone) last[static_cast<size_t>(in)] = id;
  for (ValueId out : graph_.outputs()) last[static_cast<size_t>(out)] = graph::kNone;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const ValueId v = graph_.inputs()[k];
    if (needed_[static_cast<size_t>(v)])
      values[static_cast<size_t>(v)] = widened(
          selected(inputs[k], whole_region(inputs[k].shape()), regions_[static_cast<size_t>(v)]));
  }
  const auto read = [&](ValueId v, const Region* region, bool as_stored = false) {
    const graph::Value& value = graph_.value(v);
    if (value.is_constant()) {
      Tensor part = region ? selected(value.constant, whole_region(value.type.shape), *region)
                           : value.constant;
      return as_stored ? part : widened(part);
    }
    const Tensor& tensor = values[static_cast<size_t>(v)];
    return region ? selected(tensor, regions_[static_cast<size_t>(v)], *region) : tensor;
  };
  for (NodeId id : graph_.order()) {
    const Part& part = parts_[static_cast<size_t>(id)];
    if (!part.needed) continue;
    const Node& node = graph_.node(id);
    ops::Call call = graph_.call(id);
    std::vector<Tensor> outputs;
    if (!part.whole && (is_reshape(node.op) || node.op == Op::Expand)) {
      outputs.push_back(moved(part, call, read(node.inputs[0], &part.in[0])));
    } else {
      std::optional<SmallCall> small;
      if (!part.whole) small.emplace(call, part);
      std::vector<Tensor> in(node.inputs.size());
      std::vector<const Tensor*> pointers(node.inputs.size(), nullptr);
      for (size_t k = 0; k < in.size(); ++k) {
        if (node.inputs[k] == graph::kNone) continue;
        in[k] = read(node.inputs[k], small ? &part.in[k] : nullptr,
                     graph::reads_as_stored(graph_, node, k));
        pointers[k] = &in[k];
      }
      ops::Call& made = small ? small->call : call;
      const bool looks_up = node.op == Op::Gather && graph::reads_as_stored(graph_, node, 0);
      for (const Type* result : made.results)
        outputs.push_back(
            Tensor::allocate({looks_up ? result->dtype : carried(result->dtype), result->shape}));
      const bool wide = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& output) {
        return output.dtype() == DType::f64;
      });
      made.sums = wide ? ops::Sums::kDouble : how.sums;
      if (Status status = ops::reference(made, pointers, outputs); !status.ok()) {
        Error error = status.error();
        if (error.node.empty()) error.node = node.name;
        return error;
      }
      if (looks_up) outputs[0] = widened(outputs[0]);
    }
    if (how.probe && !how.probe(id, outputs)) return std::vector<Tensor>();
    for (ValueId in : node.inputs)
      if (in != graph::kNone && last[static_cast<size_t>(in)] == id)
        values[static_cast<size_t>(in)] = Tensor();
    for (size_t k = 0; k < outputs.size(); ++k)
      values[static_cast<size_t>(node.outputs[k])] = std::move(outputs[k]);
  }
  std::vector<Tensor> answers;
  for (size_t k = 0; k < graph_.outputs().size(); ++k) {
    const ValueId v = graph_.outputs()[k];
    const Region wanted = region_of(graph_.type(v), rows_[k]);
    answers.push_back(read(v, &wanted));
  }
  return answers;
}

}  // namespace obelisk::verify
