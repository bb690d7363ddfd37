#include "stitch/attention_tile.h"

#include <algorithm>
#include <cmath>

namespace obelisk::stitch {
namespace {

using graph::kNone;
using ops::Exprs;
using ops::Op;

enum Input : int { kQuery, kKey, kValue, kMask, kInputs };

/// What the op's types say.
struct Sizes {
  bool packed = false;
  int64_t images = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, size = 0, value_size = 0;
};

Sizes sizes(const Graph& graph, NodeId node) {
  const graph::Node& n = graph.node(node);
  const Shape& q = graph.type(n.inputs[kQuery]).shape;
  const Shape& k = graph.type(n.inputs[kKey]).shape;
  const Shape& v = graph.type(n.inputs[kValue]).shape;
  if (q.size() == 4) return {false, q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
  const int64_t heads = n.attrs.get_int("q_num_heads", 1);
  const int64_t kv_heads = n.attrs.get_int("kv_num_heads", 1);
  return {true, q[0], heads, kv_heads, q[1], k[1], q[2] / heads, v[2] / kv_heads};
}

ValueId input_of(const Graph& graph, NodeId node, int input) {
  const std::vector<ValueId>& inputs = graph.node(node).inputs;
  return input < static_cast<int>(inputs.size()) ? inputs[input] : kNone;
}

/// The operand's own coordinates at (image, head, row, column).
std::vector<ExprId> coords_of(Exprs& exprs, const Shape& shape, const Sizes& s, int input) {
  const int64_t heads = input == kQuery || input == kMask ? s.heads : s.kv_heads;
  const int64_t rows = input == kQuery || input == kMask ? s.queries : s.keys;
  const int64_t columns = input == kMask ? s.keys : input == kValue ? s.value_size : s.size;
  const ExprId image = exprs.coord(0, s.images), head = exprs.coord(1, heads);
  const ExprId row = exprs.coord(2, rows), column = exprs.coord(3, columns);
  std::vector<ExprId> at{image, head, row, column};
  if (input != kMask) {
    if (s.packed) at = {image, row, exprs.add(exprs.mul(head, columns), column)};
    return at;
  }
  at.erase(at.begin(), at.end() - static_cast<int64_t>(shape.size()));
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] == 1) at[d] = exprs.integer(0);
  return at;
}

AttentionTile::Operand operand(ValueId value, const ops::Affine& at) {
  return {value, at.offset, at.strides[0], at.strides[1], at.strides[2], at.strides[3]};
}

}  // namespace

bool has_attention_tile(const Graph& graph, NodeId node, const kernels::TileLibrary* tiles,
                        std::string& why) {
  const graph::Node& n = graph.node(node);
  const auto no = [&](std::string_view reason) {
    why = reason;
    return false;
  };
  if (n.op != Op::Attention) return no("not attention");
  if (tiles == nullptr) return no("tiles are off");
  const Type& q = graph.type(n.inputs[kQuery]);
  if (!tiles->attention.takes(static_cast<int32_t>(q.dtype))) return no("no tile for the type");
  if (n.outputs.size() != 1) return no("more than the answer is asked for");
  for (int input : {kQuery, kKey, kValue}) {
    const Type& type = graph.type(n.inputs[input]);
    if (type.dtype != q.dtype) return no("operands of several types");
    if (type.count() == 0) return no("empty");
  }
  const Sizes s = sizes(graph, node);
  if (std::max(s.size, s.value_size) > tiles->attention.widest(static_cast<int32_t>(q.dtype)))
    return no("heads wider than tiles");
  for (size_t input = kInputs; input < n.inputs.size(); ++input)
    if (n.inputs[input] != kNone) return no("a cache or lengths are inputs");
  for (const char* window : {"left_window_size", "right_window_size"})
    if (n.attrs.get_int(window, -1) != -1) return no("a window of keys");
  const ValueId mask = input_of(graph, node, kMask);
  if (mask == kNone) return true;
  const Type& type = graph.type(mask);
  if (type.dtype != DType::f32 && type.dtype != DType::b1) return no("a mask of another type");
  if (!type.shape.empty() && type.shape.back() != 1 && type.shape.back() != s.keys)
    return no("a mask of fewer keys");
  return true;
}

std::optional<AttentionTile::Operand> attention_operand(const Graph& graph, const Views& views,
                                                        NodeId node, int input) {
  const ValueId value = input_of(graph, node, input);
  Exprs exprs;
  std::vector<ExprId> at = coords_of(exprs, graph.type(value).shape, sizes(graph, node), input);
  const auto found = views.strided(exprs, value, std::move(at), 4);
  if (!found) return std::nullopt;
  const AttentionTile::Operand made = operand(found->value, found->at);
  const int64_t columns = input == kValue ? sizes(graph, node).value_size : sizes(graph, node).size;
  if (input != kMask && columns > 1 && made.column != 1) return std::nullopt;
  return made;
}

AttentionTile match_attention(const Graph& graph, const Views& views, NodeId node,
                              const kernels::TileLibrary& tiles, bool dataflow) {
  const graph::Node& n = graph.node(node);
  const Sizes s = sizes(graph, node);
  AttentionTile tile;
  const auto read = [&](int input) -> AttentionTile::Operand {
    if (auto found = attention_operand(graph, views, node, input)) return *found;
    const ValueId value = n.inputs[input];
    Exprs exprs;
    const auto at = coords_of(exprs, graph.type(value).shape, s, input);
    return operand(value, *ops::affine(exprs, views.offset(exprs, value, at), 4));
  };
  tile.q = read(kQuery), tile.k = read(kKey), tile.v = read(kValue);
  if (input_of(graph, node, kMask) != kNone) {
    tile.mask = read(kMask);
    tile.mask_type = graph.type(n.inputs[kMask]).dtype;
    tile.zero_if_masked = n.attrs.get_int("nan_if_masked", 0) == 0;
  }
  tile.type = graph.type(n.inputs[kQuery]).dtype;
  tile.packed = s.packed;
  tile.images = s.images, tile.heads = s.heads, tile.shared = s.heads / s.kv_heads;
  tile.queries = s.queries, tile.keys = s.keys, tile.size = s.size, tile.value_size = s.value_size;
  tile.scale = n.attrs.get_float("scale", 1 / std::sqrt(static_cast<double>(s.size)));
  tile.softcap = n.attrs.get_float("softcap", 0);
  tile.causal = n.attrs.get_int("is_causal", 0) != 0;
  if (tile.queries == 1 && tile.shared > 1 && !tile.packed && !tile.causal) {
    for (AttentionTile::Operand* by_head : {&tile.q, &tile.mask}) {
      by_head->row = by_head->head;
      by_head->head *= tile.shared;
    }
    tile.queries = tile.shared;
    tile.heads = s.kv_heads;
    tile.shared = 1;
  }
  if (tiles.attention.split_kv) {
    tile.kv_splits = tiles.attention.split_kv->kv_splits(static_cast<int32_t>(tile.type),
                                                         tile.heads, tile.queries, tile.keys,
                                                         tile.size, tile.value_size, dataflow);
    if (tile.kv_splits > 1)
      tile.exchange = tiles.attention.split_kv->exchange_bytes(tile.kv_splits, tile.value_size);
  }
  return tile;
}

}  // namespace obelisk::stitch
