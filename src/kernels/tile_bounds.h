/// kernels/tile_bounds.h — the bounds on rows, columns and depths that tiles take, each named once.
/// All are inclusive.
#pragma once

#include <cstdint>

namespace obelisk::kernels {

/// GEMM tiles by wgmma in bodies that are part of their kernel (gemm_wgmma.cuh,
/// gemm_wgmma_pipelined.cuh).
namespace async_mma_bounds {
inline constexpr int64_t kFewestRows = 49, kMostRows = 64;
}

/// Rows of GEMMs with a pipelined kernel (pipelined_gemm.cuh). With more rows the kernel is a grid
/// of tiles, two on each worker, so that one's epilogue overlaps the other's main loop: a layer of
/// BERT-base with 1024 rows takes 58 us so on an H200, pipelined 67 (h200_networks.json).
namespace pipelined_bounds {
inline constexpr int64_t kFewestRows = 33, kMostRows = 511;
inline constexpr int64_t kTileRows = 64;
inline constexpr int64_t kClusterColumns = 112;  // of a tile that a cluster computes
}  // namespace pipelined_bounds

/// GEMMs whose tiles give a norm's statistics of the rows of A (statistics.cuh). Measured with 128
/// and 197 rows.
namespace statistics_bounds {
inline constexpr int64_t kFewestRows = 33, kMostRows = 256;
}

/// GEMM tiles that take their weights page by page in a dataflow program (gemm_skinny.cuh): all of
/// A and four planes of sums in shared memory, a few pages' code. A body that is told so asserts
/// it.
namespace dataflow_bounds {
inline constexpr int64_t kMostRows = 8, kMostColumns = 128;
inline constexpr int64_t kMostCode = 640;  // loads of fragments that are unrolled
}  // namespace dataflow_bounds

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

}  // namespace obelisk::kernels
