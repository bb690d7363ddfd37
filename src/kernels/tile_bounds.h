/// kernels/tile_bounds.h — the bounds on rows, columns and depths that tiles take, each named once.
/// All are inclusive.
#pragma once

#include <cstdint>

namespace obelisk::kernels {

/// Elements at whose multiples begins whatever begins at multiples of each number that was or-ed to
/// `all`: 8, 4, 2 or 1, for loads of that many.
constexpr int64_t at_once(int64_t all) {
  return all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}

/// GEMM tiles by wgmma in bodies that are part of their kernel (gemm_wgmma.cuh,
/// gemm_wgmma_pipelined.cuh).
namespace async_mma_bounds {
inline constexpr int64_t kFewestRows = 49, kMostRows = 64;
}

/// Rows of GEMMs with a pipelined kernel (pipelined_gemm.cuh). With more rows the kernel is a grid
/// of tiles, two on each worker, so that one's epilogue overlaps the other's main loop
/// (h200_networks.json, bert_b8), or a pipelined one: of tall tiles, whose sums are one chain over
/// k as a grid's are, or of a long k and with a tile a CTA of those of 64 rows.
namespace pipelined_bounds {
inline constexpr int64_t kFewestRows = 33, kMostRows = 511;
inline constexpr int64_t kTileRows = 64, kTallRows = 128;
inline constexpr int64_t kLowRows = 32;  // of tiles of f32 where others leave SMs idle
// Tiles of exact f32 in a list take so many times what is predicted, where pipelined kernels are
// compared with them: fit to products of 49 to 196 rows on an H200, h200_fp32_gemm.json (layers,
// before).
inline constexpr double kF32ListedOver = 2.2;
// Of fewer rows tall tiles with four chains, several an SM in turn, were no quicker than tiles of
// 64 rows: h100_tall_gemm.json, 128 and 197 rows on 16 SMs.
inline constexpr int64_t kFewestTallInTurn = 256;
// With one chain, of any number of rows: of a shorter k they were not measured.
inline constexpr int64_t kShallowestTall = 512;
// With a tile a CTA of up to 64 rows, of more than kMostRows: of k = 768 they were no quicker than
// tall ones, of 1024 and more up to a quarter (h200_tuned_tiles.json, of_many_rows).
inline constexpr int64_t kShallowestLowOfMany = 1024;
inline constexpr int64_t kShortestPartOfWords = 192;  // k of a part in f32: not measured below
inline constexpr int64_t kClusterColumns = 112;       // of a tile that a cluster computes
inline constexpr int64_t kBoxBytes = 128;             // that come at once of a row of such a B
}  // namespace pipelined_bounds

/// GEMM tiles that take their weights page by page in a dataflow program (gemm_skinny.cuh): all of
/// A and four planes of sums in shared memory, a few pages' code. A body with that promise asserts
/// it.
namespace dataflow_bounds {
inline constexpr int64_t kMostRows = 8, kMostColumns = 128;
inline constexpr int64_t kMostCode = 640;  // loads of fragments that are unrolled
}  // namespace dataflow_bounds

/// GEMMs in f32 whose tiles read their weights once for all rows (fma_few_rows.cuh): rows of the
/// GEMM, columns of a tile. Of more rows each tile would read all weights again; not measured.
namespace few_rows_bounds {
inline constexpr int64_t kMostRows = 8, kMostColumns = 64;
}

/// The same of more rows, whose warps share out k (fma_rows.cuh); of kMostRows 8 there are none.
namespace fma_rows_bounds {
inline constexpr int64_t kMostRows = 64, kMostColumns = 64;
}

/// GEMMs of few rows whose B streams (gemm_streamed.cuh), an activation, or in tf32 packed weights:
/// rows; columns of a tile, powers of two.
namespace streamed_bounds {
inline constexpr int64_t kMostRows = 8, kMostRowsPacked = 32;
inline constexpr int64_t kFewestColumns = 16, kMostColumns = 128;
}  // namespace streamed_bounds

/// GEMMs whose k is computed in parts: columns, and k of the whole and of a part. Rows: of one that
/// is a phase of one kernel and whose k is shorter than kLeastDepth.
namespace split_k_bounds {
inline constexpr int64_t kMostColumns = 1024;
inline constexpr int64_t kLeastDepth = 1536, kShortestSplit = 384, kMostSplitK = 4;
inline constexpr int64_t kFewestRows = 33, kMostRows = 256;
}  // namespace split_k_bounds

/// Attention whose keys several tiles share out.
namespace split_kv_bounds {
inline constexpr int64_t kMostQueries = 16, kFewestKeys = 256;
inline constexpr int64_t kFewestKeysOfSplit = 64;
inline constexpr int64_t kMostKvSplits = 16,
                         kMostKvSplitsJoined = 8;  // in a dataflow program; else
}  // namespace split_kv_bounds

/// Bodies without a tile on a GPU: how the threads of a CTA share rows (codegen/vectors/). Chosen
/// by what registers and shared memory hold, not measured one by one.
namespace vector_bounds {
inline constexpr int64_t kThreads = 256, kWarp = 32;  // of a CTA, of a warp
inline constexpr int64_t kLoadBytes = 16;             // the widest load of a thread
// Registers of a thread: of a batch's loads and of values that stay, of a batch where several tasks
// share an SM, of a row that is not walked.
inline constexpr int64_t kMostRegisters = 96, kFewRegisters = 48, kMostRegistersOfRow = 144;
/// Registers of a thread's batch up to which an SM has room for four, three and two CTAs of a grid:
/// of a batch; of a row that all threads share, and of one whose packs are unpacked again in each
/// pass. h200_memory.json, layernorm_8192: fit.
struct CtasByRegisters {
  int64_t four, three, two;
};
inline constexpr CtasByRegisters kOfBatch{kFewRegisters, 64, 104}, kOfSharedRow{16, 32, 104},
    kOfUnpackedRow{16, 48, 104};
inline constexpr int64_t kColumnRegisters = 64, kMostColumnsAtOnce = 32;  // in flight, of strided
                                                                          // columns
inline constexpr int64_t kMostVectorsOfWarp = 128;  // of a row; all warps share a longer one
// Rows of more columns, of which there are no more than two an SM, are shared by all threads.
inline constexpr int64_t kLongRow = 512, kFewRows = 256;
inline constexpr int64_t kLongRowByLane = 2048;   // the same, of rows that go lane by lane
inline constexpr int64_t kFewestTransposed = 32;  // rows and columns of a square
// Batches that are loaded ahead of their use: how many, and the bytes of one.
inline constexpr int64_t kFewestSlots = 3, kMostSlots = 6, kMostSlotBytes = 32 * 1024;

/// Threads that share the strided columns of a row, by their number alone: so a row's bits do not
/// depend on how many rows there are.
constexpr int64_t threads_of_columns(int64_t columns) {
  return columns >= 512 ? 32 : columns >= 128 ? 16 : columns >= 32 ? 8 : 1;
}
}  // namespace vector_bounds

/// Columns of a GEMM's or convolution's tile whose size a cost decides.
inline constexpr int64_t kMostTileColumns = 256;

/// Convolution tiles whose size a cost decides: pixels of one of whole rows; columns of a grid's.
namespace conv_bounds {
inline constexpr int64_t kMostPixelsOfRows = 256, kMostGridColumns = 128;
// Bytes of shared memory that a depthwise tile takes for its patch and weights
// (conv_depthwise.cuh); 0: no such tiles. CTAs of a depthwise kernel that are taken to share an SM.
inline constexpr int64_t kMostDepthwisePatch = 98304, kMostDepthwiseCtas = 2;
}  // namespace conv_bounds

/// Queries of an attention tile; without costs, as on a CPU, fewer.
namespace attention_bounds {
inline constexpr int64_t kFewestQueries = 16, kMostQueries = 128, kMostQueriesWithoutCosts = 64;
}

/// Tiles of memory-bound grids: a multiple of so many columns, and rows of a transpose's.
inline constexpr int64_t kGridSide = 64;

/// Columns of a row that a body keeps in registers between passes.
inline constexpr int64_t kMostColumnsOfRow = 8192;

}  // namespace obelisk::kernels
