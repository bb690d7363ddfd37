// Which kernels share a lane: Opara's algorithm 1, Nimble's matching.
#include "schedule/dispatch_lanes.h"

#include <algorithm>
#include <numeric>

namespace obelisk::schedule {
namespace {

/// A maximum matching of a bipartite graph by augmenting paths: for each right side its left one,
/// or -1.
std::vector<int> maximum_matching(const std::vector<std::vector<int>>& edges) {
  const int count = static_cast<int>(edges.size());
  std::vector<int> match(count, -1), seen(count, -1), next(count), came(count);
  for (int root = 0; root < count; ++root) {
    // Depth first without recursion: `came` is the right side through which a left one was reached.
    std::vector<int> path{root};
    next[root] = 0;
    while (!path.empty()) {
      const int left = path.back();
      if (next[left] == static_cast<int>(edges[left].size())) {
        path.pop_back();
        continue;
      }
      const int right = edges[left][next[left]++];
      if (seen[right] == root) continue;
      seen[right] = root, came[left] = right;
      if (match[right] >= 0) {
        next[match[right]] = 0;
        path.push_back(match[right]);
        continue;
      }
      for (const int each : path) match[came[each]] = each;
      break;
    }
  }
  return match;
}

/// Chains that a matching makes: of each element its chain, and of each chain its first and last
/// element.
struct Chains {
  std::vector<int> chain;
  std::vector<std::pair<int, int>> ends;
};
Chains chains_of(const std::vector<int>& match) {
  const int count = static_cast<int>(match.size());
  std::vector<bool> passes_on(count, false);
  for (const int left : match)
    if (left >= 0) passes_on[left] = true;
  Chains chains{std::vector<int>(count, -1), {}};
  for (int last = 0; last < count; ++last) {
    if (passes_on[last]) continue;
    int at = last;
    for (;; at = match[at]) {
      chains.chain[at] = static_cast<int>(chains.ends.size());
      if (match[at] < 0) break;
    }
    chains.ends.push_back({at, last});
  }
  return chains;
}

}  // namespace

void number_lanes(const std::vector<int>& order, Lanes& lanes) {
  std::vector<int> number(lanes.count, -1);
  int next = 0;
  for (const int kernel : order)
    if (int& mine = number[lanes.lane[kernel]]; mine < 0) mine = next++;
  for (int& lane : lanes.lane) lane = number[lane];
  lanes.count = next;
}

void bound_lanes(const std::vector<int>& order, int most, Lanes& lanes) {
  if (most <= 0 || lanes.count <= most) return;
  std::vector<int> last(lanes.count, -1), many(lanes.count, 0), first(lanes.count, -1),
      to(lanes.count, -1);
  for (size_t k = 0; k < order.size(); ++k) {
    const int lane = lanes.lane[order[k]];
    if (first[lane] < 0) first[lane] = static_cast<int>(k);
    last[lane] = static_cast<int>(k), ++many[lane];
  }
  std::vector<int> end(most, -1), count(most, 0), by_begin(lanes.count);
  std::iota(by_begin.begin(), by_begin.end(), 0);
  std::sort(by_begin.begin(), by_begin.end(), [&](int a, int b) { return first[a] < first[b]; });
  for (const int chain : by_begin) {
    int best = 0;
    for (int lane = 1; lane < most; ++lane) {
      const auto worth = [&](int of) {
        return std::tuple(end[of] >= first[chain], count[of], end[of]);
      };
      if (worth(lane) < worth(best)) best = lane;
    }
    to[chain] = best, end[best] = std::max(end[best], last[chain]), count[best] += many[chain];
  }
  for (int& lane : lanes.lane)
    if (lane >= 0) lane = to[lane];
  lanes.count = most;
}

Lanes allocate_opara(const Dag& dag, const std::vector<int>& topological, Steps* steps) {
  Lanes lanes{std::vector<int>(dag.size(), -1), 0};
  std::vector<bool> flag(dag.size(), false);  // whether a kernel has passed its lane on
  Steps counted;
  for (const int v : topological) {
    ++counted.count;
    for (const int p : dag.before[v]) {
      ++counted.count;
      if (flag[p]) continue;
      lanes.lane[v] = lanes.lane[p];
      flag[p] = true;
      break;
    }
    if (lanes.lane[v] < 0) lanes.lane[v] = lanes.count++;
  }
  if (steps) steps->count += counted.count;
  return lanes;
}

Lanes allocate_nimble(const Dag& dag, const Reachability& reaches) {
  const Chains chains = chains_of(maximum_matching(transitive_reduction(dag, reaches).after));
  // A chain may go on with one that begins where a path from its end leads.
  std::vector<std::vector<int>> follows(chains.ends.size());
  for (size_t a = 0; a < chains.ends.size(); ++a)
    for (size_t b = 0; b < chains.ends.size(); ++b)
      if (reaches(chains.ends[a].second, chains.ends[b].first))
        follows[a].push_back(static_cast<int>(b));
  const Chains joined = chains_of(maximum_matching(follows));
  Lanes lanes{std::vector<int>(dag.size()), static_cast<int>(joined.ends.size())};
  for (int v = 0; v < dag.size(); ++v) lanes.lane[v] = joined.chain[chains.chain[v]];
  return lanes;
}

Lanes allocate_sequential(const Dag& dag) {
  return {std::vector<int>(dag.size(), 0), dag.size() > 0 ? 1 : 0};
}

}  // namespace obelisk::schedule
