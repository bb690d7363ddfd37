/// schedule/shadow_run.h — runs a program's tables with tags in place of numbers.
///
/// A tag says which element of which value stands in a byte. The run walks the waves as workers
/// would: each task's reads are evaluated point by point and must find, in the memory as it was
/// before the wave, the element that the graph means; what the wave stores becomes visible after
/// it. So it finds what numbers hide by luck: a read of the right value from an earlier run, of
/// memory that was reused too early, of a piece of a concatenation that another task of the same
/// wave stores, of an address that a folded loop computes wrongly, outside of a buffer.
///
///   in       Graph, Plan, TaskGraph: of a CPU or of a GPU, with barriers or as dataflow
///   out      ok, or the first access that is wrong
///   checks   loads and stores of bodies (address by the folded nest, element by the plan's
///   expressions); operands of GEMM,
///            convolution and attention tiles against the graph's own loop forms, through every
///            move between; the order of a tile's rows against that of its epilogue; outputs at the
///            end
///   trusts   code generation and the runtime, which the differential tests check with numbers
///
/// Coordinates that depend on data (a Gather by an input) touch any element, so all of the value
/// must be there. Cost: linear in the elements that are read and stored, about 20 ns each; reads of
/// a work beyond `most_points` are sampled by rows.
#pragma once

#include "schedule/task_graph.h"

namespace obelisk::schedule {

struct ShadowOptions {
  int64_t most_points = int64_t{1} << 22;  // of a work's domain whose reads are looked at
};

/// Errors: kBuild, naming the work, the value, the coordinates and what stood there instead.
Status shadow_run(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
                  const ShadowOptions& options = {});

}  // namespace obelisk::schedule
