#include "schedule/storage_box.h"

#include <algorithm>
#include <optional>

namespace obelisk::schedule {

using stitch::Group;
using stitch::GroupKind;
using stitch::Step;
using stitch::StepKind;

namespace {

/// Where in a concatenation the inputs of another one along the same axis stand, each behind the
/// one before; nothing where they do not.
std::optional<size_t> place_of_run(const graph::Node& whole, const graph::Node& part) {
  const auto at =
      std::search(whole.inputs.begin(), whole.inputs.end(), part.inputs.begin(), part.inputs.end());
  return at == whole.inputs.end() ? std::nullopt : std::optional(at - whole.inputs.begin());
}

/// From coordinates of `part` to those of the value that it is part of, `box.storage`: the one is
/// an input of the concatenation that makes the other, or a concatenation of several of these, or a
/// slice of it without steps. False: none of them.
bool place_part(const Graph& graph, ValueId part, StorageBox& box) {
  const auto made = [&](ValueId value) -> const graph::Node* {
    const graph::NodeId producer = graph.value(value).producer;
    return producer == graph::kNone ? nullptr : &graph.node(producer);
  };
  const auto rank = static_cast<int64_t>(box.begin.size());
  const auto axis_of = [&](const graph::Node& node) {
    const int64_t axis = node.attrs.get_int("axis", 0);
    return static_cast<size_t>(axis < 0 ? axis + rank : axis);
  };
  const auto extent = [&](ValueId value, size_t axis) { return graph.type(value).shape[axis]; };
  if (const graph::Node* concat = made(box.storage);
      concat && concat->op == ops::Op::Concat &&
      std::count(concat->inputs.begin(), concat->inputs.end(), part) == 1) {
    const size_t axis = axis_of(*concat);
    for (const ValueId piece : concat->inputs) {
      if (piece == part) return true;
      box.begin[axis] += extent(piece, axis);
    }
  }
  const graph::Node* node = made(part);
  if (const graph::Node* concat = made(box.storage);
      node && concat && node->op == ops::Op::Concat && concat->op == ops::Op::Concat &&
      axis_of(*node) == axis_of(*concat)) {
    const auto first = place_of_run(*concat, *node);
    for (size_t k = 0; first && k < *first; ++k)
      box.begin[axis_of(*concat)] += extent(concat->inputs[k], axis_of(*concat));
    return first.has_value();
  }
  if (!node || node->inputs[0] != box.storage) return false;
  if (node->op == ops::Op::Split) {
    const size_t axis = axis_of(*node);
    for (const ValueId piece : node->outputs) {
      if (piece == part) return true;
      if (piece == graph::kNone) return false;
      box.begin[axis] += extent(piece, axis);
    }
  }
  if (node->op != ops::Op::Slice) return false;
  const auto ints = [&](size_t input) -> std::optional<std::vector<int64_t>> {
    if (node->inputs.size() <= input || node->inputs[input] == graph::kNone) return std::nullopt;
    const graph::Value& value = graph.value(node->inputs[input]);
    if (!value.is_constant()) return std::nullopt;
    return to_ints(value.constant);
  };
  const auto starts = ints(1), axes = ints(3), steps = ints(4);
  if (!starts) return false;
  for (size_t k = 0; k < starts->size(); ++k) {
    int64_t axis = axes ? (*axes)[k] : static_cast<int64_t>(k), start = (*starts)[k];
    axis += axis < 0 ? rank : 0;
    const auto d = static_cast<size_t>(axis);
    if (steps && (*steps)[k] != 1 && extent(part, d) > 1) return false;
    const int64_t size = extent(box.storage, d);
    start += start < 0 ? size : 0;
    box.begin[d] += std::clamp<int64_t>(start, 0, std::max<int64_t>(size - 1, 0));
  }
  return true;
}

using Steps = std::vector<int64_t>;

/// After a reshape: steps of the new dimensions, where those of the old ones that they are made of
/// follow one another.
std::optional<Steps> reshaped(const Shape& from, const Steps& steps, const Shape& to) {
  Steps made(to.size(), 0);
  size_t a = 0, b = 0;
  while (a < from.size() && b < to.size()) {
    size_t a_end = a + 1, b_end = b + 1;
    int64_t old_count = from[a], new_count = to[b];
    while (old_count != new_count) {
      if (old_count < new_count ? a_end == from.size() : b_end == to.size()) return std::nullopt;
      if (old_count < new_count)
        old_count *= from[a_end++];
      else
        new_count *= to[b_end++];
    }
    int64_t step = 0;  // of what the old dimensions are together
    for (size_t d = a_end; d-- > a;) {
      if (from[d] == 1) continue;
      if (step != 0 && steps[d] != step) return std::nullopt;
      if (step == 0) made[b_end - 1] = steps[d];
      step = steps[d] * from[d];
    }
    for (size_t d = b_end - 1; d-- > b;) made[d] = made[d + 1] * to[d + 1];
    a = a_end, b = b_end;
  }
  return made;
}

/// By coordinate of `part`, its step in elements of `whole` in row-major order, where moves of all
/// elements lead from one to the other.
std::optional<Steps> steps_of_moves(const Graph& graph, ValueId part, ValueId whole) {
  std::vector<graph::NodeId> chain;
  for (ValueId v = part; v != whole; v = graph.node(chain.back()).inputs[0]) {
    const graph::NodeId producer = graph.value(v).producer;
    if (producer == graph::kNone) return std::nullopt;
    const ops::Op op = graph.node(producer).op;
    if (op != ops::Op::Transpose && op != ops::Op::Reshape && op != ops::Op::Squeeze &&
        op != ops::Op::Unsqueeze && op != ops::Op::Flatten)
      return std::nullopt;
    chain.push_back(producer);
  }
  Shape shape = graph.type(whole).shape;
  Steps steps = row_major_strides(shape);
  for (size_t k = chain.size(); k-- > 0;) {
    const graph::Node& node = graph.node(chain[k]);
    const Shape& to = graph.type(node.outputs[0]).shape;
    if (node.op == ops::Op::Transpose) {
      std::vector<int64_t> order = node.attrs.get_ints("perm");
      if (order.empty())
        for (size_t d = to.size(); d-- > 0;) order.push_back(static_cast<int64_t>(d));
      Steps turned;
      for (int64_t d : order) turned.push_back(steps[static_cast<size_t>(d)]);
      steps = std::move(turned);
    } else {
      auto made = reshaped(shape, steps, to);
      if (!made) return std::nullopt;
      steps = std::move(*made);
    }
    shape = to;
  }
  return steps;
}

/// Along which dimension of `shape`, how many elements of it, a step in row-major order leads.
struct Along {
  size_t dim = 0;
  int64_t times = 1;
};
std::optional<Along> along(const Shape& shape, int64_t step) {
  const std::vector<int64_t> steps = row_major_strides(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1 && steps[d] <= step)
      return step % steps[d] == 0 ? std::optional(Along{d, step / steps[d]}) : std::nullopt;
  return std::nullopt;
}

}  // namespace

Result<StorageBox> storage_box(const Graph& graph, const stitch::Plan& plan, ValueId value) {
  const auto wrong = [&](std::string_view what) {
    return Error{Code::kBuild, "schedule",
                 fmt::format("value %{} is stored inside %{}, but {}", value,
                             plan.layouts[value].storage, what),
                 "", "this is a defect of Obelisk; please report it with the model"};
  };
  const Shape& shape = graph.type(value).shape;
  StorageBox box{value, std::vector<int64_t>(shape.size(), 0), shape, {}};
  const stitch::Layout& layout = plan.layouts[value];
  std::vector<Along> coordinates(shape.size());  // of the value, in those of the box
  for (size_t d = 0; d < shape.size(); ++d) coordinates[d].dim = d;
  while (box.storage != layout.storage) {
    const ValueId part = box.storage;
    box.storage = plan.layouts[part].part_of;
    if (box.storage == graph::kNone) return wrong("nothing leads there");
    const Shape& around = graph.type(box.storage).shape;
    if (around.size() == box.begin.size() && place_part(graph, part, box)) continue;
    // All of it in another order of dimensions.
    const auto steps = part == value ? steps_of_moves(graph, part, box.storage) : std::nullopt;
    if (!steps) return wrong("no chain of concatenations, slices and moves leads there");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const auto at = along(around, (*steps)[d]);
      if (!at) return wrong("a coordinate runs along several of the storage");
      coordinates[d] = *at;
    }
    box.begin.assign(around.size(), 0), box.extent = around;
  }
  const stitch::Layout& whole = plan.layouts[layout.storage];
  const std::vector<int64_t> steps = row_major_strides(graph.type(layout.storage).shape);
  int64_t offset = whole.offset;
  for (size_t d = 0; d < box.begin.size(); ++d) offset += box.begin[d] * whole.strides[d];
  for (size_t d = 0; d < shape.size(); ++d) {
    const Along& at = coordinates[d];
    const bool one = shape[d] == 1 && at.dim >= steps.size();
    box.steps.push_back(one ? 0 : at.times * steps[at.dim]);
    if (shape[d] > 1 && layout.strides[d] != at.times * whole.strides[at.dim])
      return wrong("its strides are not those of the storage");
  }
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
