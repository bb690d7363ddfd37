// In which order kernels are launched: Opara's algorithm 2, the longest remaining path, at random.
#include <algorithm>
#include <queue>
#include <random>
#include <set>

#include "machine/machine.h"
#include "schedule/dispatch.h"

namespace obelisk::schedule {

std::vector<int> order_opara(const Dag& dag, const std::vector<Kernel>& kernels, Steps* steps,
                             const DispatchRules& rules) {
  struct Ready {
    const Demand* demand;
    int since, kernel;
    bool operator<(const Ready& other) const {  // the least is on top
      if (asks_for_less(*other.demand, *demand)) return true;
      return !asks_for_less(*demand, *other.demand) && since > other.since;
    }
  };
  const Demand alike;                   // of all kernels where demand does not count
  std::priority_queue<Ready> lists[2];  // L_mem, L_comp
  std::vector<int> waits = indegrees(dag), order, free;
  Steps counted;
  int since = 0;
  const auto release = [&](int kernel) {
    if (!kernels[kernel].launches)
      free.push_back(kernel);
    else
      lists[rules.classes && kernels[kernel].kind == KernelClass::kCompute ? 1 : 0].push(
          {rules.demand ? &kernels[kernel].demand : &alike, since++, kernel});
  };
  const auto launch = [&](int kernel) {
    order.push_back(kernel);
    ++counted.count;
    for (const int next : dag.after[kernel]) {
      ++counted.count;
      if (--waits[next] == 0) release(next);
    }
  };
  const auto launch_free = [&] {
    for (size_t k = 0; k < free.size(); ++k) launch(free[k]);
    free.clear();
  };
  for (int v = 0; v < dag.size(); ++v)
    if (dag.before[v].empty()) release(v);
  launch_free();
  for (int turn = 0; !lists[0].empty() || !lists[1].empty();) {
    const int list = lists[turn].empty() ? 1 - turn : turn;
    const int kernel = lists[list].top().kernel;
    lists[list].pop();
    turn = 1 - list;
    launch(kernel);
    launch_free();
  }
  if (steps) steps->count += counted.count;
  return order;
}

std::vector<int> order_critical(const Dag& dag, const std::vector<Kernel>& kernels, int sms) {
  using namespace machine::thresholds;
  std::vector<double> nanos(dag.size(), 0);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches) nanos[v] = kernels[v].demand.nanos;
  const LongestPaths paths = longest_paths(dag, sorted_topologically(dag), nanos);
  const auto later = [&](int a, int b) {
    return std::pair(paths.from[a], -a) < std::pair(paths.from[b], -b);
  };
  std::priority_queue<int, std::vector<int>, decltype(later)> ready(later);
  // The machine as it would be: whose predecessors have not ended is no candidate while another is.
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> running;
  std::vector<int> waits = indegrees(dag), order;
  double now = 0;
  int64_t taken = 0;
  const auto width = [&](int kernel) {
    return std::min<int64_t>(std::max<int64_t>(kernels[kernel].demand.blocks, 1), sms);
  };
  std::optional<KernelClass> before;
  std::vector<int> free;
  const auto release = [&](int kernel) {
    (kernels[kernel].launches ? void(ready.push(kernel)) : free.push_back(kernel));
  };
  const auto end = [&](int kernel) {
    for (const int next : dag.after[kernel])
      if (--waits[next] == 0) release(next);
  };
  const auto pass_free = [&] {
    for (size_t k = 0; k < free.size(); ++k) order.push_back(free[k]), end(free[k]);
    free.clear();
  };
  for (int v = 0; v < dag.size(); ++v)
    if (waits[v] == 0 && dag.before[v].empty()) release(v);
  pass_free();
  while (!ready.empty() || !running.empty()) {
    // Time goes on when nothing is ready, or no SM is free.
    if (ready.empty() || (taken >= sms && !running.empty())) {
      const auto [at, kernel] = running.top();
      running.pop();
      now = at, taken -= width(kernel);
      end(kernel);
      pass_free();
      continue;
    }
    std::vector<int> urgent;
    const double longest = paths.from[ready.top()];
    while (!ready.empty() && urgent.size() < kMostUrgent &&
           paths.from[ready.top()] >= kAsUrgent * longest)
      urgent.push_back(ready.top()), ready.pop();
    const auto worth = [&](int kernel) {
      return std::tuple(taken + width(kernel) > sms, before && kernels[kernel].kind == *before);
    };
    size_t best = 0;
    for (size_t k = 1; k < urgent.size(); ++k)
      if (worth(urgent[k]) < worth(urgent[best])) best = k;
    const int kernel = urgent[best];
    for (const int other : urgent)
      if (other != kernel) ready.push(other);
    order.push_back(kernel);
    before = kernels[kernel].kind;
    taken += width(kernel);
    running.push({now + nanos[kernel], kernel});
  }
  return order;
}

std::vector<int> order_random(const Dag& dag, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> waits = indegrees(dag), ready, order;
  for (int v = 0; v < dag.size(); ++v)
    if (waits[v] == 0) ready.push_back(v);
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const int kernel = ready.back();
    ready.pop_back();
    order.push_back(kernel);
    for (const int next : dag.after[kernel])
      if (--waits[next] == 0) ready.push_back(next);
  }
  return order;
}

}  // namespace obelisk::schedule
