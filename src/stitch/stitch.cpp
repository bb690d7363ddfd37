#include "stitch/stitch.h"

#include <algorithm>

#include "stitch/attention_tile.h"
#include "stitch/conv_tile.h"
#include "stitch/form_groups.h"
#include "stitch/write_bodies.h"

namespace obelisk::stitch {

std::string_view to_string(Scheme scheme) {
  switch (scheme) {
    case Scheme::kLocal:
      return "local";
    case Scheme::kRegional:
      return "regional";
    case Scheme::kGlobal:
      return "global";
  }
  return "";
}

std::string_view to_string(GroupKind kind) {
  switch (kind) {
    case GroupKind::kStitched:
      return "stitched";
    case GroupKind::kProduct:
      return "product";
    case GroupKind::kConv:
      return "conv";
    case GroupKind::kAttention:
      return "attention";
    case GroupKind::kBlock:
      return "block";
    case GroupKind::kCustom:
      return "custom";
  }
  return "";
}

namespace {

/// Tiles of products, convolutions and attention of f32 round what they multiply. A sum of products
/// that is expressed as a reduction stays exact, and so do depthwise convolutions, which no matrix
/// unit multiplies.
void round_operands(const Graph& graph, Group& group) {
  if (group.anchor == graph::kNone ||
      ops::row(graph.node(group.anchor).op).kind != ops::Kind::kCompute)
    return;
  const auto is_f32 = [](DType type) { return type == DType::f32; };
  Product& product = group.product;
  product.tf32 =
      group.kind == GroupKind::kProduct && is_f32(product.a_type) && is_f32(product.b_type);
  group.conv.tf32 =
      group.kind == GroupKind::kConv && is_f32(group.conv.type) && !group.conv.depthwise;
  group.attention.tf32 = group.kind == GroupKind::kAttention && is_f32(group.attention.type);
}

/// What a node's inputs have more of than is read of them: a widening cast is a view.
int64_t bytes_of_casts(const Graph& graph, const Views& views, NodeId n) {
  int64_t more = 0;
  for (ValueId v : graph.node(n).inputs) {
    const NodeId by = v == graph::kNone ? graph::kNone : graph.value(v).producer;
    if (by == graph::kNone || graph.node(by).op != ops::Op::Cast || !views.is_view(by) ||
        views.needs_storage(v))
      continue;
    more += graph.type(v).bytes() - graph.type(graph.node(by).inputs[0]).bytes();
  }
  return more;
}

bool stores_something(const Group& group) {
  return calls_op(group.kind) ||
         std::any_of(group.body.steps.begin(), group.body.steps.end(),
                     [](const Step& step) { return step.kind == StepKind::kStore; });
}

}  // namespace

Plan plan(const Graph& graph, const machine::Machine& device, const machine::Strategy& strategy,
          const Options& options) {
  const kernels::TileLibrary* tiles = options.tiles ? &kernels::tile_library(device) : nullptr;
  Demoted demoted;
  Grouping grouping;
  std::optional<Views> formed;
  for (bool fits = false; !fits;) {  // rows that have no place in scratchpad memory go to global
                                     // memory, one of each group a round
    formed.emplace(graph, options, tiles);
    grouping = form_groups(graph, *formed, device, strategy, options, tiles, demoted);
    fits = true;
    for (int draft : grouping.order) {
      const NodeId n = write_body(graph, *formed, grouping, device, grouping.drafts[draft]);
      if (n != graph::kNone &&
          (demoted.from_reductions.insert(n).second || demoted.fully.insert(n).second))
        fits = false;
    }
  }
  Views& views = *formed;
  Plan plan;
  plan.edges = std::move(grouping.edges);
  std::vector<int> place(grouping.drafts.size(), -1);
  for (int draft_id : grouping.order) {
    Draft& draft = grouping.drafts[draft_id];
    if (!stores_something(draft.group))
      continue;  // readers of its values read none of their elements
    place[draft_id] = static_cast<int>(plan.groups.size());
    for (int before : draft.after)
      if (place[before] >= 0) draft.group.after.push_back(place[before]);
    std::sort(draft.group.after.begin(), draft.group.after.end());
    for (NodeId n : draft.group.nodes) {
      ops::Cost cost = ops::cost(graph.call(n));
      if (draft.group.kind == GroupKind::kProduct)
        cost.read.count -= bytes_of_casts(graph, views, n);
      draft.group.cost.read = draft.group.cost.read + cost.read;
      draft.group.cost.written = draft.group.cost.written + cost.written;
      draft.group.cost.flops = draft.group.cost.flops + cost.flops;
    }
    if (draft.group.in_place_of != graph::kNone) {  // what no update hits is left alone
      ops::Cost& cost = draft.group.cost;
      const Type& updates = graph.type(graph.node(draft.group.anchor).inputs[2]);
      cost.read.count -= graph.type(draft.group.in_place_of).bytes();
      cost.written.count = updates.bytes();
      cost.flops.count = std::min(cost.flops.count, static_cast<double>(updates.count()));
    }
    plan.groups.push_back(std::move(draft.group));
  }
  for (InPlace& each : grouping.in_place) {
    if (each.group >= 0) each.group = place[each.group];
    plan.in_place.push_back(std::move(each));
  }
  if (strategy.tf32)
    for (Group& group : plan.groups) round_operands(graph, group);
  plan.layouts = views.take_layouts();
  for (const Group& group : plan.groups)
    for (const Step& step : group.body.steps)
      if (step.kind == StepKind::kStore)
        plan.layouts[group.body.operands[step.slot]].materialized = true;
  for (const Group& group : plan.groups)
    if (calls_op(group.kind))
      for (ValueId v : graph.node(group.anchor).outputs)
        if (v != graph::kNone) plan.layouts[v].materialized = true;
  return plan;
}

ops::Gangs gangs_of(const machine::Machine& device, const Options& options) {
  if (device.family == machine::Family::kCpu) return {.most = 1, .costs = device.costs.recurrence};
  if (!options.gangs) return {};
  ops::Gangs gangs{.most = device.gang,
                   .registers = device.gang_registers,
                   .own_kernels = options.own_kernels,
                   .scratchpad = device.scratchpad.count,
                   .costs = device.costs.recurrence,
                   .excite = device.costs.excite};
  while (gangs.most > device.sms) gangs.most /= 2;
  return gangs;
}

/// Whether gangs that compute so many images in turn are predicted to take no longer than four
/// kernels, which read the map twice and write it once.
static bool is_quicker_at_once(const ops::Block& block, const Type& map,
                               const machine::Machine& device) {
  const int64_t at_once = std::max<int64_t>(device.sms / block.gang, 1);
  const int64_t turns = (block.items / block.gang + at_once - 1) / at_once;
  const double moved = 3 * static_cast<double>(byte_size(map.dtype, map.count())) /
                       (device.bytes_per_sm * device.sms);
  return static_cast<double>(turns) * block.nanos <= 4 * device.costs.excite.apart + moved;
}

bool takes_whole(const Graph& graph, NodeId node, const machine::Machine& device,
                 const Options& options, std::string* why) {
  std::string reason;
  if (graph.node(node).op == ops::Op::Recurrence) {
    if (ops::block(graph.call(node), 1, gangs_of(device, options))) return true;
    reason = options.gangs ? "no block for its cells, types or sizes" : "gangs are off";
  } else if (graph.node(node).op == ops::Op::SqueezeExcite) {
    const auto block = ops::block(graph.call(node), 1, gangs_of(device, options));
    const auto* const tiles = options.tiles ? &kernels::tile_library(device) : nullptr;
    const bool quicker =
        block && is_quicker_at_once(*block, graph.type(graph.node(node).inputs[0]), device);
    if (quicker && Views(graph, options, tiles).suits_block(node)) return true;
    reason = !options.own_kernels ? "gangs have no kernels of their own"
             : !block             ? "no block for its type or sizes"
             : !quicker           ? "its ops one by one are predicted to be quicker"
                        : "its map is not stored with the channels last, or weights are computed";
  } else if (has_attention_tile(graph, node,
                                options.tiles ? &kernels::tile_library(device) : nullptr, reason)) {
    return true;
  }
  if (why) *why = std::move(reason);
  return false;
}

std::optional<ConvTile> conv_tile(const Graph& graph, NodeId node, const machine::Machine& machine,
                                  const machine::Strategy& strategy) {
  std::string why;
  std::optional<ConvTile> tile = match_conv(graph, node, &kernels::tile_library(machine), why);
  if (tile) tile->tf32 = strategy.tf32 && tile->type == DType::f32 && !tile->depthwise;
  return tile;
}

std::vector<bool> stored_channels_last(const Graph& graph, const machine::Machine& machine,
                                       const Options& options) {
  const Views views(graph, options, options.tiles ? &kernels::tile_library(machine) : nullptr);
  std::vector<bool> last(graph.value_count(), false);
  for (ValueId v = 0; v < graph.value_count(); ++v) {
    const Shape& shape = graph.type(v).shape;
    last[v] = shape.size() > 2 && shape[1] > 1 && views.layout(v).strides[1] == 1 &&
              graph.type(v).count() > shape[0] * shape[1];
  }
  return last;
}

std::map<NodeId, std::vector<bool>> placeable_pieces(const Graph& graph,
                                                     const machine::Machine& machine,
                                                     const Options& options) {
  return Views(graph, options, options.tiles ? &kernels::tile_library(machine) : nullptr)
      .copied_concatenations();
}

Status verify(const Graph& graph, const Plan& plan) {
  auto bug = [](std::string text) { return Error{Code::kBuild, "stitch", std::move(text)}; };
  std::vector<int> stored_by(graph.value_count(), -1);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    for (int before : group.after)
      if (before >= static_cast<int>(g))
        return bug(fmt::format("group {} runs after group {}", g, before));
    std::vector<ValueId> writes;
    if (calls_op(group.kind)) {
      const graph::Node& node = graph.node(group.anchor);
      writes = node.outputs;
      std::vector<ValueId> operands = writes;  // each from its storage's beginning
      if (group.block_inputs.empty())
        operands.insert(operands.end(), node.inputs.begin(), node.inputs.end());
      for (const BlockInput& from : group.block_inputs) operands.push_back(from.value);
      for (ValueId v : operands)
        if (v != graph::kNone && plan.layouts[v].storage != v)
          return bug(fmt::format("value {}, an operand of a call of {}, lies inside value {}", v,
                                 ops::to_string(node.op), plan.layouts[v].storage));
    } else {
      for (const Step& step : group.body.steps)
        if (step.kind == StepKind::kStore) writes.push_back(group.body.operands[step.slot]);
    }
    for (ValueId v : writes) {
      if (v == graph::kNone) continue;
      if (stored_by[v] >= 0)
        return bug(fmt::format("value {} is stored by groups {} and {}", v, stored_by[v], g));
      stored_by[v] = static_cast<int>(g);
    }
  }
  for (ValueId v : graph.outputs()) {
    const graph::Value& value = graph.value(v);
    if (value.is_constant() || value.producer == graph::kNone) continue;
    if (stored_by[v] < 0 && graph.node(value.producer).op != ops::Op::Concat)
      return bug(fmt::format("output '{}' is stored by no group", value.name));
  }
  return ok_status();
}

}  // namespace obelisk::stitch
