/// passes/fold_channel_moves.h — a 1x1 convolution of some channels of a value, or of channels in
/// another order, reads the value itself: its weights are put in that order, with zeros between.
///
///   in   %2 = second half of %1, whose channels are shuffled in two groups;  %3 = Conv(%2, W)
///   out  %3 = Conv(%1, W')
///
/// What     Such a half is no slice that tiles can read in place: it would be copied, channel by
///          channel, by a kernel before the convolution (ShuffleNetV2). Multiplying by zeros is
///          predicted to cost less.
/// Needs    constant weights of one group, one pixel wide; a chain of Reshape, Transpose, Split and
///          Slice that moves channels alone; at most twice the channels to read.
/// Not      where the channels are neighbours that begin and end at 16 bytes: tiles read these in
///          place.
///          Equal but for the order of sums; an infinite element may give NaN in further ones,
///          since zero weights multiply it.
/// Stands   among machine_passes, for machines whose tiles read whole rows of channels; before
///          copy_ready_pieces.
/// Errors   none.    Cost  O(nodes), and a copy of the weights.
#pragma once

#include "graph/graph.h"

namespace obelisk::passes {

Result<graph::Graph> fold_channel_moves(graph::Graph graph);

}  // namespace obelisk::passes
