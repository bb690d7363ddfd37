// Partial orders of works at random, and what is asked of them in plain ways.
#pragma once

#include <algorithm>
#include <random>

#include "schedule/dag.h"

namespace obelisk::schedule {

/// Whether `order` has every work once, each behind its predecessors.
inline bool is_topological(const Dag& dag, const std::vector<int>& order) {
  std::vector<bool> met(dag.size(), false);
  for (const int work : order) {
    if (work < 0 || work >= dag.size() || met[work]) return false;
    for (const int before : dag.before[work])
      if (!met[before]) return false;
    met[work] = true;
  }
  return static_cast<int>(order.size()) == dag.size();
}

/// Whom a walk along the edges meets.
inline std::vector<bool> walked(const Dag& dag, int from) {
  std::vector<bool> met(dag.size(), false);
  std::vector<int> left{from};
  while (!left.empty()) {
    const int at = left.back();
    left.pop_back();
    for (const int next : dag.after[at])
      if (!met[next]) met[next] = true, left.push_back(next);
  }
  return met;
}

/// Edges at random, of up to `most` works.
inline Dag random_dag(std::mt19937& random, int most) {
  const int count = 1 + static_cast<int>(random() % most);
  std::vector<int> number(count);  // edges do not follow the numbers
  for (int k = 0; k < count; ++k) number[k] = k;
  std::shuffle(number.begin(), number.end(), random);
  Dag dag(count);
  const int edges = static_cast<int>(random() % (2 * count + 1));
  for (int k = 0; k < edges; ++k) {
    const int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
    if (a != b) dag.add(number[std::min(a, b)], number[std::max(a, b)]);
  }
  return dag;
}

}  // namespace obelisk::schedule
