// What a dispatch is predicted to take.
#include <algorithm>

#include "schedule/dispatch.h"

namespace obelisk::schedule {

double predict(const std::vector<Dispatched>& by_position, const std::vector<Kernel>& kernels,
               const DispatchOptions& options) {
  struct Active {
    int position;
    double width, left;  // SMs that it fills; of its work, in nanoseconds of that many
  };
  std::vector<int> position_of(kernels.size(), -1), waits(by_position.size());
  std::vector<std::vector<int>> next(by_position.size());
  size_t edges = 0;
  for (size_t k = 0; k < by_position.size(); ++k)
    position_of[by_position[k].kernel] = static_cast<int>(k);
  for (size_t k = 0; k < by_position.size(); ++k) {
    waits[k] = static_cast<int>(by_position[k].predecessors.size());
    edges += by_position[k].predecessors.size();
    for (const int before : by_position[k].predecessors)
      next[position_of[before]].push_back(static_cast<int>(k));
  }
  std::vector<Active> active;                    // by position
  std::vector<std::pair<double, int>> starting;  // when, and which: by time
  double now = 0;
  const auto begin = [&](int position) {
    const Demand& demand = kernels[by_position[position].kernel].demand;
    const double width =
        static_cast<double>(std::min<int64_t>(std::max<int64_t>(demand.blocks, 1), options.sms));
    const auto at = std::find_if(active.begin(), active.end(),
                                 [&](const Active& each) { return each.position > position; });
    active.insert(at, {position, width, std::max(demand.nanos, 1.0)});
  };
  const auto release = [&](int position) {  // later ones start later: the vector stays in order
    starting.emplace_back(now + options.node_nanos, position);
  };
  for (size_t k = 0; k < waits.size(); ++k)
    if (waits[k] == 0) release(static_cast<int>(k));
  for (size_t started = 0; started < starting.size() || !active.empty();) {
    for (; started < starting.size() && starting[started].first <= now; ++started)
      begin(starting[started].second);
    double free = options.sms, soonest = -1;
    if (started < starting.size()) soonest = starting[started].first - now;
    std::vector<double> rate;
    for (const Active& each : active) {
      const double got = std::min(free, each.width);
      free -= got;
      rate.push_back(got / each.width);
      if (got > 0 && (soonest < 0 || each.left / rate.back() < soonest))
        soonest = each.left / rate.back();
    }
    now += soonest;
    std::vector<Active> left;
    std::vector<int> ended;
    for (size_t k = 0; k < active.size(); ++k) {
      active[k].left -= soonest * rate[k];
      if (active[k].left < 1e-6)
        ended.push_back(active[k].position);
      else
        left.push_back(active[k]);
    }
    active = std::move(left);
    for (const int position : ended)
      for (const int each : next[position])
        if (--waits[each] == 0) release(each);
  }
  return now + options.edge_nanos * static_cast<double>(edges);
}

}  // namespace obelisk::schedule
