/// stitch/attention_tile.h — attention as a tile reads it: Q, K, V and the mask where they lie.
///
///   in   an Attention node that is nothing but softmax(Q K^T * scale, capped, + mask) V, and Views
///   out  for each operand the stored value behind it and strides along image, head, row and column
///
/// Heads inside a merged [batch, length, 3 * hidden] buffer, keys shared by groups of heads and
/// masks that broadcast are strides; nothing is copied. Where a single query's heads share keys
/// they are the tile's rows, so that keys are read once a group.
///
/// Not      caches and lengths as inputs of the op, windows, scores as outputs, short masks, f64:
///          those are decomposed into simpler ops before (passes::expand_for_machine).
/// Errors   none: nothing, with the reason in `why`.    Cost  O(views above an operand).
#pragma once

#include <optional>
#include <string>

#include "stitch/views.h"

namespace obelisk::stitch {

/// Whether the library has a tile for this node; looks at types alone.
bool has_attention_tile(const Graph& graph, NodeId node, const kernels::TileLibrary* tiles,
                        std::string& why);

/// An operand's strides through views; nothing where they are not strides.
std::optional<AttentionTile::Operand> attention_operand(const Graph& graph, const Views& views,
                                                        NodeId node, int input);

/// `node` has a tile. An operand without strides through views is read from its own storage.
/// `flows`: the program may (schedule/dataflow.h).
AttentionTile match_attention(const Graph& graph, const Views& views, NodeId node,
                              const kernels::TileLibrary& tiles, bool dataflow);

}  // namespace obelisk::stitch
