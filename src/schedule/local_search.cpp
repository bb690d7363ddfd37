#include "schedule/local_search.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

namespace obelisk::schedule {
namespace {

/// An order of the kernels that launch something, and the lane of each kernel.
struct Places {
  std::vector<int> order, lane;
  int lanes = 0;
  bool operator<(const Places& other) const {
    return std::tie(order, lane) < std::tie(other.order, other.lane);
  }
};

Places places_of(const Dispatch& dispatch, int kernels) {
  Places places{{}, std::vector<int>(static_cast<size_t>(kernels), -1), dispatch.lanes};
  for (const Dispatched& each : dispatch.kernels)
    places.order.push_back(each.kernel), places.lane[each.kernel] = each.lane;
  return places;
}

/// One kernel elsewhere in the order, or in another lane, which may be a new one.
Places changed(const Places& from, const Reachability& reaches, int most_lanes,
               std::mt19937_64& random) {
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  Places to = from;
  const size_t at = below(to.order.size());
  const int kernel = to.order[at];
  if (random() % 2 == 0) {
    const int lanes = most_lanes > 0 ? std::min(to.lanes + 1, most_lanes) : to.lanes + 1;
    to.lane[kernel] = static_cast<int>(below(static_cast<size_t>(lanes)));
    to.lanes = std::max(to.lanes, to.lane[kernel] + 1);
    return to;
  }
  size_t first = at, last = at;
  while (first > 0 && !reaches(to.order[first - 1], kernel)) --first;
  while (last + 1 < to.order.size() && !reaches(kernel, to.order[last + 1])) ++last;
  const size_t place = first + below(last - first + 1);
  to.order.erase(to.order.begin() + static_cast<std::ptrdiff_t>(at));
  to.order.insert(to.order.begin() + static_cast<std::ptrdiff_t>(place), kernel);
  return to;
}

}  // namespace

Result<Searched> local_search(const Dag& dag, const std::vector<Kernel>& kernels, Dispatch from,
                              const DispatchOptions& options, const SearchLimits& limits,
                              const Judge& judge) {
  constexpr int kDrawn = 12,  // changes of which the prediction chooses one
      kFruitless = 20;        // draws without any that was not judged before: there are none
  const auto begun = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  TRY(const Reachability reaches, Reachability::make(dag));
  std::mt19937_64 random(limits.seed);
  Searched found{std::move(from)};
  Places best = places_of(found.dispatch, dag.size());
  std::set<Places> judged{best};
  for (int fruitless = 0; best.order.size() > 1 && found.judged < limits.judged &&
                          fruitless < kFruitless && seconds() < limits.seconds;) {
    std::optional<Dispatch> candidate;
    Places at;
    for (int k = 0; k < kDrawn; ++k) {
      Places drawn = changed(best, reaches, options.streams, random);
      if (judged.contains(drawn)) continue;
      TRY(Dispatch made,
          dispatch_as("search", dag, kernels, drawn.order, {drawn.lane, drawn.lanes}, options));
      if (candidate && made.predicted_nanos >= candidate->predicted_nanos) continue;
      candidate = std::move(made), at = std::move(drawn);
    }
    if (!candidate) {
      ++fruitless;
      continue;
    }
    fruitless = 0, ++found.judged;
    judged.insert(at);
    TRY(const bool better, judge(*candidate));
    if (!better) continue;
    ++found.better;
    found.dispatch = std::move(*candidate), best = std::move(at);
  }
  return found;
}

}  // namespace obelisk::schedule
