#include "codegen/tile.h"

namespace obelisk::codegen {

using stitch::GroupKind;

int64_t pitch_of_tile(const stitch::Group& group, const schedule::Work& work,
                      const kernels::TileLibrary& tiles, bool packed_b) {
  const bool by_lanes = group.kind == GroupKind::kAttention ||
                        (group.kind == GroupKind::kProduct && (packed_b || work.pipelined())) ||
                        (group.kind == GroupKind::kConv && !group.conv.depthwise &&
                         byte_size(group.conv.type, 1) == 2);
  const bool padded = tiles.vectors && by_lanes && work.tile_columns % 16 == 0;
  const int64_t padding = work.pipelined() && group.product.of_words() ? 4 : 8;  // for banks
  return work.tile_columns * group.product.b_count() + (padded ? padding : 0);
}

bool stores_tile_plainly(const graph::Graph& graph, const stitch::Group& group,
                         const schedule::Access& store, int lane) {
  const stitch::Step& first = group.body.steps.front();
  const ops::Expr& stored = group.body.exprs[first.expr];
  return group.body.steps.size() == 1 && stored.scalar == ops::Scalar::kLoad &&
         stored.slot == stitch::kTileSlot && store.affine &&
         graph.type(group.body.operands[first.slot]).dtype == stored.dtype &&
         (lane < 0 || store.strides[lane] == 1);
}

}  // namespace obelisk::codegen
