/// codegen/streamed.h — the text of a product's tile that has a kernel of its own (kernels/cuda/product.cuh), where its work says so.
///
///   OBK_PRODUCT(x_a, x_b, rows, pitch, span, row, block, row_step, block_step, blocks, stage, matrix, sides, columns)
///       what the host must know to launch it: operands, the matrix of A (schedule::RowMatrix), blocks of 64 k and those of a stage, bytes from
///       one of B's matrices to the next, columns of a tile with both sides
///   OBK_PRODUCT_SUMS_OF(type, g, stage, other, rows, columns, k, a_row, c_row, 0, parts)
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace obelisk::codegen {

struct StreamedText {
  std::string top;   // declarations
  std::string tile;  // the sums, `other` floats apart where there are two planes
  int64_t scratch = 0;  // of the second plane
};
/// `shape`: of a whole tile; `x_a`: A's operand, B's follows; `pitch` 0: rows of the tile lie one after another.
StreamedText emit_streamed(const stitch::Group& group, const schedule::Work& work, const kernels::TileLibrary& tiles, const ObkGemm& shape, const std::string& type, int x_a,
                           bool two_planes, int64_t pitch);

}  // namespace obelisk::codegen
