#include "codegen/tile.h"

#include <algorithm>

namespace obelisk::codegen {

using stitch::GroupKind;

namespace {

/// Elements between neighbours along a coordinate of the body's domain; 0 along one that has a
/// single element.
int64_t stride_along(const stitch::Body& body, const schedule::Nest& nest,
                     const schedule::Access& access, int coordinate) {
  for (size_t d = 0; d < nest.dims.size(); ++d) {
    const std::vector<int>& coords = nest.dims[d].coords;
    const auto at = std::find(coords.begin(), coords.end(), coordinate);
    if (at == coords.end()) continue;
    int64_t stride = access.strides[d];  // of the innermost
    for (auto inner = at + 1; inner != coords.end(); ++inner) stride *= body.domain[*inner];
    return stride;
  }
  return 0;
}

}  // namespace

int64_t pitch_of_tile(const stitch::Group& group, const schedule::Work& work,
                      const kernels::TileLibrary& tiles, bool packed_b) {
  const bool by_lanes = group.kind == GroupKind::kAttention ||
                        (group.kind == GroupKind::kProduct && packed_b) ||
                        (group.kind == GroupKind::kConv && !group.conv.depthwise &&
                         byte_size(group.conv.type, 1) == 2);
  const bool padded = tiles.vectors && by_lanes && work.tile_columns % 16 == 0;
  return work.tile_columns * group.product.sides() + (padded ? 8 : 0);
}

bool rows_begin_at_16(const schedule::Work& work, const schedule::Access& a, int64_t size) {
  int64_t all = a.offset;
  for (int d = 0; d < work.nest.rows; ++d)
    if (work.nest.dims[static_cast<size_t>(d)].extent > 1) all |= a.strides[static_cast<size_t>(d)];
  return all * size % 16 == 0;
}

ConvStore conv_store(const stitch::Group& group, const schedule::Nest& nest,
                     const schedule::Access& store) {
  const stitch::ConvTile& conv = group.conv;
  const bool flat = conv.shape.in.size() == 1;
  const int row = 1,
            pixel =
                flat
                    ? 1
                    : 2;  // coordinates of the domain: images, rows (unless flat), pixels, channels
  ConvStore to{.offset = store.offset, .image = stride_along(group.body, nest, store, 0)};
  if (conv.out_width > 1) to.pixel = stride_along(group.body, nest, store, pixel);
  if (!flat && conv.out_height > 1) to.row = stride_along(group.body, nest, store, row);
  // Strides that lead nowhere are those of dense pixels, which a tile may take as one row.
  if (conv.out_width <= 1) to.pixel = to.row ? to.row : conv.shape.outputs;
  if (flat || conv.out_height <= 1) to.row = conv.out_width * to.pixel;
  return to;
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
