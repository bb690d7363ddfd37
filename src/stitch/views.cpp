#include "stitch/views.h"

#include <algorithm>
#include <numeric>

#include "stitch/attention_tile.h"
#include "stitch/stitch.h"

namespace obelisk::stitch {
namespace {

using ops::Exprs;
using ops::Kind;
using ops::Loop;
using ops::Op;
using ops::Scalar;

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

/// Channels last, for [N, C, spatial...].
std::vector<int> channels_last(int rank) {
  std::vector<int> order = {0};
  for (int d = 2; d < rank; ++d) order.push_back(d);
  order.push_back(1);
  return order;
}

}  // namespace

Views::Views(const Graph& graph, const Options& options, const kernels::TileLibrary* tiles)
    : graph_(graph), tiles_(tiles) {
  layouts_.resize(graph.value_count());
  stored_.assign(graph.value_count(), false);
  view_.assign(graph.node_count(), false);
  for (ValueId v = 0; v < graph.value_count(); ++v) {
    layouts_[v].storage = v;
    layouts_[v].strides = row_major_strides(graph.type(v).shape);
  }
  if (options.stitch || tiles_)
    choose_orders();  // a tile of a convolution wants channels last, stitched or not
  if (options.stitch) {
    place_concatenations();
    find_views();
    if (tiles_) store_product_operands(), find_twins();
  }
  for (ValueId v : graph.outputs()) stored_[v] = true;
  for (const auto& [out, pieces] :
       pieces_)  // whoever reads the concatenation, or takes it as an output
    for (ValueId v : pieces) stored_[v] = true;
  for (NodeId n : graph.order()) {
    std::string why;
    if (match_conv(graph, n, tiles_, why)) stored_[graph.node(n).inputs[0]] = true;
    if (loop(n, 0)) continue;
    const bool strided = has_attention_tile(graph, n, tiles_, why);
    for (size_t k = 0; k < graph.node(n).inputs.size();
         ++k) {  // any other op without a loop form reads dense values
      const ValueId v = graph.node(n).inputs[k];
      if (graph.node(n).op == Op::NormStatistics && k == 1)
        continue;  // only says whose tile gives them
      if (v != graph::kNone &&
          !(strided && attention_operand(graph, *this, n, static_cast<int>(k))))
        stored_[v] = true;
    }
  }
}

const Loop* Views::loop(NodeId node, int output) const {
  auto [it, fresh] = loops_.try_emplace({node, output});
  if (fresh && graph_.node(node).outputs[output] != graph::kNone)
    it->second = ops::loop(graph_.call(node), output);
  return it->second ? &*it->second : nullptr;
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
      if (v != graph::kNone) fixed[v] = true;
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
        if (tiles_ && type.rank() >= 3 && (node.op == Op::Conv || feeds_conv)) {
          order = channels_last(type.rank());
        } else if (users.size() == 1 && graph_.node(users[0]).op == Op::Transpose &&
                   kind != Kind::kMove) {
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

/// Pieces of a concatenation are stored inside its output when each has one reader and is made by
/// an op that stores anywhere.
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
    bool fits = true;
    std::vector<ValueId> seen;
    for (ValueId v : node.inputs) {
      const graph::Value& value = graph_.value(v);
      const bool made = value.producer != graph::kNone && !value.is_constant();
      const Kind kind = made ? ops::row(graph_.node(value.producer).op).kind : Kind::kCustom;
      // An Identity that is left after the passes is a copy that somebody wants.
      const Op op = made ? graph_.node(value.producer).op : Op::Concat;
      const bool storable = made && loop(value.producer, value.producer_output) &&
                            (kind != Kind::kMove || op == Op::Concat || op == Op::Identity);
      fits = fits && storable && !graph_.is_output(v) && !taken[v] && graph_.users(v).size() == 1 &&
             std::find(seen.begin(), seen.end(), v) == seen.end();
      seen.push_back(v);
    }
    if (!fits) continue;
    const int rank = graph_.type(out).rank();
    int64_t axis = node.attrs.get_int("axis", 0);
    if (axis < 0) axis += rank;
    int64_t at = 0;
    for (ValueId v : node.inputs) {
      Layout& layout = layouts_[v];
      layout.storage = layouts_[out].storage;
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

/// A cast that changes no number: f16 and bf16 are read as f32 anyway.
bool Views::widens(NodeId n) const {
  const graph::Node& node = graph_.node(n);
  if (node.op != Op::Cast) return false;
  const DType from = graph_.type(node.inputs[0]).dtype;
  return is_half(from) && graph_.type(node.outputs[0]).dtype == DType::f32;
}

/// The widening cast that `value` comes from by moves alone, or none.
NodeId Views::widening_behind(ValueId value) const {
  while (value != graph::kNone && graph_.value(value).producer != graph::kNone) {
    const NodeId producer = graph_.value(value).producer;
    if (widens(producer)) return producer;
    if (ops::row(graph_.node(producer).op).kind != Kind::kMove ||
        graph_.node(producer).inputs.empty())
      break;
    value = graph_.node(producer).inputs[0];
  }
  return graph::kNone;
}

/// Widening casts that would leave a product with operands of two types, for which no machine has a
/// tile: these are computed.
std::set<NodeId> Views::casts_to_compute() const {
  std::set<NodeId> out;
  for (NodeId n : graph_.order()) {
    const graph::Node& node = graph_.node(n);
    if (ops::row(node.op).kind != Kind::kCompute || node.inputs.size() < 2) continue;
    const NodeId a = widening_behind(node.inputs[0]), b = widening_behind(node.inputs[1]);
    const auto type = [&](NodeId cast) {
      return cast == graph::kNone ? DType::f32 : graph_.type(graph_.node(cast).inputs[0]).dtype;
    };
    if (type(a) == type(b)) continue;
    for (NodeId cast : {a, b})
      if (cast != graph::kNone) out.insert(cast);
  }
  return out;
}

void Views::find_views() {
  const std::set<NodeId> computed = casts_to_compute();
  for (NodeId n : graph_.order()) {
    const graph::Node& node = graph_.node(n);
    if (widens(n) && !computed.count(n) && layouts_[node.outputs[0]].storage == node.outputs[0])
      view_[n] = true;
    if (ops::row(node.op).kind != Kind::kMove) continue;
    bool plain = true, all = true;
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      if (node.outputs[output] == graph::kNone) continue;
      const Loop* form = loop(n, static_cast<int>(output));
      if (!form || form->combine != ops::Combine::kNone) {
        all = false;
        break;
      }
      const ops::Expr& body = form->exprs[form->body];
      bool reindexes = body.scalar == Scalar::kLoad && body.args[0] == kNoExpr;
      for (ExprId coord : body.coords) {
        // A coordinate that is itself loaded (a gather) is not a plain reindexing, but where it is
        // one known number.
        std::function<bool(ExprId)> loads = [&](ExprId id) {
          const ops::Expr& expr = form->exprs[id];
          if (expr.scalar == Scalar::kLoad) {
            const graph::Value& index = graph_.value(node.inputs[expr.slot]);
            return !index.is_constant() || index.type.count() != 1;
          }
          for (ExprId arg : expr.args)
            if (arg != kNoExpr && loads(arg)) return true;
          return false;
        };
        if (reindexes && loads(coord)) reindexes = false;
      }
      plain = plain && reindexes;
    }
    if (!all) continue;
    if (plain) {
      view_[n] = true;
      continue;
    }
    // Gathers, pads, concatenations: read through by a single reader that touches each element
    // about once.
    if (node.outputs.size() != 1 || has_pieces(node.outputs[0]) ||
        graph_.is_output(node.outputs[0]))
      continue;
    if (layouts_[node.outputs[0]].storage != node.outputs[0])
      continue;  // a piece of a concatenation is stored there by whoever makes it
    const std::vector<NodeId> users = graph_.users(node.outputs[0]);
    if (users.size() != 1) continue;
    const Kind reader = ops::row(graph_.node(users[0]).op).kind;
    if (reader != Kind::kMap || node.inputs.size() > 4) continue;
    if (graph_.type(node.outputs[0]).count() <
        graph_.type(graph_.node(users[0]).outputs[0]).count())
      continue;
    view_[n] = true;
  }
}

/// A product whose operand cannot be addressed through its views (columns of a reshape that crosses
/// heads) gets a stored copy: one more walk over the operand against a product without a tile.
void Views::store_product_operands() {
  for (NodeId n : graph_.order()) {
    const graph::Node& node = graph_.node(n);
    if (ops::row(node.op).kind != Kind::kCompute || node.outputs.size() != 1) continue;
    const Loop* form = loop(n, 0);
    std::string why;
    if (!form || form->combine != ops::Combine::kSum || match_conv(graph_, n, tiles_, why))
      continue;
    auto fits = [&] {
      const auto product = match_product(graph_, *this, n, why);
      return product && tile_fits(*tiles_, *product, why);
    };
    std::vector<NodeId> stopped;
    for (size_t k = 0; k < node.inputs.size() && !fits(); ++k) {
      const ValueId v = node.inputs[k];
      NodeId producer = v == graph::kNone ? graph::kNone : graph_.value(v).producer;
      if (producer == graph::kNone || !view_[producer]) continue;
      if (widens(producer)) {  // the copy keeps its 16 bits: the cast stays a view of it
        const NodeId narrow = graph_.value(graph_.node(producer).inputs[0]).producer;
        if (narrow != graph::kNone && view_[narrow]) producer = narrow;
      }
      view_[producer] = false;
      stopped.push_back(producer);
    }
    if (!stopped.empty() && !fits())
      for (NodeId producer : stopped) view_[producer] = true;
  }
}

/// Whether some elementwise op reads what both halves become.
bool Views::halves_meet(const graph::Node& split) const {
  constexpr size_t kMost = 100;
  std::set<NodeId> seen[2];
  for (int side : {0, 1}) {
    std::vector<ValueId> open{split.outputs[side]};
    while (!open.empty() && seen[side].size() < kMost) {
      const ValueId value = open.back();
      open.pop_back();
      for (NodeId user : graph_.users(value)) {
        if (ops::row(graph_.node(user).op).kind != Kind::kMap || !seen[side].insert(user).second)
          continue;
        open.insert(open.end(), graph_.node(user).outputs.begin(), graph_.node(user).outputs.end());
      }
    }
  }
  return std::any_of(seen[0].begin(), seen[0].end(),
                     [&](NodeId user) { return seen[1].count(user) > 0; });
}

/// A product with constant weights that only a split into halves of its columns reads, where the
/// halves meet.
void Views::find_twins() {
  for (NodeId n : graph_.order()) {
    const graph::Node& split = graph_.node(n);
    if (split.op != Op::Split || split.outputs.size() != 2) continue;
    const ValueId whole = split.inputs[0];
    const graph::Value& value = graph_.value(whole);
    if (value.producer == graph::kNone || graph_.is_output(whole) ||
        graph_.users(whole).size() != 1)
      continue;
    if (split.outputs[0] == graph::kNone || split.outputs[1] == graph::kNone) continue;
    const Shape &shape = value.type.shape, &half = graph_.type(split.outputs[0]).shape;
    if (shape.empty() || half.back() * 2 != shape.back() ||
        half != graph_.type(split.outputs[1]).shape)
      continue;
    const Loop* form = loop(value.producer, 0);
    if (!form || form->finish != kNoExpr || graph_.node(value.producer).outputs.size() != 1)
      continue;
    std::string why;
    const auto product = match_product(graph_, *this, value.producer, why);
    if (!product || !tile_fits(*tiles_, *product, why) || !product->batch.empty() ||
        product->n.size() != 1 || product->parts > 1)
      continue;
    if (product->n[0].c + 1 != static_cast<int64_t>(shape.size()) ||
        product->n[0].extent != shape.back())
      continue;
    if (!graph_.value(product->b).is_constant() || byte_size(product->b_type, 1) < 2 ||
        !halves_meet(split))
      continue;
    twins_[value.producer] = n;
    taken_splits_.insert(n);
    view_[n] = false;
  }
}

bool Views::is_free(NodeId node) const {
  const std::vector<ValueId>& outputs = graph_.node(node).outputs;
  if (taken_splits_.count(node)) return true;
  if (outputs.size() == 1 && has_pieces(outputs[0])) return true;
  if (!view_[node]) return false;
  for (ValueId v : outputs)
    if (v != graph::kNone && stored_[v]) return false;
  return true;
}

ExprId Views::read(Exprs& exprs, ValueId value, DType dtype, std::vector<ExprId> coords,
                   ExprId guard, ExprId otherwise, const Leaf& leaf) const {
  const graph::Value& v = graph_.value(value);
  if (v.is_constant() && v.type.count() == 1 && guard == kNoExpr) {
    const DType type = ops::compute_type(v.type.dtype);
    return is_float(type)       ? exprs.constant(type, v.constant.get_double(0))
           : type == DType::i64 ? exprs.integer(v.constant.get_int(0))
           : bits(type) <= 32   ? exprs.constant(type, static_cast<double>(v.constant.get_int(0)))
                                : leaf(value, dtype, std::move(coords), guard, otherwise);
  }
  if (v.is_constant() || v.producer == graph::kNone || !view_[v.producer] || has_pieces(value)) {
    return leaf(value, dtype, std::move(coords), guard, otherwise);
  }
  const Loop* form = loop(v.producer, v.producer_output);
  const graph::Node& node = graph_.node(v.producer);
  const auto inner = [&](int slot, DType inner_type, std::vector<ExprId> at, ExprId inner_guard,
                         ExprId inner_otherwise) {
    ExprId g = inner_guard, o = inner_otherwise;
    if (guard != kNoExpr) {
      g = inner_guard == kNoExpr ? guard : exprs.both(guard, inner_guard);
      if (inner_guard == kNoExpr) o = exprs.constant(inner_type, 0);
    }
    return read(exprs, node.inputs[slot], inner_type, std::move(at), g, o, leaf);
  };
  const ops::Expr& body = form->exprs[form->body];
  if (body.scalar == Scalar::kLoad && body.args[0] == kNoExpr) {  // it can carry the guard itself
    std::vector<ExprId> at;
    for (ExprId coord : body.coords)  // which may load too: positions, of another type
      at.push_back(exprs.import(form->exprs, coord, coords, inner));
    return read(exprs, node.inputs[body.slot], body.dtype, std::move(at), guard, otherwise, leaf);
  }
  ExprId result = exprs.import(form->exprs, form->body, coords, inner);
  if (guard != kNoExpr) result = exprs.select(guard, result, otherwise);
  return result;
}

ExprId Views::offset(Exprs& exprs, ValueId value, const std::vector<ExprId>& coords) const {
  const Layout& layout = layouts_[value];
  ExprId sum = exprs.integer(layout.offset);
  for (size_t d = 0; d < coords.size(); ++d)
    sum = exprs.add(sum, exprs.mul(coords[d], layout.strides[d]));
  return sum;
}

std::optional<Product> match_product(const Graph& graph, const Views& views, NodeId node,
                                     std::string& why) {
  const Loop* form = views.loop(node, 0);
  if (!form || form->combine != ops::Combine::kSum) {
    why = "not a sum";
    return std::nullopt;
  }
  const int rank = static_cast<int>(form->domain.size());
  Exprs exprs;
  std::vector<ExprId> coords;
  for (int d = 0; d < rank; ++d) coords.push_back(exprs.coord(d, form->domain[d]));
  struct Leaf {
    ValueId value;
    DType dtype;
    ops::Affine at;
  };
  std::vector<Leaf> leaves;
  bool plain = true;
  auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                  ExprId) -> ExprId {
    if (guard != kNoExpr) plain = false;
    auto affine = ops::affine(exprs, views.offset(exprs, value, at), rank);
    if (affine)
      leaves.push_back({value, dtype, *affine});
    else
      plain = false;
    return exprs.load(static_cast<int>(leaves.size()), dtype, std::move(at));
  };
  const ExprId body = exprs.import(
      form->exprs, form->body, coords,
      [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
        return views.read(exprs, graph.node(node).inputs[slot], dtype, std::move(at), guard,
                          otherwise, leaf);
      });
  const ops::Expr& top = exprs[body];
  if (!plain || leaves.size() != 2) {
    why = "an operand is not an affine read";
    return std::nullopt;
  }
  if (top.scalar != Scalar::kMul || exprs[top.args[0]].scalar != Scalar::kLoad ||
      exprs[top.args[1]].scalar != Scalar::kLoad) {
    why = "not a product of two reads";
    return std::nullopt;
  }
  Product product;
  product.a = leaves[0].value, product.b = leaves[1].value;
  product.a_offset = leaves[0].at.offset, product.b_offset = leaves[1].at.offset;
  product.a_type = leaves[0].dtype, product.b_type = leaves[1].dtype;
  product.parts = graph.call(node).attrs.get_int("parts", 1);
  for (int d = 0; d < rank; ++d) {
    if (form->domain[d] == 1) continue;
    Product::Dim dim{form->domain[d], leaves[0].at.strides[d], leaves[1].at.strides[d], d};
    if (d >= form->parallel) {
      if (!dim.a || !dim.b) {
        why = "a summed dimension that one side does not read";
        return std::nullopt;
      }
      // Neighbours that both sides walk as one are one.
      if (!product.k.empty() && product.k.back().a == dim.a * dim.extent &&
          product.k.back().b == dim.b * dim.extent) {
        dim.extent *= product.k.back().extent;
        product.k.back() = dim;
      } else {
        product.k.push_back(dim);
      }
    } else if (dim.a && dim.b) {
      product.batch.push_back(dim);
    } else if (dim.b) {
      product.n.push_back(dim);
    } else {
      product.m.push_back(dim);
    }
  }
  // A tile has one column dimension, the longest; each point of the others is a product of its own.
  if (product.n.size() > 1) {
    std::stable_sort(product.n.begin(), product.n.end(),
                     [](auto& x, auto& y) { return x.extent > y.extent; });
    product.batch.insert(product.batch.end(), product.n.begin() + 1, product.n.end());
    product.n.resize(1);
  }
  return product;
}

bool tile_fits(const kernels::TileLibrary& tiles, const Product& product, std::string& why) {
  if (!tiles.gemm.takes(static_cast<int32_t>(product.a_type),
                        static_cast<int32_t>(product.b_type))) {
    why = "there is no tile for the types";
    return false;
  }
  if (product.m.size() > 4 || product.k.size() > 1 || product.batch.size() > 4) {
    why = "the summed dimensions do not lie one after the other";
    return false;
  }
  if (product.n.empty() || product.k.empty()) {
    why = "a product with a vector has no tile";
    return false;
  }
  return true;
}

std::optional<ConvTile> match_conv(const Graph& graph, NodeId node,
                                   const kernels::TileLibrary* tiles, std::string& why) {
  if (!tiles) {
    why = "tiles are off";
    return std::nullopt;
  }
  if (graph.node(node).op != Op::Conv) {
    why = "not a convolution";
    return std::nullopt;
  }
  const ops::Call call = graph.call(node);
  auto shape = ops::conv_geometry(call);
  if (!shape.ok()) {
    why = shape.error().message;
    return std::nullopt;
  }
  const ops::ConvGeometry& window = *shape;
  const int rank = static_cast<int>(window.in.size());
  if (!tiles->conv.takes(static_cast<int32_t>(call.in(0).dtype))) {
    why = "there is no tile for the type";
    return std::nullopt;
  }
  if (rank > 2) {
    why = "tiles have at most two spatial dimensions";
    return std::nullopt;
  }
  if (!graph.value(graph.node(node).inputs[1]).is_constant()) {
    why = "weights are not constant";
    return std::nullopt;
  }
  if (graph.value(graph.node(node).inputs[0]).is_constant()) {
    why = "the input is constant";
    return std::nullopt;
  }
  if (call.out().count() == 0 || call.in(0).count() == 0) {
    why = "empty";
    return std::nullopt;
  }
  ConvTile tile;
  tile.type = call.in(0).dtype;
  tile.x = graph.node(node).inputs[0], tile.w = graph.node(node).inputs[1];
  tile.depthwise = shape->groups > 1 && shape->group_inputs == 1;
  const int w = rank - 1, h = w - 1;
  for (int axis = 0; axis < rank; ++axis)
    if (window.begin[axis] < 0) {
      why = "negative padding";
      return std::nullopt;
    }
  tile.width = window.in[w], tile.out_width = window.out[w], tile.kernel_w = window.kernel[w];
  tile.stride_w = window.strides[w], tile.dilation_w = window.dilations[w],
  tile.pad_left = window.begin[w];
  if (h >= 0) {
    tile.height = window.in[h], tile.out_height = window.out[h], tile.kernel_h = window.kernel[h];
    tile.stride_h = window.strides[h], tile.dilation_h = window.dilations[h],
    tile.pad_top = window.begin[h];
  }
  tile.shape = std::move(*shape);
  return tile;
}

std::optional<Product> match_pixel_product(const Views& views, const ConvTile& conv) {
  const ops::ConvGeometry& shape = conv.shape;
  if (shape.groups != 1 || shape.in != shape.out) return std::nullopt;
  for (size_t d = 0; d < shape.in.size(); ++d)
    if (shape.kernel[d] != 1 || shape.strides[d] != 1 || shape.begin[d] != 0) return std::nullopt;
  const Layout &x = views.layout(conv.x), &w = views.layout(conv.w);
  if (x.strides[1] != 1) return std::nullopt;  // not channels-last: a tile would gather it
  Product product;
  product.a = conv.x, product.b = conv.w, product.a_type = product.b_type = conv.type;
  product.a_offset = x.offset, product.b_offset = w.offset;
  if (shape.batch > 1) product.m.push_back({shape.batch, x.strides[0], 0, 0});
  for (size_t d = 0; d < shape.in.size(); ++d)
    if (shape.in[d] > 1)
      product.m.push_back({shape.in[d], x.strides[2 + d], 0, static_cast<int64_t>(2 + d)});
  product.n.push_back({shape.outputs, 0, w.strides[0], 1});
  product.k.push_back({shape.inputs, x.strides[1], w.strides[1], 0});
  return product;
}

}  // namespace obelisk::stitch
