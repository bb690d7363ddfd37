#include "fit.h"

#include <algorithm>

namespace obelisk::compiler {

/// For results that lie next to each other in memory, which threads reduce in packs: the number of
/// parts for which both passes, over the parts and then over their results, are predicted to take
/// least. A number that does not divide the length costs another phase. 1: splitting gains little.
static int64_t parts_of_columns(const machine::Machine& machine, const passes::Reduction& reduction,
                                int64_t most) {
  const int64_t folded =
      reduction.passes * reduction.type.count() / std::max<int64_t>(reduction.outputs, 1);
  const int64_t lanes = std::min(reduction.inner, machine::thresholds::kLanesOfWorker);
  const auto nanos_of = [&](DType type, int64_t columns) {
    return schedule::strided_columns_nanos(machine, type, lanes, columns);
  };
  const DType type = reduction.type.dtype, sums = type == DType::f64 ? type : DType::f32;
  double least = machine::thresholds::kWorthParts * nanos_of(type, folded);
  int64_t best = 1;
  for (int64_t parts = 2; parts <= std::min(most, reduction.length); ++parts) {
    const double rest = reduction.length % parts == 0 ? 0 : machine.costs.phase;
    const double nanos = nanos_of(type, (folded + parts - 1) / parts) + machine.costs.phase +
                         nanos_of(sums, parts) + rest;
    if (nanos < least) least = nanos, best = parts;
  }
  return best;
}

int64_t reduction_parts(const machine::Machine& machine, const passes::Reduction& reduction) {
  using namespace machine::thresholds;
  const auto [type, outputs, inner, length, passes, scattered] = reduction;
  if (inner >= kFewestLanes) {
    const int64_t lanes = std::min(inner, kLanesOfWorker);
    return parts_of_columns(machine, reduction,
                            machine.sms / std::max<int64_t>((outputs + lanes - 1) / lanes, 1));
  }
  constexpr double kLine = 128;  // bytes of a cache line, which an element that lies alone takes
  const int64_t workers = std::max<int64_t>(outputs, 1), parts = machine.sms / workers;
  const double once = scattered
                          ? static_cast<double>(type.count()) * kLine / machine.peaks.cache_bytes
                          : static_cast<double>(type.bytes()) / machine.bytes_per_sm;
  const double nanos = static_cast<double>(passes) * once / static_cast<double>(workers);
  return parts > 1 && nanos / static_cast<double>(parts) + machine.costs.phase < nanos / 2 ? parts
                                                                                           : 1;
}

/// As many of `count` parts of k as leave each worker a tile: of few workers each has one without
/// parts, and gangs of them would compute more rounds. Rows do not count, as in the tile library.
static int64_t parts_of_width(const machine::Machine& machine, int64_t columns, int64_t depth,
                              int64_t count) {
  using namespace kernels::split_k_bounds;
  constexpr int64_t kTileColumns = 48;  // chosen, not measured
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  int64_t parts = std::clamp<int64_t>(machine.sms / tiles, 1, count);
  if (parts == count) return count;
  while (parts > 1 && (depth % (parts * 64) != 0 || depth / parts < kShortestSplit)) --parts;
  return parts;
}

/// Whether a product of few rows loses no more than two phases if it is whole: then a worker for
/// each tile of columns reads the weights.
static bool whole_is_near(const machine::Machine& machine, DType type, int64_t columns,
                          int64_t depth) {
  constexpr int64_t kColumns = 16;  // of a tile, at least
  const auto workers = static_cast<double>(
      std::clamp<int64_t>(columns / kColumns, 1, static_cast<int64_t>(machine.sms)));
  const double nanos = static_cast<double>(byte_size(type, columns * depth)) / machine.bytes_per_sm;
  return nanos / workers - nanos / machine.sms <= 2 * machine.costs.phase;
}

/// Channels of 16 bits in vectors of 16 bytes, where that adds no more than a third.
static int64_t whole_vectors(DType type, int64_t channels) {
  constexpr int64_t kVector = 8;
  const int64_t whole = (channels + kVector - 1) / kVector * kVector;
  return is_half(type) && 3 * whole <= 4 * channels ? whole : channels;
}

passes::OfTiles questions_for(const machine::Machine& machine, const machine::Strategy& strategy,
                              const stitch::Options& stitching, const Options& options,
                              FewRows* few_rows) {
  const kernels::GemmTiles& gemm = kernels::tile_library(machine).gemm;
  const bool wgmma_kernels = strategy.own_kernels && takes_async_mma(machine, strategy);
  passes::OfTiles asked;
  asked.batch_invariant = strategy.batch_invariant;
  // These are kept by what answers: `machine`, `strategy` and `stitching` by value.
  asked.takes_whole = [machine, stitching](const graph::Graph& graph, graph::NodeId id,
                                           std::string* why) {
    return stitch::takes_whole(graph, id, machine, stitching, why);
  };
  if (machine.family == machine::Family::kCuda) asked.wanted_channels = whole_vectors;
  if (machine.family == machine::Family::kCuda && stitching.tiles && !strategy.batch_invariant) {
    asked.conv_groups = [machine, strategy](const graph::Graph& graph, graph::NodeId conv) {
      const auto tile = stitch::conv_tile(graph, conv, machine, strategy);
      return tile ? schedule::quickest_conv_groups(*tile, machine, strategy) : 0;
    };
  }
  asked.has_excite_blocks = stitching.own_kernels && stitching.gangs && machine.gang > 0 &&
                            !strategy.batch_invariant;  // programs for few workers have none
  if (!stitching.stitch) return asked;
  asked.has_epilogues = machine.family == machine::Family::kCuda && stitching.tiles;
  if (asked.has_epilogues)
    asked.dual_gemm_pays = [machine, strategy](DType type, int64_t rows, int64_t columns,
                                               int64_t depth) {
      return schedule::dual_gemm_pays(type, rows, columns, depth, machine, strategy);
    };
  if (machine.family == machine::Family::kCuda)
    asked.placeable = [machine, stitching](const graph::Graph& graph) {
      return stitch::placeable_pieces(graph, machine, stitching);
    };
  asked.product_stays_whole = [machine, strategy](int64_t rows, int64_t columns, int64_t count) {
    return stitch::splits_meet(machine, strategy, rows, columns, count);
  };
  passes::SplitK parts = [](DType, int64_t, int64_t, int64_t) -> int64_t { return 1; };
  if (gemm.split_k && !options.disabled.count("split_products")) {
    parts = [&gemm, wgmma_kernels, machine, strategy, few_rows](
                DType type, int64_t rows, int64_t columns, int64_t depth) -> int64_t {
      if (wgmma_kernels && rows >= stitch::kMostPipelinedRows)  // in one chain over k, or a part
        return schedule::tall_split_k(machine, strategy, static_cast<int32_t>(type), rows, columns,
                                      depth);
      const int64_t count =
          gemm.split_k->splits(static_cast<int32_t>(type), columns, depth,
                               strategy.one_kernel() && !strategy.batch_invariant ? rows : 0);
      if (few_rows && count > 1 && rows <= kernels::dataflow_bounds::kMostRows) {
        few_rows->split = true;
        if (few_rows->whole && whole_is_near(machine, type, columns, depth)) return 1;
      }
      return wgmma_kernels ? parts_of_width(machine, columns, depth, count) : count;
    };
    asked.split_k = parts;
  }
  if (gemm.statistics && stitching.tiles && !strategy.batch_invariant) {
    asked.gives_statistics = [&gemm, machine, strategy, parts](DType type, int64_t rows,
                                                               int64_t columns, int64_t depth) {
      return gemm.statistics->pays(static_cast<int32_t>(type), rows, columns, depth,
                                   strategy.own_kernels) &&
             (rows < stitch::kMostPipelinedRows ||
              schedule::one_round_of_tiles(type, rows, columns, depth, machine, strategy)) &&
             parts(type, rows, columns, depth) == 1;
    };
    asked.in_planes = [whole = asked.product_stays_whole, parts](DType type, int64_t rows,
                                                                 int64_t columns, int64_t depth) {
      const int64_t count = parts(type, rows, columns, depth);
      return count > 1 && !whole(rows, columns, count);
    };
  }
  if (wgmma_kernels) {
    asked.streams_patches = [](DType type, int64_t, int64_t, int64_t depth) {
      return (type == DType::f16 || type == DType::bf16) && depth % 64 == 0;
    };
  }
  if (wgmma_kernels && !strategy.batch_invariant) {
    asked.first_of_batch = [machine, strategy](const passes::BatchOfProducts& batch) {
      return schedule::products_in_full_rounds(batch, machine, strategy);
    };
  }
  if (machine.family == machine::Family::kCuda && !strategy.batch_invariant) {
    asked.reduction_parts = [machine](const passes::Reduction& reduction) {
      return reduction_parts(machine, reduction);
    };
    asked.channels_last = [machine, stitching](const graph::Graph& graph) {
      return stitch::stored_channels_last(graph, machine, stitching);
    };
  }
  return asked;
}

}  // namespace obelisk::compiler
