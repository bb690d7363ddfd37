#include "stitch/form_groups.h"

#include <algorithm>

#include "stitch/former.h"

namespace obelisk::stitch {

Former::Former(const Graph& graph, Views& views, const machine::Machine& device,
               const machine::Strategy& strategy, const Options& options,
               const kernels::TileLibrary* tiles, const Demoted& demoted)
    : graph_(graph),
      views_(views),
      device_(device),
      strategy_(strategy),
      options_(options),
      tiles_(tiles),
      demoted_(demoted) {
  out_.group_of.assign(graph.value_count(), -1);
}

Grouping Former::run() {
  for (NodeId n : graph_.order()) {
    if (views_.is_free(n)) continue;
    place(n);
  }
  write_in_place();
  sort();
  return std::move(out_);
}

void Former::place(NodeId n) {
  const graph::Node& node = graph_.node(n);
  bool loops = true;
  for (size_t output = 0; output < node.outputs.size(); ++output)
    loops =
        loops && (node.outputs[output] == graph::kNone || views_.loop(n, static_cast<int>(output)));
  if (place_tile(n, loops)) return;
  if (!loops && node.op == ops::Op::NormStatistics) return place_statistics(n);
  if (!loops) return place_call(n);
  for (size_t output = 0; output < node.outputs.size(); ++output) {
    const ValueId out = node.outputs[output];
    if (out == graph::kNone) continue;
    const bool lies_elsewhere = !views_.needs_storage(out) || views_.has_pieces(out);
    if (ops::row(node.op).kind == Kind::kMove && lies_elsewhere && views_.is_view(n)) continue;
    place_loop(n, static_cast<int>(output));
  }
}

void Former::read_from(Draft& draft, ValueId value) {
  if (views_.has_pieces(value)) {
    for (ValueId piece : views_.pieces(value)) note_after(draft, piece);
  } else {
    note_after(draft, value);
  }
}

void Former::note_after(Draft& draft, ValueId value) {
  out_.read_outside.insert(value);
  if (graph_.value(value).producer == graph::kNone && !graph_.value(value).is_constant())
    draft.inputs.insert(value);
  const int group = out_.group_of[value];
  if (group >= 0) draft.after.insert(group);
}

std::vector<int> Former::groups_behind(ValueId value) const {
  std::vector<int> groups;
  if (views_.has_pieces(value)) {
    for (ValueId piece : views_.pieces(value))
      if (out_.group_of[piece] >= 0) groups.push_back(out_.group_of[piece]);
  } else if (out_.group_of[value] >= 0) {
    groups.push_back(out_.group_of[value]);
  }
  return groups;
}

/// Whether the group computes something that is stored inside `value`: its own tasks may read
/// that no sooner than other tasks may.
bool Former::writes_piece_of(int group, ValueId value) const {
  if (!views_.has_pieces(value)) return false;
  const std::vector<ValueId>& pieces = views_.pieces(value);
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](ValueId piece) { return out_.group_of[piece] == group; });
}

int Former::operand(Draft& draft, ValueId value) {
  auto [it, fresh] =
      draft.operand.try_emplace(value, static_cast<int>(draft.group.body.operands.size()));
  if (fresh) draft.group.body.operands.push_back(value);
  return it->second;
}

/// Does draft `from` (transitively) run after draft `target`?
bool Former::reaches(int from, int target) const {
  if (from == target) return true;
  std::vector<int> stack{from};
  std::set<int> seen;
  while (!stack.empty()) {
    const int g = stack.back();
    stack.pop_back();
    for (int next : out_.drafts[g].after) {
      if (next == target) return true;
      if (seen.insert(next).second) stack.push_back(next);
    }
  }
  return false;
}

/// As many pieces as may run at once: a block that cuts a line reads all of its updates in each.
int64_t Former::pieces_of_call() const {
  return device_.sms * (device_.family == machine::Family::kCpu ? 1 : int64_t{256});
}

/// An op without a loop form: a hand-written block, or, where none is, the reference.
void Former::place_call(NodeId n) {
  Draft draft;
  draft.group.kind = GroupKind::kCustom;
  draft.group.anchor = n;
  if (auto block = ops::block(graph_.call(n), pieces_of_call(), gangs_of(device_, options_))) {
    CHECK(graph_.node(n).op != ops::Op::SqueezeExcite || views_.suits_block(n),
          "a squeeze-and-excitation block reads or writes what is not stored for it");
    draft.group.kind = GroupKind::kBlock;
    draft.group.body.domain = {block->items};
    draft.group.body.rows = 1;
    draft.group.block = std::move(*block);
  }
  draft.group.nodes = {n};
  for (ValueId v : graph_.node(n).inputs) {
    const BlockInput from = views_.contiguous_part(n, v).value_or(BlockInput{v, 0});
    if (draft.group.kind == GroupKind::kBlock) draft.group.block_inputs.push_back(from);
    if (v == graph::kNone) continue;
    operand(draft, from.value);
    read_from(draft, from.value);
    explain(v, n, Scheme::kGlobal, "the reader has no loop form");
  }
  for (ValueId v : graph_.node(n).outputs)
    if (v != graph::kNone) operand(draft, v);
  add(std::move(draft), n);
}

void Former::add(Draft draft, NodeId n) {
  const int id = static_cast<int>(out_.drafts.size());
  for (const auto& [v, member] : draft.members) out_.group_of[v] = id;
  if (calls_op(draft.group.kind))
    for (ValueId v : graph_.node(n).outputs)
      if (v != graph::kNone) out_.group_of[v] = id;
  out_.drafts.push_back(std::move(draft));
}

void Former::explain(ValueId value, NodeId to, Scheme scheme, std::string why) {
  const NodeId from = graph_.value(value).producer;
  if (from != graph::kNone) keep({from, to, scheme, std::move(why)});
}

/// One word an edge: what was decided last, and of one scheme the first reason.
void Former::keep(Edge edge) {
  const auto known = std::find_if(out_.edges.rbegin(), out_.edges.rend(), [&](const Edge& old) {
    return old.from == edge.from && old.to == edge.to;
  });
  if (known == out_.edges.rend())
    out_.edges.push_back(std::move(edge));
  else if (known->scheme != edge.scheme)
    *known = std::move(edge);
}

/// Topological order of drafts, by the earliest first node among those that may run.
void Former::sort() {
  const int count = static_cast<int>(out_.drafts.size());
  std::vector<int> waiting(count, 0);
  std::vector<std::vector<int>> readers(count);
  std::set<int> ready;
  for (int g = 0; g < count; ++g) {
    CHECK(!out_.drafts[g].after.count(g), "a group reads what it stores itself");
    waiting[g] = static_cast<int>(out_.drafts[g].after.size());
    for (int before : out_.drafts[g].after) readers[before].push_back(g);
    if (!waiting[g]) ready.insert(g);
  }
  while (!ready.empty()) {
    const int g = *ready.begin();
    ready.erase(ready.begin());
    out_.order.push_back(g);
    for (int reader : readers[g])
      if (--waiting[reader] == 0) ready.insert(reader);
  }
  CHECK(static_cast<int>(out_.order.size()) == count, "groups form a cycle");
}

bool walks_in_order(const Body& body, const std::vector<ExprId>& at, const Shape& shape) {
  const auto longer =
      [&](size_t slot) {  // the next dimension of the domain that has more than one element
        while (slot < body.domain.size() && body.domain[slot] == 1) ++slot;
        return slot;
      };
  size_t slot = longer(0);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const ops::Expr& coordinate = body.exprs[at[d]];
    if (slot == body.domain.size() || body.domain[slot] != shape[d]) return false;
    if (coordinate.scalar != ops::Scalar::kCoord || coordinate.slot != static_cast<int>(slot))
      return false;
    slot = longer(slot + 1);
  }
  return slot == body.domain.size();
}

Grouping form_groups(const Graph& graph, Views& views, const machine::Machine& device,
                     const machine::Strategy& strategy, const Options& options,
                     const kernels::TileLibrary* tiles, const Demoted& demoted) {
  return Former(graph, views, device, strategy, options, tiles, demoted).run();
}

}  // namespace obelisk::stitch
