/// passes/remarks.h — what a pass left as it was although it nearly fitted, and why: for --explain.
///
///   in   left(graph, node, "the epsilon is no constant")
///   out  {"Div 'norm/div'", "the epsilon is no constant"}
///
/// A pass reports a node that it would change but for one condition, not every node of a graph. It
/// gets nullptr where no report is wanted. A node has one sentence: the first.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace obelisk::passes {

struct Remark {
  std::string node;  // op and name
  std::string why;
};

class Remarks {
 public:
  void left(const graph::Graph& graph, graph::NodeId node, std::string why);
  /// Forgets nodes that are no longer there: a larger pattern took them.
  void keep_those_of(const graph::Graph& graph);
  const std::vector<Remark>& all() const { return all_; }

 private:
  std::vector<Remark> all_;
  std::vector<graph::NodeId> of_;  // by remark
};

/// Why the tests of one pattern refused one node. Of several ways to match a node, the one that
/// matched most is reported.
class Reason {
 public:
  /// Always false, so that a test may `return why.no("…")`. `near`: how much of the pattern was
  /// matched; the first of those that matched as much is kept.
  bool no(std::string why, int near = 1) {
    if (near > near_) near_ = near, why_ = std::move(why);
    return false;
  }
  /// To the remarks, if there is a reason and a report is wanted.
  void tell(Remarks* remarks, const graph::Graph& graph, graph::NodeId node) const {
    if (remarks && near_ > 0) remarks->left(graph, node, why_);
  }

 private:
  int near_ = 0;
  std::string why_;
};

}  // namespace obelisk::passes
