/// schedule/dag.h — a partial order of works: who must end before whom.
///
/// Reachability is a bit for each pair, one row of words a work; 10,000 works take 12.5 MB.
#pragma once

#include <cstdint>
#include <vector>

#include "base/base.h"

namespace obelisk::schedule {

/// Works by number and the edges between them, each once. `before` and `after` are ascending.
struct Dag {
  std::vector<std::vector<int>> before, after;  // direct predecessors and successors

  explicit Dag(int count = 0) : before(count), after(count) {}
  int size() const { return static_cast<int>(before.size()); }
  int64_t edges() const;
  /// Adds an edge; false where it is there already.
  bool add(int from, int to);
  /// Takes an edge out; false where there is none.
  bool remove(int from, int to);
};

/// The works so that each stands behind its predecessors, and otherwise by number. Errors: kBuild,
/// naming a cycle.
Result<std::vector<int>> topological_order(const Dag& dag);

/// The same of a graph that has no cycle, which is ours to know.
std::vector<int> sorted_topologically(const Dag& dag);
/// How many direct predecessors each work has.
std::vector<int> indegrees(const Dag& dag);

/// Which works a path leads to. Errors of make(): kBuild, naming a cycle.
class Reachability {
 public:
  static Result<Reachability> make(const Dag& dag);
  int size() const { return size_; }
  /// Whether a path of at least one edge leads from `from` to `to`.
  bool operator()(int from, int to) const { return (row(from)[to / 64] >> (to % 64) & 1) != 0; }
  /// The works that `from` leads to, 64 in a word.
  const uint64_t* row(int from) const { return bits_.data() + static_cast<int64_t>(from) * words_; }
  int words() const { return words_; }

 private:
  int size_ = 0, words_ = 0;
  std::vector<uint64_t> bits_;
};

/// The fewest edges with the same reachability: those that no longer path makes needless.
Dag transitive_reduction(const Dag& dag, const Reachability& reaches);

/// The longest path that ends with each work, itself included, and that begins with it, by what
/// each work takes.
struct LongestPaths {
  std::vector<double> until, from;
  double critical = 0;  // the longest of all
};
LongestPaths longest_paths(const Dag& dag, const std::vector<int>& order,
                           const std::vector<double>& nanos);

}  // namespace obelisk::schedule
