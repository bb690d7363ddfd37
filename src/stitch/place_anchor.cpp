// Which tile of the library computes a node, and the group that it begins.
#include "stitch/attention_tile.h"
#include "stitch/conv_tile.h"
#include "stitch/former.h"
#include "stitch/gemm_tile.h"

namespace obelisk::stitch {

/// Whether a tile of the library computes the node: then it begins a group. `loops`: the node has a
/// loop form.
bool Former::place_tile(NodeId n, bool loops) {
  const graph::Node& node = graph_.node(n);
  std::string why;
  if (!loops && has_attention_tile(graph_, n, tiles_, why)) {
    Draft draft;
    draft.group.kind = GroupKind::kAttention;
    draft.group.attention = match_attention(graph_, views_, n, *tiles_, strategy_.dataflow());
    const AttentionTile& tile = draft.group.attention;
    std::vector<ValueId> reads = {tile.q.value, tile.k.value, tile.v.value};
    if (tile.mask.value != graph::kNone) reads.push_back(tile.mask.value);
    place_anchor(n, std::move(draft), graph_.type(node.outputs[0]).rank() - 1, reads);
    return true;
  }
  if (loops && tiles_ && node.outputs.size() == 1) {
    if (auto conv = match_conv(graph_, n, tiles_, why)) {
      const Layout& x = views_.layout(conv->x);
      // Where a machine cuts convolutions into pixels, its product tile is the quicker one for
      // single pixels.
      auto pixels = tiles_->conv.pixels ? match_pixel_product(views_, *conv) : std::nullopt;
      if (pixels && tile_fits(*tiles_, *pixels, why)) {
        Draft draft;
        draft.group.kind = GroupKind::kProduct;
        const std::vector<ValueId> reads = {conv->x, conv->w};
        draft.group.product = std::move(*pixels);
        place_anchor(n, std::move(draft), 1, reads);
        return true;
      }
      if (x.strides[1] == 1 || conv->shape.inputs == 1) {
        Draft draft;
        draft.group.kind = GroupKind::kConv;
        const std::vector<ValueId> reads = {conv->x, conv->w};
        draft.group.conv = std::move(*conv);
        place_anchor(n, std::move(draft), 1, reads);
        return true;
      }
    }
    if (auto product = match_product(graph_, views_, n, why)) {
      if (tile_fits(*tiles_, *product, why)) {
        Draft draft;
        draft.group.kind = GroupKind::kProduct;
        const std::vector<ValueId> reads = {product->a, product->b};
        const int column = static_cast<int>(product->n[0].c);
        draft.group.product = std::move(*product);
        if (views_.dual_gemm_of(n) != graph::kNone)
          draft.group.product.dual = true, draft.group.product.n[0].extent /= 2;
        place_anchor(n, std::move(draft), column, reads);
        return true;
      }
    }
  }
  return false;
}

/// Begins a group whose anchor a tile computes; what follows the sum (a bias, a scale) is already
/// its epilogue.
void Former::place_anchor(NodeId n, Draft draft, int column, const std::vector<ValueId>& reads) {
  draft.group.anchor = draft.group.dominant = n;
  draft.group.nodes = {n};
  draft.anchored = true;
  draft.open = false;
  // The halves of a dual GEMM are two members, at the same points.
  std::vector<ValueId> outs = {graph_.node(n).outputs[0]};
  if (draft.group.kind == GroupKind::kProduct && draft.group.product.dual) {
    outs = graph_.node(views_.dual_gemm_of(n)).outputs;
    draft.group.nodes.push_back(views_.dual_gemm_of(n));
    explain(graph_.node(n).outputs[0], views_.dual_gemm_of(n), Scheme::kLocal,
            "halves that meet: a task computes the same columns of both");
  }
  const Shape& shape = graph_.type(outs[0]).shape;
  Body& body = draft.group.body;
  body.domain = shape;
  draft.is_column.assign(shape.size(), false);
  draft.is_column[column] = true;
  Member member;
  for (size_t d = 0; d < shape.size(); ++d)
    member.at.push_back(body.exprs.coord(static_cast<int>(d), shape[d]));
  for (ValueId v : reads) {
    read_from(draft, v);
    explain(v, n, Scheme::kGlobal, "an operand of a tile is read by many workers");
  }
  const Loop* form = views_.loop(n, 0);  // attention has none
  const bool wide =
      draft.group.kind == GroupKind::kProduct && draft.group.product.a_type == DType::f64;
  const ExprId tile = body.exprs.load(kTileSlot, wide ? DType::f64 : DType::f32, {});
  member.value = tile;
  if (form && form->finish != kNoExpr) {
    std::vector<ExprId> coords = member.at;
    for (size_t d = shape.size(); d < form->domain.size(); ++d)
      coords.push_back(body.exprs.integer(0));
    auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                    ExprId otherwise) {
      read_from(draft, value);
      explain(value, n, Scheme::kGlobal, "computed by another group");
      return body.exprs.load(operand(draft, value), dtype, std::move(at), guard, otherwise);
    };
    member.value = body.exprs.import(
        form->exprs, form->finish, coords,
        [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
          return views_.read(body.exprs, graph_.node(n).inputs[slot], dtype, std::move(at), guard,
                             otherwise, leaf);
        },
        tile);
  }
  for (size_t side = 0; side < outs.size(); ++side) {
    if (side > 0)
      member.value =
          body.exprs.load(kTileSlot + static_cast<int>(side), body.exprs[tile].dtype, {});
    draft.members[outs[side]] = member;
  }
  add(std::move(draft), n);
}

}  // namespace obelisk::stitch
