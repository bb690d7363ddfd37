/// codegen/tile_gemm_pipelined.h — the text of a tile of a pipelined GEMM kernel
/// (kernels/cuda/gemm/pipelined_gemm.cuh), where its work says so.
///
///   OBK_PIPELINED_GEMM_BEGIN()
///       after loads of weights, before all others: waits for the kernel before
///   OBK_PIPELINED_GEMM_SUMS_OF(type, g, stage, other, statistics, rows, columns, k, a_row, c_row)
///       statistics: kObkNoStatistics, kObkOfRows, kObkOfPartials
///   OBK_PIPELINED_GEMM_SPLIT_K_OF(type, g, stage, plane, adds, rows, columns, k, a_row, c_row)
///       of a cluster; k: of a part
///   OBK_PIPELINED_GEMM_TALL_OF(type, g, stage, chains, statistics, rows, columns, k, a_row, c_row)
///   OBK_PIPELINED_GEMM_TF32_OF(g, stage, rows, columns, k, a_row, c_row)
///   OBK_PIPELINED_GEMM_F32_OF(g, stage, rows, columns, k, a_row, c_row)
///       of tf32 (pipelined_gemm_tf32.cuh), of exact f32 (pipelined_gemm_f32.cuh), tall or not: one
///       plane
///   OBK_PIPELINED_GEMM_TF32_SPLIT_K_OF(g, stage, plane, adds, rows, columns, k, a_row, c_row)
///   OBK_PIPELINED_GEMM_F32_SPLIT_K_OF(g, stage, plane, adds, rows, columns, k, a_row, c_row)
///       the same of a cluster; k: of a part
///   OBK_PIPELINED_GEMM_TALL_SPLIT_K_OF(type, g, stage, chains, plane, adds, rows, columns, k, ...)
///       the same of tall tiles; those of a tile alone are one plane
#pragma once

#include <string>

#include "codegen/body_traits.h"
#include "schedule/schedule.h"

namespace obelisk::codegen {

struct PipelinedGemmText {
  std::string top;      // declarations
  std::string tile;     // the sums, `other` floats apart where there are two planes
  int64_t scratch = 0;  // beside the first plane
  PipelinedGemm traits;
};
/// Rows of a tile whose epilogue a CTA runs: the tile's, or its share of them in a cluster.
int64_t pipelined_slice(const schedule::Work& work);

/// Planes of sums that a tile leaves: its parts', or its warpgroups'.
int64_t pipelined_planes(const stitch::Group& group, const schedule::Work& work);

/// Bytes of scratch before the sums: a cluster's tile once more, whole. `pitch` as below.
int64_t pipelined_whole(const stitch::Group& group, const schedule::Work& work, int64_t pitch);

/// Words of a thread that may be loaded before the tile is computed, beside its sums.
int64_t pipelined_registers_ahead(const stitch::Group& group, const schedule::Work& work);

/// `shape`: of a whole tile; `x_a`: A's operand, B's follows; `vectors`: the epilogue
/// can add planes; `pitch` 0: rows of the tile lie one after another.
PipelinedGemmText emit_pipelined_gemm(const stitch::Group& group, const schedule::Work& work,
                                      const kernels::TileLibrary& tiles, const ObkGemm& shape,
                                      const std::string& type, int x_a, bool vectors,
                                      int64_t pitch);

}  // namespace obelisk::codegen
