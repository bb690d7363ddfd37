/// codegen/block.h — a body that calls a hand-written block for each of its items.
///
///   in   a group of kind kBlock
///   out  text and parameters; no scratch
///
/// The text names the block, its element types and which operand stands where: equal for all
/// shapes.
#pragma once

#include "codegen/body.h"

namespace obelisk::codegen {

EmittedBody emit_block(const graph::Graph& graph, const stitch::Group& group);

}  // namespace obelisk::codegen
