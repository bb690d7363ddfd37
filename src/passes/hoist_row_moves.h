/// passes/hoist_row_moves.h — moves of whole rows behind a norm go before it: the norm reads the
/// rows where they are and writes them where they are wanted, and no copy lies between it and a
/// product.
///
///   in   %1 = LayerNormalization(%0, g, b),  %2 = windows of %1 (Reshape, Transpose, Reshape)
///   out  %2 = LayerNormalization(windows of %0, g, b)
///
/// What     Windows of an image (Swin Transformer), blocks and grids (MaxViT): a product's tiles
///          read rows that follow one another, and the norm writes them so. Moves with a Concat, as
///          of shifted windows, become one Gather of rows, of up to 2,097,152 elements. Of
///          a class token alone, the norm is of one row.
/// Needs    Reshape, Transpose, Slice, Split, Concat and Gather (with constant indices) that leave
///          the last axis as it is, the one that the norm is about, and one value in the end; no
///          other reader of the norm.
/// Not      where rows keep their order: such moves are no copies, and fold_norms looks through
///          them.
/// Stands   after raise_layer_norm; before expand, which decomposes norms.
/// Errors   none.    Cost  O(nodes).
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> hoist_row_moves(graph::Graph graph);

}  // namespace obelisk::passes
