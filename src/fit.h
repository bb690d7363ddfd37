/// fit.h — what the passes that fit a graph to the machine ask of it, answered by its tile library,
/// by stitching and by one cost model.
#pragma once

#include "compile.h"

namespace obelisk::compiler {

/// Products of few rows, which may be split over k in one kernel with barriers but not in one
/// without (schedule/dataflow.h).
struct FewRows {
  bool whole = false;  // those that lose little by it
  bool split = false;  // one would be split; said by the answers
};

/// `options`: which passes are left out, since what one may do depends on another that follows.
/// `few_rows`, if not null, outlives the answers.
passes::OfTiles questions_for(const machine::Machine& machine, const machine::Strategy& strategy,
                              const stitch::Options& stitching, const Options& options,
                              FewRows* few_rows = nullptr);

/// In how many parts a reduction is worth another phase: where few workers would walk over all of
/// it for long.
int64_t reduction_parts(const machine::Machine& machine, const passes::Reduction& reduction);

}  // namespace obelisk::compiler
