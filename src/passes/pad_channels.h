/// passes/pad_channels.h — convolutions between convolutions get as many channels as the machine's
/// tiles read in whole vectors; the further ones are zeros in the weights.
///
///   in   %2 = Conv(%0, W)  18 channels;  %3 = Relu(%2);  %4 = Conv(%3, V)
///   out  %2 = Conv(%0, W') 24 channels, with filters of zeros;  %3 = Relu(%2);
///        %4 = Conv(%3, V') which multiplies the further channels by zero
///
/// A value is padded where a convolution over channels and more than one pixel, with constant
/// weights, reads it: directly or through other convolutions, elementwise ops, pools, pads and
/// resizes that give finite numbers for finite inputs. Its other readers get a slice. Of grouped
/// convolutions only depthwise ones are padded. Depthwise and 1x1 convolutions do not make a value
/// worth padding: with theirs padded, too, NASNet-A-Large (42 channels to 48) took 1.09 times as
/// long on an H100 (h100_pad_channels.json).
/// `wanted` says how many channels a value of that type and so many channels should have.
/// Equal but for the order of the sums; an infinite input may give NaN in further elements, since
/// zero weights multiply it.
///
/// Stands   after convert_precision, expand and fold_batch_norm; for the machine that is compiled
///          for.
/// Errors   none.    Cost  O(nodes), and a copy of the weights.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace obelisk::passes {

/// The same number where more channels gain nothing.
using WantedChannels = std::function<int64_t(DType type, int64_t channels)>;

Result<graph::Graph> pad_channels(graph::Graph graph, const WantedChannels& wanted);

}  // namespace obelisk::passes
