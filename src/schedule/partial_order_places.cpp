#include "schedule/partial_order_places.h"

#include <algorithm>
#include <numeric>

#include "schedule/places.h"

namespace obelisk::schedule {
namespace {

/// For each buffer the works that all of its users lead to.
std::vector<std::vector<uint64_t>> followers(const std::vector<Used>& all,
                                             const Reachability& reaches) {
  std::vector<std::vector<uint64_t>> out;
  for (const Used& one : all) {
    std::vector<uint64_t> bits(reaches.words(), one.users.empty() ? 0 : ~uint64_t{0});
    for (const int user : one.users)
      for (int k = 0; k < reaches.words(); ++k) bits[k] &= reaches.row(user)[k];
    out.push_back(std::move(bits));
  }
  return out;
}

bool holds_all(const std::vector<uint64_t>& bits, const std::vector<int>& works) {
  return std::all_of(works.begin(), works.end(),
                     [&](int work) { return (bits[work / 64] >> (work % 64) & 1) != 0; });
}

}  // namespace

bool precedes(const Reachability& reaches, const Used& first, const Used& then) {
  for (const int from : first.users)
    for (const int to : then.users)
      if (!reaches(from, to)) return false;
  return true;
}

int64_t place_used(std::vector<Used>& all, const Reachability& reaches, int64_t align) {
  const std::vector<std::vector<uint64_t>> after = followers(all, reaches);
  return first_fit(all, align, [&](size_t a, size_t b) {
    return !holds_all(after[a], all[b].users) && !holds_all(after[b], all[a].users);
  });
}

Result<Ordered> place_and_order(std::vector<Used>& all, Dag& dag, const std::vector<double>& nanos,
                                int64_t align, int tries) {
  CHECK(nanos.size() == static_cast<size_t>(dag.size()));
  TRY(std::vector<int> order, topological_order(dag));
  TRY(Reachability reaches, Reachability::make(dag));
  LongestPaths paths = longest_paths(dag, order, nanos);
  const double longest = paths.critical * (1 + 1e-9);  // as it was, but for rounding
  Ordered made;
  made.bytes = made.without = place_used(all, reaches, align);
  /// The edges that let `then` lie where `first` did, where nobody has to wait for them; empty:
  /// they may not be.
  const auto edges_between = [&](const Used& first, const Used& then) {
    std::vector<std::pair<int, int>> edges;
    for (const int from : first.users)
      for (const int to : then.writers) {
        if (reaches(from, to)) continue;
        if (from == to || reaches(to, from) || paths.until[from] + paths.from[to] > longest)
          return std::vector<std::pair<int, int>>();
        edges.push_back({from, to});
      }
    return edges;
  };
  for (bool better = true; better && tries > 0;) {
    better = false;
    // What ends highest is moved first, beneath what is nearest to its size.
    std::vector<size_t> high(all.size()), other(all.size());
    std::iota(high.begin(), high.end(), size_t{0});
    other = high;
    std::stable_sort(high.begin(), high.end(), [&](size_t a, size_t b) {
      return all[a].offset + all[a].size > all[b].offset + all[b].size;
    });
    std::stable_sort(other.begin(), other.end(),
                     [&](size_t a, size_t b) { return all[a].size > all[b].size; });
    high.resize(std::min<size_t>(high.size(), 8));
    for (size_t a = 0; a < high.size() && !better; ++a)
      for (size_t b = 0; b < other.size() && !better && tries > 0; ++b)
        for (const bool behind : {true, false}) {
          const Used &mine = all[high[a]], &beneath = all[other[b]];
          if (&mine == &beneath || precedes(reaches, mine, beneath) ||
              precedes(reaches, beneath, mine))
            continue;
          const auto edges = behind ? edges_between(beneath, mine) : edges_between(mine, beneath);
          if (edges.empty()) continue;
          --tries;
          Dag with = dag;
          for (const auto& [from, to] : edges) with.add(from, to);
          auto order_with = topological_order(with);
          if (!order_with.ok()) continue;  // together they close a cycle
          LongestPaths paths_with = longest_paths(with, *order_with, nanos);
          if (paths_with.critical > longest) continue;
          TRY(Reachability reaches_with, Reachability::make(with));
          std::vector<Used> placed = all;
          const int64_t bytes = place_used(placed, reaches_with, align);
          if (bytes >= made.bytes) continue;
          made.bytes = bytes, made.added.insert(made.added.end(), edges.begin(), edges.end());
          all = std::move(placed), dag = std::move(with), reaches = std::move(reaches_with),
          paths = std::move(paths_with);
          better = true;
          break;
        }
  }
  return made;
}

}  // namespace obelisk::schedule
