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

#include "machine/machine.h"
#include "ops/ops.h"

namespace obelisk::ops {

/// Cooperative groups of workers (on a GPU: thread-block clusters, or blocks of a cooperative
/// launch) that a target has for blocks.
struct Gangs {
  int most = 0;           // workers of a group, a power of two; 0: there are no groups
  int64_t registers = 0;  // 32-bit registers of a thread that may hold weights; 0: a worker is one
                          // thread with memory enough
  bool own_kernels = false;  // a gang's members are a kernel's, and write to each other's
                             // scratchpads
  int64_t scratchpad = 0;    // bytes of shared memory of a worker
  machine::RecurrenceCosts costs = {};
  machine::ExciteCosts excite = {};
};

struct Block {
  std::string_view header;   // "scatter.h", of kernels/common
  std::string_view name;     // "scatter_nd"
  std::vector<DType> types;  // element types, in the order of the block's template parameters
  std::vector<int64_t> params;
  int64_t items = 0;  // independent; any order, any worker
  int inputs = 0;     // how many operands are inputs; the outputs follow
  // A block computed by groups of workers: `gang` consecutive items run at once on as many workers,
  // whose threads all share an item. They exchange words through memory that persists from run to
  // run and is zero at first: an operand after the outputs.
  int gang = 0;                    // 0: items are independent, each is one thread's
  std::vector<int64_t> constants;  // template parameters behind the types
  int64_t exchange = 0;            // bytes
  int64_t scratch = 0;             // bytes of shared memory of an item
  bool before_kernel = false;      // it does a part of its work before the kernel before has ended,
                                   // and waits for that itself
  double nanos = 0;                // predicted, of an item
};

/// Nothing for ops without a block, and for calls beyond one: scatters and orders of packed types,
/// more than 8 axes, matrices over 32.
std::optional<Block> block(const Call& call, int64_t pieces, const Gangs& gangs = {});

/// The block of an op whose output lies where its first input does, which it updates: operand 0 is
/// absent, and only what an update hits is read or written. Scatters that have a block.
std::optional<Block> block_in_place(const Call& call, int64_t pieces);

}  // namespace obelisk::ops
