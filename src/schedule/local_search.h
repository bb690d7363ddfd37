/// schedule/local_search.h — better orders and lanes of a graph's kernels, by small changes of a
/// dispatch that is known.
///
///   in   a Dag, what each kernel needs, a dispatch that has lanes, a judge
///   out  the best dispatch that the judge saw
///
/// A step draws some changes: one kernel goes elsewhere in the order, as far as its predecessors
/// and successors let it, or into another lane. The one that predict() likes best is put to the
/// judge, who measures it or believes the prediction; what is better is where the next step begins.
#pragma once

#include <functional>

#include "schedule/dispatch.h"

namespace obelisk::schedule {

struct SearchLimits {
  double seconds = 0;  // of the clock
  int judged = 1 << 30;
  uint64_t seed = 1;
};

struct Searched {
  Dispatch dispatch;  // `from`, where nothing was better
  int judged = 0, better = 0;
};

/// Whether a candidate takes less time than the best so far; after a yes it is the best.
using Judge = std::function<Result<bool>(const Dispatch& candidate)>;

/// `from`: of any policy but waves, whose edges are not those of lanes. The same limits in `judged`
/// and the same answers of the judge give the same dispatch. Errors: the judge's, which end the
/// search.
Result<Searched> local_search(const Dag& dag, const std::vector<Kernel>& kernels, Dispatch from,
                              const DispatchOptions& options, const SearchLimits& limits,
                              const Judge& judge);

}  // namespace obelisk::schedule
