/// frontends/onnx/order.h — a topological order of the nodes of one body.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "frontends/onnx/model.h"

namespace obelisk::frontends::onnx {

/// Calls `visit` for every name that a node reads from around it: its inputs, and what its inner
/// graphs take from outside.
void for_each_read(const NodeDef& node, const std::function<void(std::string_view)>& visit);

/// Indices of the nodes, each after what it reads; the file's order is kept where it can be.
/// Errors: kBadModel for a cycle, and for two nodes that write one name.
Result<std::vector<int>> topological_order(const std::vector<NodeDef>& nodes);

}  // namespace obelisk::frontends::onnx
