/// ops/block.h — an op without a loop form, as a call of a hand-written block
/// (kernels/common/blocks.h).
///
///   in   a Call with its types, and how many pieces of work the caller can use
///   out  the block's name, the element types it is made for, its parameters, how many items it has
///
/// Generated text then reads  for (item = first; item < end; ++item) obk::scatter_nd<float,
/// int64_t>(params, operands, item); with the operands of the call: every input the op may have,
/// null where absent, then every output it may have.
#pragma once

#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

struct Block {
  std::string_view header;   // "scatter.h", of kernels/common
  std::string_view name;     // "scatter_nd"
  std::vector<DType> types;  // element types, in the order of the block's template parameters
  std::vector<int64_t> params;
  int64_t items = 0;  // independent; any order, any worker
  int inputs = 0;     // how many operands are inputs; the outputs follow
};

/// Nothing for ops without a block, and for calls beyond one: scatters and orders of packed types,
/// more than 8 axes, matrices over 32.
std::optional<Block> block(const Call& call, int64_t pieces);

}  // namespace obelisk::ops
