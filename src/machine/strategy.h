/// machine/strategy.h — what one compilation chose: how a network becomes launches, and what its
/// tiles may depend on. Made once, by machine::strategy_for, and passed on beside the Machine,
/// which it says nothing about.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/base.h"

namespace obelisk::machine {

/// How a program is launched.
enum class Granularity : uint8_t {
  kThreads,  // of a CPU: workers walk their lists
  kOp,       // a kernel for each op: nothing is stitched
  kStitch,   // a kernel for each stitched group, in a graph whose kernels overlap
  kMono,     // the whole network as one kernel
};
/// "op", "stitch", "mono"; of kThreads "".
std::string_view to_string(Granularity granularity);
/// Nothing where no granularity is called so.
std::optional<Granularity> parse_granularity(std::string_view name);

/// How a worker knows that what it reads is there.
enum class Sync : uint8_t {
  kBarrier,   // between waves all workers wait for each other, or kernels follow one another
  kDataflow,  // values carry their own readiness (schedule/dataflow.h)
};

/// How one kernel lays works side by side that do not depend on each other. Works of a wave are cut
/// for shares of the SMs.
enum class Placement : uint8_t {
  kWaves,       // a work runs as early as it may; tasks go to the SM that is free first
  kSequential,  // a wave for each work
  kLanes,       // each work of a wave has SMs of its own, as a lane has (Nimble)
  kClasses,     // works of a wave that compute and works that move memory have disjoint SMs (Opara)
  kCritical,    // works with slack run in the wave that they lengthen least
  kQuicker,     // kCritical where that is predicted to take less than kWaves, else kWaves
};

/// Rows and columns of a tile; 0: those that are predicted to be quickest.
struct GemmTile {
  int64_t rows = 0, columns = 0;
};

struct Strategy {
  Granularity granularity = Granularity::kThreads;
  Sync sync = Sync::kBarrier;
  /// A group's body is part of its kernel, not called by it: it may take the tiles that only such
  /// bodies can have.
  bool own_kernels = false;
  /// A group that moves at least so many bytes is launched as a grid of small CTAs that the
  /// hardware hands out; 0: lists say who runs what.
  Bytes min_grid_bytes{0};
  bool batch_invariant =
      false;  // no choice that changes the order of a sum looks at how many rows there are
  bool tall_gemm = true;                    // pipelined GEMMs may have tiles of more than 64 rows
  GemmTile gemm_tile;                       // which ones pipelined GEMMs take where they can
  Placement placement = Placement::kWaves;  // of one kernel
  bool tf32 = false;  // GEMMs, convolutions and attention of f32 multiply numbers rounded to tf32
                      // where a tile computes them

  bool one_kernel() const { return granularity == Granularity::kMono; }
  bool stitches() const { return granularity != Granularity::kOp; }
  bool dataflow() const { return sync == Sync::kDataflow; }
};

}  // namespace obelisk::machine
