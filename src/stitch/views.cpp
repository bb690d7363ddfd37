#include "stitch/views.h"

#include "stitch/attention_tile.h"
#include "stitch/conv_tile.h"
#include "stitch/gemm_tile.h"
#include "stitch/stitch.h"

namespace obelisk::stitch {

using ops::Exprs;
using ops::Kind;
using ops::Loop;
using ops::Op;
using ops::Scalar;

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
    if (tiles_) place_parts();
    if (tiles_) store_product_operands(), find_dual_gemms();
  }
  for (ValueId v : graph.outputs()) stored_[v] = true;
  for (const auto& [out, pieces] : pieces_)  // by readers of the concatenation, or as an output
    for (ValueId v : pieces) stored_[v] = true;
  for (NodeId n : graph.order()) {
    std::string why;
    if (match_conv(graph, n, tiles_, why)) stored_[graph.node(n).inputs[0]] = true;
    if (loop(n, 0)) continue;
    const bool strided = has_attention_tile(graph, n, tiles_, why);
    for (size_t k = 0; k < graph.node(n).inputs.size();
         ++k) {  // any other op without a loop form reads dense values
      const ValueId v = graph.node(n).inputs[k];
      if (const auto part = contiguous_part(n, v)) {
        stored_[part->value] = true;
        continue;
      }
      if (graph.node(n).op == Op::NormStatistics) {
        if (k == 0) stored_[rows_behind(v)] = true;
        continue;  // the other one only says whose tile gives them
      }
      if (v != graph::kNone &&
          !(strided && attention_operand(graph, *this, n, static_cast<int>(k))))
        stored_[v] = true;
    }
  }
}

ValueId Views::rows_behind(ValueId value) const {
  for (NodeId n; (n = graph_.producer(value, Op::Reshape)) != graph::kNone && view_[n];) {
    const ValueId whole = graph_.node(n).inputs[0];
    const Shape &from = graph_.type(whole).shape, &to = graph_.type(value).shape;
    if (from.empty() || to.empty() || from.back() != to.back()) break;
    value = whole;
  }
  return value;
}

std::optional<Views::Strided> Views::strided(Exprs& exprs, ValueId value, std::vector<ExprId> at,
                                             int rank) const {
  const DType dtype = graph_.type(value).dtype;
  std::optional<Strided> found;
  int reads = 0;
  const auto leaf = [&](ValueId stored, DType type, std::vector<ExprId> coords, ExprId guard,
                        ExprId) {
    const auto place = ops::affine(exprs, offset(exprs, stored, coords), rank);
    if (++reads == 1 && guard == kNoExpr && place && graph_.type(stored).dtype == dtype)
      found = Strided{stored, *place};
    return exprs.load(reads, type, std::move(coords));
  };
  const ExprId body = read(exprs, value, dtype, std::move(at), kNoExpr, kNoExpr, leaf);
  if (reads != 1 || exprs[body].scalar != Scalar::kLoad) return std::nullopt;
  return found;
}

std::optional<BlockInput> Views::contiguous_part(NodeId scatter, ValueId value) const {
  if (value == graph::kNone) return std::nullopt;
  const graph::Value& part = graph_.value(value);
  if (part.is_constant() || part.producer == graph::kNone || !view_[part.producer] ||
      has_pieces(value) || !ops::block_in_place(graph_.call(scatter), 1))
    return std::nullopt;
  const Shape& shape = part.type.shape;
  const int rank = static_cast<int>(shape.size());
  Exprs exprs;
  std::vector<ExprId> at;
  for (int d = 0; d < rank; ++d)
    at.push_back(shape[d] == 1 ? exprs.integer(0) : exprs.coord(d, shape[d]));
  const auto found = strided(exprs, value, std::move(at), rank);
  if (!found || graph_.value(found->value).is_constant() ||
      layouts_[found->value].storage != found->value ||
      found->value == graph_.node(scatter).inputs[0])  // which may be overwritten
    return std::nullopt;
  const std::vector<int64_t> dense = row_major_strides(shape);
  for (int d = 0; d < rank; ++d)
    if (shape[d] != 1 && found->at.strides[d] != dense[d]) return std::nullopt;
  return BlockInput{found->value, found->at.offset};
}

const Loop* Views::loop(NodeId node, int output) const {
  auto [it, fresh] = loops_.try_emplace({node, output});
  if (fresh && graph_.node(node).outputs[output] != graph::kNone)
    it->second = ops::loop(graph_.call(node), output);
  return it->second ? &*it->second : nullptr;
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
      continue;  // a piece of a concatenation is stored there by its producer
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

bool Views::is_free(NodeId node) const {
  const std::vector<ValueId>& outputs = graph_.node(node).outputs;
  if (taken_splits_.count(node)) return true;
  if (outputs.size() == 1 && has_pieces(outputs[0])) return true;
  if (!view_[node]) return false;
  for (ValueId v : outputs)
    if (v != graph::kNone && stored_[v] && !has_pieces(v)) return false;
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

}  // namespace obelisk::stitch
