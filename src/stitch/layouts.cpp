// In which order of dimensions, and inside of what, each value is stored.
#include <algorithm>
#include <numeric>

#include "stitch/attention_tile.h"
#include "stitch/conv_tile.h"
#include "stitch/views.h"

namespace obelisk::stitch {

using ops::Exprs;
using ops::Kind;
using ops::Op;

namespace {

std::vector<int64_t> strides_in_order(const Shape& shape, const std::vector<int>& order) {
  std::vector<int64_t> strides(shape.size(), 0);
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = stride;
    stride *= std::max<int64_t>(shape[order[k]], 1);
  }
  return strides;
}

std::vector<int> identity_order(int rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Ops that reorder or reshape all elements of their input.
bool moves_all(Op op) {
  return op == Op::Transpose || op == Op::Reshape || op == Op::Squeeze || op == Op::Unsqueeze ||
         op == Op::Flatten;
}

/// Channels last, for [N, C, spatial...].
std::vector<int> channels_last(int rank) {
  std::vector<int> order = {0};
  for (int d = 2; d < rank; ++d) order.push_back(d);
  order.push_back(1);
  return order;
}

}  // namespace

/// Whether only moves lie between a value and a convolution, which then reads it in place
/// (place_parts).
bool Views::leads_to_conv(ValueId value) const {
  const std::vector<NodeId> users = graph_.users(value);
  return std::any_of(users.begin(), users.end(), [&](NodeId user) {
    const graph::Node& node = graph_.node(user);
    std::string why;
    if (node.op == Op::Conv)
      return node.inputs[0] == value && match_conv(graph_, user, tiles_, why);
    return moves_all(node.op) && leads_to_conv(node.outputs[0]);
  });
}

/// Whether a squeeze-and-excitation block reads or writes this value: it wants the channels last.
bool Views::is_excited(ValueId value) const {
  const NodeId maker = graph_.value(value).producer;
  const std::vector<NodeId> users = graph_.users(value);
  return (maker != graph::kNone && graph_.node(maker).op == Op::SqueezeExcite) ||
         std::any_of(users.begin(), users.end(), [&](NodeId user) {
           return graph_.node(user).op == Op::SqueezeExcite && graph_.node(user).inputs[0] == value;
         });
}

bool Views::suits_block(NodeId excite) const {
  const graph::Node& node = graph_.node(excite);
  if (graph_.value(node.inputs[1]).producer != graph::kNone ||
      graph_.value(node.inputs[3]).producer != graph::kNone)
    return false;
  return [&](auto... values) {
    return (... && (layouts_[values].storage == values && layouts_[values].offset == 0 &&
                    layouts_[values].strides ==
                        strides_in_order(graph_.type(values).shape,
                                         channels_last(graph_.type(values).rank()))));
  }(node.inputs[0], node.outputs[0]);
}

/// Which dimension order each value is stored in. Graph inputs, outputs and what custom ops touch
/// stay row-major.
void Views::choose_orders() {
  std::vector<bool> fixed(graph_.value_count(), false);
  for (ValueId v : graph_.inputs()) fixed[v] = true;
  for (ValueId v : graph_.outputs()) fixed[v] = true;
  for (ValueId v = 0; v < graph_.value_count(); ++v)
    if (graph_.value(v).is_constant()) fixed[v] = true;
  for (NodeId n : graph_.order()) {
    if (loop(n, 0)) continue;
    for (ValueId v : graph_.node(n).inputs)
      if (v != graph::kNone && !(graph_.node(n).op == Op::SqueezeExcite && is_excited(v)))
        fixed[v] = true;
    if (graph_.node(n).op == Op::SqueezeExcite) continue;
    std::string why;
    if (has_attention_tile(graph_, n, tiles_, why)) continue;  // stored as its reader likes
    for (ValueId v : graph_.node(n).outputs)
      if (v != graph::kNone) fixed[v] = true;
  }
  std::vector<std::vector<int>> orders(graph_.value_count());
  for (NodeId n : graph_.order()) {
    const graph::Node& node = graph_.node(n);
    const Kind kind = ops::row(node.op).kind;
    for (ValueId v : node.outputs) {
      if (v == graph::kNone) continue;
      const Type& type = graph_.type(v);
      std::vector<int> order = identity_order(type.rank());
      if (!fixed[v]) {
        const std::vector<NodeId> users = graph_.users(v);
        const bool feeds_conv = std::any_of(users.begin(), users.end(), [&](NodeId user) {
          std::string why;
          return graph_.node(user).op == Op::Conv && graph_.node(user).inputs[0] == v &&
                 match_conv(graph_, user, tiles_, why);
        });
        if (is_excited(v) || (tiles_ && type.rank() >= 3 && (node.op == Op::Conv || feeds_conv))) {
          order = channels_last(type.rank());
        } else if (users.size() == 1 && graph_.node(users[0]).op == Op::Transpose &&
                   kind != Kind::kMove && !leads_to_conv(v)) {
          const auto perm = graph_.node(users[0]).attrs.get_ints("perm");
          if (perm.size() == order.size()) order.assign(perm.begin(), perm.end());
        } else {
          // Follow an input of the same rank whose order is not the plain one: elementwise,
          // pooling, concatenation.
          for (ValueId in : node.inputs) {
            if (in == graph::kNone || orders[in].empty() || graph_.type(in).rank() != type.rank())
              continue;
            if (kind == Kind::kMap || kind == Kind::kReduce || node.op == Op::Concat) {
              order = orders[in];
              break;
            }
          }
        }
      }
      if (order != identity_order(type.rank())) orders[v] = order;
      layouts_[v].strides = strides_in_order(type.shape, order);
    }
  }
}

/// Whether an op that reads a value at this offset of a layout can load 16 bytes at once, as from a
/// buffer of the value's own.
static bool is_aligned(const Layout& out, int64_t offset, DType type) {
  const int64_t whole = std::max<int64_t>(16 / byte_size(type, 1), 1);
  return offset % whole == 0 &&
         std::all_of(out.strides.begin(), out.strides.end(),
                     [&](int64_t stride) { return stride == 1 || stride % whole == 0; });
}

/// Whether every reader of a value addresses it by its offset and strides. A call of an op does
/// not: it takes a dense operand at the beginning of a buffer.
bool Views::is_read_by_strides(ValueId value) const {
  const std::vector<NodeId> users = graph_.users(value);
  return std::all_of(users.begin(), users.end(), [&](NodeId user) {
    std::string why;
    return loop(user, 0) || has_attention_tile(graph_, user, tiles_, why);
  });
}

/// Whether the inputs of a concatenation are neighbours inside of another one along the same axis
/// already, as where every layer of a dense block reads all those before it: then it is the part of
/// that one which they fill. schedule/storage_box.h finds it by itself.
bool Views::lie_side_by_side(const graph::Node& concat, int64_t axis) const {
  const ValueId out = concat.outputs[0];
  const Layout& first = layouts_[concat.inputs[0]];
  if (graph_.is_output(out) || layouts_[out].storage != out || first.storage == concat.inputs[0])
    return false;
  const NodeId id = graph_.producer(first.part_of, Op::Concat);
  if (id == graph::kNone) return false;
  const graph::Node& whole = graph_.node(id);
  const int64_t along = whole.attrs.get_int("axis", 0);
  if ((along < 0 ? along + graph_.type(out).rank() : along) != axis ||
      std::search(whole.inputs.begin(), whole.inputs.end(), concat.inputs.begin(),
                  concat.inputs.end()) == whole.inputs.end())
    return false;
  int64_t offset = first.offset;
  for (ValueId v : concat.inputs) {
    const Layout& layout = layouts_[v];
    if (layout.storage != first.storage || layout.part_of != first.part_of ||
        layout.strides != first.strides || layout.offset != offset)
      return false;
    offset += graph_.type(v).shape[axis] * layout.strides[axis];
  }
  return is_read_by_strides(out) && is_aligned(first, first.offset, graph_.type(out).dtype);
}

/// Inputs of a concatenation are written directly into its output, if each is made by an op that
/// can store anywhere and is in no other concatenation. Other readers of an input read it there;
/// so do other concatenations of neighbours.
void Views::place_concatenations() {
  std::vector<bool> taken(graph_.value_count(), false);
  // Later ones first, so that a concatenation inside a concatenation finds its own place already
  // decided.
  for (auto it = graph_.order().rbegin(); it != graph_.order().rend(); ++it) {
    const NodeId n = *it;
    const graph::Node& node = graph_.node(n);
    if (node.op != Op::Concat) continue;
    const ValueId out = node.outputs[0];
    if (bits(graph_.type(out).dtype) < 8) continue;
    std::vector<bool> fitting;
    std::vector<ValueId> seen;
    int64_t axis = node.attrs.get_int("axis", 0), offset = layouts_[out].offset;
    if (axis < 0) axis += graph_.type(out).rank();
    for (ValueId v : node.inputs) {
      const graph::Value& value = graph_.value(v);
      const bool made = value.producer != graph::kNone && !value.is_constant();
      const Kind kind = made ? ops::row(graph_.node(value.producer).op).kind : Kind::kCustom;
      // An Identity that is left after the passes is a copy that is wanted.
      const Op op = made ? graph_.node(value.producer).op : Op::Concat;
      const bool storable = made && loop(value.producer, value.producer_output) &&
                            (kind != Kind::kMove || op == Op::Concat || op == Op::Identity);
      fitting.push_back(
          storable && !graph_.is_output(v) && !taken[v] &&
          (graph_.users(v).size() == 1 ||
           (is_read_by_strides(v) && is_aligned(layouts_[out], offset, graph_.type(out).dtype))) &&
          std::find(seen.begin(), seen.end(), v) == seen.end());
      seen.push_back(v);
      offset += graph_.type(v).shape[axis] * layouts_[out].strides[axis];
    }
    if (std::find(fitting.begin(), fitting.end(), false) != fitting.end()) {
      if (lie_side_by_side(node, axis)) {
        layouts_[out] = layouts_[node.inputs[0]];  // it begins there
        pieces_[out] = node.inputs;
      } else {
        copied_[n] = std::move(fitting);
      }
      continue;
    }
    int64_t at = 0;
    for (ValueId v : node.inputs) {
      Layout& layout = layouts_[v];
      layout.storage = layouts_[out].storage, layout.part_of = out;
      layout.strides = layouts_[out].strides;
      layout.offset = layouts_[out].offset + at * layouts_[out].strides[axis];
      at += graph_.type(v).shape[axis];
      taken[v] = true;
    }
    pieces_[out] = node.inputs;
  }
  // A nested concatenation's pieces: reading the outer one waits for the inner ones' producers.
  for (auto& [out, pieces] : pieces_) {
    for (size_t k = 0; k < pieces.size(); ++k) {
      auto inner = pieces_.find(pieces[k]);
      if (inner == pieces_.end()) continue;
      std::vector<ValueId> leaves = inner->second;
      pieces.erase(pieces.begin() + k);
      pieces.insert(pieces.begin() + k, leaves.begin(), leaves.end());
      --k;
    }
  }
}

/// The stored value that `value` is a slice of, or all of in another order of dimensions; kNone
/// where other views lie between them. schedule/storage_box.h checks the same by itself.
ValueId Views::source_of(ValueId value) const {
  const auto view = [&](ValueId v) -> const graph::Node* {
    const NodeId producer = graph_.value(v).producer;
    return producer == graph::kNone || !view_[producer] || has_pieces(v) ? nullptr
                                                                         : &graph_.node(producer);
  };
  const graph::Node* node = view(value);
  if (!node) return graph::kNone;
  if (node->op == Op::Split || node->op == Op::Slice) return node->inputs[0];
  ValueId source = value;
  for (; node; source = node->inputs[0], node = view(source))
    if (!moves_all(node->op)) break;
  return source == value ? graph::kNone : source;
}

/// Whether a slice has no steps: its strides are those of what it is cut from.
static bool same_steps(const Shape& shape, const Layout& slice, const Layout& whole) {
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1 && slice.strides[d] != whole.strides[d]) return false;
  return true;
}

/// A convolution's input that is a slice of a stored value, or all of it in another order of
/// dimensions (tokens as an image), is no copy: tiles read it in place, by strides. Only where a
/// work of the program computes the value, channels are next to each other, and 16-byte loads stay
/// aligned.
void Views::place_parts() {
  for (NodeId n : graph_.order()) {
    std::string why;
    if (!match_conv(graph_, n, tiles_, why)) continue;
    const ValueId v = graph_.node(n).inputs[0], whole = source_of(v);
    if (whole == graph::kNone || graph_.is_output(v) || graph_.is_output(whole)) continue;
    const NodeId maker = graph_.value(whole).producer;
    if (maker == graph::kNone || (view_[maker] && !has_pieces(whole)) || !loop(maker, 0)) continue;
    const Shape& shape = graph_.type(v).shape;
    const int rank = static_cast<int>(shape.size());
    Exprs exprs;
    std::vector<ExprId> at;
    for (int d = 0; d < rank; ++d) at.push_back(exprs.coord(d, shape[d]));
    const auto found = strided(exprs, v, std::move(at), rank);
    if (!found || found->value != whole || found->at.strides[1] != 1) continue;
    Layout layout = layouts_[v];
    layout.storage = layouts_[whole].storage, layout.part_of = whole;
    layout.offset = found->at.offset, layout.strides = strides_in_order(shape, channels_last(rank));
    for (int d = 0; d < rank; ++d)
      if (shape[d] > 1) layout.strides[d] = found->at.strides[d];
    const Op cut = graph_.node(graph_.value(v).producer).op;
    if ((cut == Op::Slice || cut == Op::Split) && !same_steps(shape, layout, layouts_[whole]))
      continue;
    if (!is_read_by_strides(v) || !is_aligned(layout, layout.offset, graph_.type(v).dtype) ||
        !is_aligned(layouts_[whole], layout.offset, graph_.type(v).dtype))
      continue;
    layouts_[v] = std::move(layout);
    pieces_[v] = has_pieces(whole) ? pieces(whole) : std::vector<ValueId>{whole};
    stored_[whole] = true;
  }
}

}  // namespace obelisk::stitch
