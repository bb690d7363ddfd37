/// codegen/vectors.h — the rows of a body as vectors: everything is loaded, then computed, then
/// stored.
///
///   in   a body, its folded nest, the tile that a task spans; what the body names at its top
///   out  text, or nothing where rows have to be walked one lane at a time (the loops of
///   body_lanes.cpp)
///
/// For machines whose threads wait for what they load. A thread takes a *batch* of points: `R` rows
/// (or places, in a body without reductions) by `U` vectors of `V` neighbouring columns. Loads of
/// the whole batch come first, one after the other, in packs of up to 16 bytes; values that a later
/// pass over the row reads again stay in registers. All of R, U and V are constants of the text, so
/// the arrays of a batch are registers once its loops are unrolled.
///
/// How lanes share a row follows from the row's length alone: the order of a sum does not depend on
/// how many rows there are.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "schedule/schedule.h"

namespace obelisk::codegen {

struct VectorJob {
  const graph::Graph& graph;
  const stitch::Body& body;
  const schedule::Nest& nest;
  const std::vector<stitch::Layout>& layouts;
  bool anchored =
      false;  // a tile has been computed: `tile`, rows of tile_columns, tile_pitch apart
  int64_t tile_rows = 1 /* that this body's CTA has */, tile_columns = 1, tile_pitch = 1;
  int64_t most_ahead =
      24;  // words of a thread that are loaded before the tile is computed: its own are many
  int64_t planes = 1;  // of sums, to be added in order: each `other` floats behind the one before
                       // (0: there is one)
  graph::ValueId partials = graph::kNone;  // of whose rows partial statistics go to `partials`
  int ctas_per_sm = 0;  // CTAs that share an SM where the kernel is a grid; 0: as many as the batch
                        // leaves room for
  bool grid =
      false;  // several small tasks share a multiprocessor: they wait for one another's loads
  int64_t ahead_bytes = 0;  // of scratchpad memory, for rows that are loaded ahead of their use
  std::vector<bool> gives;  // by operand: what is stored there goes to all workers, in words of 32
                            // bits (schedule/dataflow.h)
  std::string begin;  // stands before the first load of anything but weights; empty: nothing has to
  bool shares_rows = false;  // all wait for the longest task: where it has a long row or two, these
                             // are shared by all threads
  bool may_begin_late =
      false;  // where there is none it may be left to the thread that writes the tile
  std::function<std::string(int operand, bool store)> pointer;  // the name of an operand
  bool gives_to_all(const stitch::Step& step) const {
    return static_cast<size_t>(step.slot) < gives.size() && gives[step.slot];
  }
};

struct VectorText {
  std::string ahead;  // loads that do not need the tile: they may stand before it
  std::string rows;
  int64_t scratch = 0;  // bytes of scratchpad memory
  bool gives_partials = false;
  int ctas_per_sm = 0;                // of a grid
  bool begins = false, late = false;  // the job's beginning has its place: in `ahead`, or, late,
                                      // still to be put before the tile
};
std::optional<VectorText> emit_vectors(const VectorJob& job);

}  // namespace obelisk::codegen
