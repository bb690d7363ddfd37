/// stitch/form_groups.h — scopes: which ops are computed by one body, and by which scheme each edge
/// goes.
///
///   in   Graph, Views                         x ── sub ── exp ──┬── div      softmax: rows of x,
///   two reductions, out  Groups with members and expressions  └ max ┘      └ sum ┘ every edge
///   local or regional: one group
///
/// Nodes are taken in order. A node joins the group of one of its producers when its elements can
/// be named by the group's own coordinates (the locality check) and no cycle would close; a
/// reduction gives the group its rows and columns and becomes its dominant if it has none;
/// otherwise the node starts a group. What a group reads at its own point is local; what it reads
/// in its own row at another column is regional (staged); anything else is global: stored, and read
/// after a barrier.
///
/// Stands   after Views; before write_bodies, which turns members into steps.
/// Paper    AStitch (ASPLOS'22) §4.1 scope, §4.3 steps 1 and 3 (dominants, locality check,
/// proactive adaptation: a group without
///          reductions takes the rows and columns of the first reduction that joins it; by other
///          coordinates: adapt.h).
/// Differs  one pass in node order instead of breadth-first scopes that are merged later; MonoNN's
/// "contracted" subgraphs fall out. Errors   none.    Cost  O(nodes * groups among producers).
#pragma once

#include <map>
#include <set>

#include "stitch/stitch.h"
#include "stitch/views.h"

namespace obelisk::stitch {

/// A value that a group computes: at which coordinates of the domain, and by which expression.
struct Member {
  std::vector<ExprId> at;  // the value's own coordinates, as expressions over the domain
  ExprId value = kNoExpr;
  bool per_row = false;
};

/// A group in the making.
struct Draft {
  Group group;
  std::vector<bool> is_column;  // by coordinate slot, once a reduction has decided
  bool open = true;             // no reduction yet: rows and columns may still be chosen
  bool anchored = false;        // a tile is computed first: epilogue rules
  std::map<ValueId, Member> members;
  std::vector<Step> reduce_steps;
  std::map<ValueId, int> operand;  // slot of an outside value
  std::set<int> after;             // groups read from
  std::set<ValueId> inputs;        // the graph's that it reads
};

struct Grouping {
  std::vector<Draft> drafts;
  std::vector<int> group_of;  // by value: the draft that stores or computes it, or -1
  std::vector<int> order;     // drafts in a topological order
  std::vector<Edge> edges;
  std::set<ValueId> read_outside;  // values that a group other than their own reads
  std::vector<InPlace> in_place;   // groups are drafts
};

/// Whether the elements of a value of this shape, whose coordinates are these expressions over the
/// domain, come in the domain's order: row r of the one is row r of the other.
bool walks_in_order(const Body& body, const std::vector<ExprId>& at, const Shape& shape);

/// Nodes whose row does not fit shared memory (write_body), so that it goes from regional to
/// global: no reduction over it joins its group; of those in `fully` nothing that reads it does.
struct Demoted {
  std::set<NodeId> from_reductions, fully;
};

/// `tiles`: the machine's, or null.
Grouping form_groups(const Graph& graph, Views& views, const machine::Machine& device,
                     const machine::Strategy& strategy, const Options& options,
                     const kernels::TileLibrary* tiles, const Demoted& demoted = {});

}  // namespace obelisk::stitch
