#include "schedule/storage_box.h"

#include <algorithm>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

Result<StorageBox> storage_box(const Graph& graph, const stitch::Plan& plan, ValueId value) {
  const auto wrong = [&](std::string_view what) {
    return Error{Code::kBuild, "schedule",
                 fmt::format("value %{} is stored inside %{}, but {}", value,
                             plan.layouts[value].storage, what),
                 "", "this is a defect of Obelisk; please report it with the model"};
  };
  StorageBox box{value, std::vector<int64_t>(graph.type(value).shape.size(), 0),
                 graph.type(value).shape};
  const stitch::Layout& layout = plan.layouts[value];
  while (box.storage != layout.storage) {
    const std::vector<graph::NodeId> users = graph.users(box.storage);
    if (users.size() != 1 || graph.node(users[0]).op != ops::Op::Concat)
      return wrong("no chain of concatenations leads there");
    const graph::Node& concat = graph.node(users[0]);
    const auto rank = static_cast<int64_t>(box.begin.size());
    int64_t axis = concat.attrs.get_int("axis", 0);
    if (axis < 0) axis += rank;
    for (const ValueId piece : concat.inputs) {
      if (piece == box.storage) break;
      box.begin[static_cast<size_t>(axis)] += graph.type(piece).shape[static_cast<size_t>(axis)];
    }
    box.storage = concat.outputs[0];
  }
  const stitch::Layout& whole = plan.layouts[layout.storage];
  int64_t offset = whole.offset;
  for (size_t d = 0; d < box.begin.size(); ++d) offset += box.begin[d] * whole.strides[d];
  if (whole.strides != layout.strides) return wrong("its strides are not those of the storage");
  if (offset != layout.offset && box.volume() > 0)
    return wrong(fmt::format("at offset {} instead of {}", layout.offset, offset));
  return box;
}

int64_t shared_volume(const StorageBox& a, const StorageBox& b) {
  if (a.storage != b.storage) return 0;
  int64_t volume = 1;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const int64_t low = std::max(a.begin[d], b.begin[d]);
    const int64_t high = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    volume *= std::max<int64_t>(high - low, 0);
  }
  return volume;
}

WorkAccesses accesses_of(const Graph& graph, const stitch::Plan& plan, const Work& work) {
  const Group& group = plan.groups[work.group];
  WorkAccesses out;
  const auto add = [](std::vector<WorkAccess>& to, ValueId value, size_t slot) {
    const auto same = [&](const WorkAccess& other) { return other.value == value; };
    if (value != graph::kNone && std::none_of(to.begin(), to.end(), same))
      to.push_back({value, slot});
  };
  if (stitch::calls_op(group.kind)) {  // operands: what it reads, each once, then what it writes
    const graph::Node& node = graph.node(group.anchor);
    for (size_t slot = 0; slot < group.body.operands.size(); ++slot) {
      const ValueId value = group.body.operands[slot];
      const bool written =
          std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
      add(written ? out.stores : out.reads, value, slot);
    }
    return out;
  }
  for (const Access& access : work.nest.accesses) {
    if (access.load == ops::kNoExpr) continue;
    const auto slot = static_cast<size_t>(access.operand);
    add(out.reads, group.body.operands[slot], slot);
  }
  for (const Step& step : group.body.steps)
    if (step.kind == StepKind::kStore)
      add(out.stores, group.body.operands[step.slot], static_cast<size_t>(step.slot));
  size_t slot = static_cast<size_t>(work.operand_count(group));
  if (group.kind == GroupKind::kProduct) {
    add(out.reads, group.product.a, slot);
    add(out.reads, group.product.b, slot + 1);
  } else if (group.kind == GroupKind::kConv) {
    add(out.reads, group.conv.x, slot);
    add(out.reads, group.conv.w, slot + 1);
  } else if (group.kind == GroupKind::kAttention) {
    const stitch::AttentionTile& tile = group.attention;
    for (const auto* operand : {&tile.q, &tile.k, &tile.v, &tile.mask})
      if (operand->value != graph::kNone) add(out.reads, operand->value, slot++);
  }
  return out;
}

}  // namespace obelisk::schedule
