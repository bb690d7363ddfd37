#include "schedule/dag.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace obelisk::schedule {
namespace {

Error refused(std::string text) {
  return Error{Code::kBuild, "schedule", "the dependencies are refused: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

/// A cycle among the works whose predecessors never all came: each of them has one that is of them,
/// too.
std::string cycle_of(const Dag& dag, const std::vector<int>& waits) {
  int at = 0;
  while (waits[at] == 0) ++at;
  std::vector<int> path, seen(waits.size(), -1);
  while (seen[at] < 0) {
    seen[at] = static_cast<int>(path.size());
    path.push_back(at);
    for (const int before : dag.before[at])
      if (waits[before] > 0) {
        at = before;
        break;
      }
  }
  path.erase(path.begin(), path.begin() + seen[at]);
  std::reverse(path.begin(), path.end());
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
  path.push_back(path.front());
  std::string text;
  for (const int work : path) text += (text.empty() ? "" : " -> ") + std::to_string(work);
  return text;
}

bool insert(std::vector<int>& sorted, int value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at != sorted.end() && *at == value) return false;
  sorted.insert(at, value);
  return true;
}

bool erase(std::vector<int>& sorted, int value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) return false;
  sorted.erase(at);
  return true;
}

}  // namespace

int64_t Dag::edges() const {
  int64_t count = 0;
  for (const auto& each : before) count += static_cast<int64_t>(each.size());
  return count;
}

bool Dag::add(int from, int to) {
  CHECK(from >= 0 && from < size() && to >= 0 && to < size(), "an edge from {} to {} of {} works",
        from, to, size());
  return insert(after[from], to) && insert(before[to], from);
}

bool Dag::remove(int from, int to) { return erase(after[from], to) && erase(before[to], from); }

Result<std::vector<int>> topological_order(const Dag& dag) {
  std::vector<int> waits(dag.size()), order;
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int work = 0; work < dag.size(); ++work) {
    waits[work] = static_cast<int>(dag.before[work].size());
    if (waits[work] == 0) ready.push(work);
  }
  while (!ready.empty()) {
    const int work = ready.top();
    ready.pop();
    order.push_back(work);
    for (const int next : dag.after[work])
      if (--waits[next] == 0) ready.push(next);
  }
  if (static_cast<int>(order.size()) != dag.size())
    return refused("works wait for each other: " + cycle_of(dag, waits));
  return order;
}

std::vector<int> sorted_topologically(const Dag& dag) {
  auto order = topological_order(dag);
  CHECK(order.ok(), "a cycle came through: {}", order.error().text());
  return *order;
}

std::vector<int> indegrees(const Dag& dag) {
  std::vector<int> waits(dag.size());
  for (int v = 0; v < dag.size(); ++v) waits[v] = static_cast<int>(dag.before[v].size());
  return waits;
}

Result<Reachability> Reachability::make(const Dag& dag) {
  TRY(const std::vector<int> order, topological_order(dag));
  Reachability made;
  made.size_ = dag.size(), made.words_ = (dag.size() + 63) / 64;
  made.bits_.assign(static_cast<size_t>(made.size_) * static_cast<size_t>(made.words_), 0);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    uint64_t* mine = made.bits_.data() + static_cast<int64_t>(*at) * made.words_;
    for (const int next : dag.after[*at]) {
      const uint64_t* other = made.row(next);
      for (int k = 0; k < made.words_; ++k) mine[k] |= other[k];
      mine[next / 64] |= uint64_t{1} << (next % 64);
    }
  }
  return made;
}

Dag transitive_reduction(const Dag& dag, const Reachability& reaches) {
  Dag reduced(dag.size());
  for (int from = 0; from < dag.size(); ++from)
    for (const int to : dag.after[from]) {
      const bool longer = std::any_of(dag.after[from].begin(), dag.after[from].end(),
                                      [&](int other) { return reaches(other, to); });
      if (!longer) reduced.add(from, to);
    }
  return reduced;
}

LongestPaths longest_paths(const Dag& dag, const std::vector<int>& order,
                           const std::vector<double>& nanos) {
  LongestPaths paths{nanos, nanos};
  for (const int work : order) {
    double longest = 0;
    for (const int before : dag.before[work]) longest = std::max(longest, paths.until[before]);
    paths.until[work] += longest;
    paths.critical = std::max(paths.critical, paths.until[work]);
  }
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    double longest = 0;
    for (const int next : dag.after[*at]) longest = std::max(longest, paths.from[next]);
    paths.from[*at] += longest;
  }
  return paths;
}

}  // namespace obelisk::schedule
