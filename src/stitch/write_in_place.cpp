#include <algorithm>

#include "stitch/former.h"

namespace obelisk::stitch {

/// Outputs that take an input's memory: which of them a block can update there. Groups that read
/// the old value run before it.
void Former::write_in_place() {
  for (size_t k = 0; k < graph_.outputs().size(); ++k) {
    if (graph_.in_place_of(k) == graph::kNone) continue;
    InPlace made{.output = static_cast<int>(k), .input = graph_.in_place_of(k)};
    made.why = write_in_place(made.output, graph_.inputs()[made.input], made.group);
    out_.in_place.push_back(std::move(made));
  }
}

/// Of one output: `target` is the draft that writes it there from now on; or why none can.
std::string Former::write_in_place(int output, ValueId old, int& target) {
  const ValueId v = graph_.outputs()[output];
  const NodeId n = graph_.value(v).producer;
  if (graph_.value(v).is_constant() || n == graph::kNone) return "no op computes it";
  const graph::Node& node = graph_.node(n);
  if (node.op != ops::Op::ScatterElements && node.op != ops::Op::ScatterND)
    return fmt::format("a {} writes all of it", ops::to_string(node.op));
  if (node.inputs[0] != old)
    return fmt::format("a {} updates another value than the input", ops::to_string(node.op));
  if (std::count(node.inputs.begin(), node.inputs.end(), old) > 1)
    return "its updates or indices are the input as well";
  if (graph_.is_output(old)) return "the old value is an output, too";
  const auto first = std::find(graph_.outputs().begin(), graph_.outputs().end(), v);
  if (first - graph_.outputs().begin() != output)
    return fmt::format("it is output '{}', too",
                       graph_.output_names()[first - graph_.outputs().begin()]);
  const Layout& layout = views_.layout(v);
  if (layout.storage != v || layout.strides != row_major_strides(graph_.type(v).shape))
    return "it is stored inside another value, or in another order";
  const int mine = out_.group_of[v];
  Draft& draft = out_.drafts[mine];
  if (draft.group.kind != GroupKind::kBlock) return "no block computes it";
  auto block = ops::block_in_place(graph_.call(n), pieces_of_call());
  CHECK(block, "a {} has a block but none in place", ops::to_string(node.op));
  for (int other = 0; other < static_cast<int>(out_.drafts.size()); ++other) {
    if (other == mine || !out_.drafts[other].inputs.count(old) || !reaches(other, mine)) continue;
    return fmt::format("'{}' reads the old value and needs the new one",
                       graph_.node(out_.drafts[other].group.nodes.front()).name);
  }
  for (int other = 0; other < static_cast<int>(out_.drafts.size()); ++other)
    if (other != mine && out_.drafts[other].inputs.count(old)) draft.after.insert(other);
  std::erase(draft.group.body.operands, old);
  draft.inputs.erase(old);
  draft.operand.clear();
  for (size_t slot = 0; slot < draft.group.body.operands.size(); ++slot)
    draft.operand[draft.group.body.operands[slot]] = static_cast<int>(slot);
  draft.group.body.domain = {block->items};
  draft.group.block = std::move(*block);
  draft.group.in_place_of = old;
  target = mine;
  return "";
}

}  // namespace obelisk::stitch
