/// schedule/tile_gemm_pipelined.h — which GEMMs run as pipelined GEMM kernels, and how they are
/// tiled.
#pragma once

#include "schedule/cost_model.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Where A's rows lie as a matrix of whole blocks of 128 bytes of a row; nothing where they do not.
std::optional<RowMatrix> row_matrix(const stitch::Group& group, const Nest& nest);

/// Where an activation B lies as a matrix whose rows, of k or of its columns, block copies address;
/// nothing where it does not.
std::optional<BoxMatrix> box_matrix(const stitch::Group& group, const Nest& nest);

/// The same as row_matrix where one kernel runs all works and a tile loads all of A by such copies:
/// GEMMs of 16-bit numbers with packed B and tiles of 49 to 64 rows, A in the arena, without
/// split-K, on a machine with asynchronous block copies.
std::optional<RowMatrix> async_rows(const stitch::Group& group, const Cutting& cut,
                                    const TaskGraph& tasks, const Work& work);

/// What the tiles of a pipelined GEMM are chosen by.
struct PipelinedShape {
  int32_t type = 0;
  int64_t span = 0, matrices = 1;  // rows of a matrix; matrices of a batch
  int64_t columns = 0, b_count = 1, k = 0, split_k = 1;
  bool activations = false;  // B is no constant weight
  int64_t b_together = 1;    // then: columns of B come by so many
  machine::GemmTile only{};  // the one that is asked for
};
struct PipelinedCut {
  int64_t rows = 0, columns = 0;  // of a tile; 0: there is none
  /// Of a tall tile's sums: four have the bits of all tiles of fewer rows, one those of a grid's
  /// and room for twice as many columns.
  int chains = 4;
  double nanos = 0, all = 0;  // of a tile; of the kernel
};
/// The tiles with the least time of all workers' rounds: rows as even as can be of up to 64, of
/// matrices of up to 511, and of up to 128 where `tall`; what a tile loads of rows and of weights
/// decides between them. Of f32, rounded to tf32 or exact, also of up to 32, and of whatever
/// matrices.
PipelinedCut quickest_pipelined(const PipelinedShape& shape, const machine::Machine& machine,
                                int workers, bool tall);

/// Cuts such a GEMM so. With split-K a gang of workers computes a tile; in f32 in as many parts of
/// k as take least. False: it is none, and stays as it was. Such are GEMMs of 16-bit numbers of 33
/// rows and more on a machine with asynchronous block copies: with constant B, A in the arena; or
/// of two activations, wherever they are. And such of f32, rounded to tf32 or exact, wherever A is.
/// `other`: of 512 rows and more, and of exact f32, the time of the kernel that `work` is
/// otherwise.
bool cut_pipelined(const stitch::Group& group, const Cutting& cut, const TaskGraph& tasks,
                   Work& work, std::optional<double> other = std::nullopt);

}  // namespace obelisk::schedule
