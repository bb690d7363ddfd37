/// passes/beside.h — what passes that make one product of several have in common.
#pragma once

#include <set>
#include <vector>

#include "passes/rewrite.h"

namespace obelisk::passes {

/// Matrices beside each other: rows of the result are the parts' rows, one after the other.
Tensor beside(const std::vector<const Tensor*>& parts);
/// One after the other, whole.
Tensor below(const std::vector<const Tensor*>& parts, const Shape& shape);

/// The elementwise ops that a value reaches through elementwise ops and moves.
std::set<NodeId> reached(const Graph& graph, ValueId from);

}  // namespace obelisk::passes
