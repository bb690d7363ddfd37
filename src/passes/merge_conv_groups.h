/// passes/merge_conv_groups.h — a grouped convolution whose groups are narrower than the machine's
/// tiles becomes one of fewer and wider groups: their weights are block-diagonal, with zeros
/// between the blocks.
///
///   in   %1 = Conv(%0, W) {group 6}    %0 f16[1,48,56,56], W f16[48,8,3,3]
///   out  %1 = Conv(%0, V) {group 1}    V f16[48,48,3,3], zero but where W is
///
/// Tiles have at least 16 channels; of a group of 4 or 8 most of one is padding. The products with
/// zeros cost less than that, as long as the groups that are merged are few. `groups` says how many
/// a convolution should have. Not depthwise ones, and only where the weights are constant. Equal
/// but for the order of the sums; an infinite input may give NaN in other channels, since zero
/// weights multiply it, as in pad_channels.
///
/// Stands   before pad_channels; for the machine that is compiled for.
/// Errors   none.    Cost  O(nodes), and the weights of merged groups.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// A divisor of the convolution's own number of groups, or that number.
using ConvGroups = std::function<int64_t(const graph::Graph& graph, graph::NodeId conv)>;

Result<graph::Graph> merge_conv_groups(graph::Graph graph, const ConvGroups& groups);

}  // namespace obelisk::passes
