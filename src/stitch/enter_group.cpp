// Computes a node in a group: which of its reads are local, regional, global.
#include <algorithm>

#include "stitch/adapt.h"
#include "stitch/former.h"

namespace obelisk::stitch {

/// Computes the node in a group at the given coordinates of its loop. False, with nothing changed
/// that matters, when a member is read across rows. `adapted`: these are not the loop's own
/// coordinates; then nothing may come to lie at computed places.
bool Former::enter(NodeId n, int output, const Loop& form, const std::vector<ExprId>& coords,
                   int target, bool per_row, std::string& why, bool adapted) {
  Draft& draft = out_.drafts[target];
  Body& body = draft.group.body;
  Exprs& exprs = body.exprs;
  const bool reduces = form.combine != Combine::kNone;
  bool ok = true;
  std::vector<ValueId> outside;
  std::vector<Edge> edges;
  auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                  ExprId otherwise) -> ExprId {
    auto it = draft.members.find(value);
    if (it == draft.members.end()) {
      if (adapted && !lies_affine(body, views_, value, at))
        ok = false, why = "by the group's coordinates another operand would lie at computed places";
      outside.push_back(value);
      return exprs.load(operand(draft, value), dtype, std::move(at), guard, otherwise);
    }
    const Member& member = it->second;
    if (at == member.at) {
      const bool row_to_columns = member.per_row && !per_row;
      edges.push_back({kind_of(value), n, row_to_columns ? Scheme::kRegional : Scheme::kLocal,
                       row_to_columns ? "one row's value, read by its columns"
                       : adapted      ? "element to element, by the group's coordinates"
                                      : "element to element"});
      return guard == kNoExpr ? member.value : exprs.select(guard, member.value, otherwise);
    }
    const bool in_row =
        !draft.anchored && !draft.open && !member.per_row && same_rows(draft, member, at);
    ok = false;
    why = in_row ? "reads another column of the same row"
                 : "reads elements that other rows' workers compute";
    return member.value;
  };
  auto load = [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
    return views_.read(exprs, graph_.node(n).inputs[slot], dtype, std::move(at), guard, otherwise,
                       leaf);
  };
  const ExprId value = exprs.import(form.exprs, form.body, coords, load);
  if (!ok) return false;

  const ValueId out = graph_.node(n).outputs[output];
  Member member;
  member.per_row = per_row || reduces;
  for (int d = 0; d < form.parallel; ++d) member.at.push_back(coords[d]);
  if (adapted && !lies_affine(body, views_, out, member.at)) {
    why = "by the group's coordinates it would be stored at computed places";
    return false;
  }
  if (reduces) {
    Step step{.kind = StepKind::kReduce,
              .expr = value,
              .combine = form.combine,
              .slot = body.row_values++,
              .node = n};
    const DType type = ops::compute_type(exprs[value].dtype);
    const ExprId acc = exprs.acc(type);
    step.finish =
        form.finish == kNoExpr ? acc : exprs.import(form.exprs, form.finish, coords, load, acc);
    const DType result = ops::compute_type(exprs[step.finish].dtype);
    body.row_types.push_back(result);
    member.value = exprs.load(kRowSlot + step.slot, result, {});
    draft.reduce_steps.push_back(step);
    if (draft.open) {
      draft.open = false;
      if (draft.group.nodes.empty()) {
        for (size_t d = form.parallel; d < form.domain.size(); ++d) draft.is_column[d] = true;
      }
    }
    if (draft.group.dominant == graph::kNone || !is_reduction(draft.group.dominant))
      draft.group.dominant = n;
  } else {
    member.value = value;
    if (draft.group.dominant == graph::kNone) draft.group.dominant = n;
  }
  const bool of_demoted =
      std::any_of(graph_.node(n).inputs.begin(), graph_.node(n).inputs.end(),
                  [&](ValueId v) { return draft.members.count(v) && made_of_demoted_.count(v); });
  if (demoted_.from_reductions.count(n) || (of_demoted && !member.per_row))
    made_of_demoted_.insert(out);
  draft.members[out] = std::move(member);
  if (draft.group.nodes.empty() || draft.group.nodes.back() != n) draft.group.nodes.push_back(n);
  for (ValueId v : outside) {
    read_from(draft, v);
    explain(v, n, Scheme::kGlobal, "computed by another group");
  }
  for (Edge& edge : edges)
    if (edge.from != graph::kNone) keep(std::move(edge));
  out_.group_of[out] = target;
  return true;
}

bool Former::is_column_coord(const Draft& draft, ExprId id) const {
  const ops::Expr& expr = draft.group.body.exprs[id];
  return expr.scalar == Scalar::kCoord && draft.is_column[expr.slot];
}

bool Former::same_rows(const Draft& draft, const Member& member,
                       const std::vector<ExprId>& at) const {
  for (size_t d = 0; d < at.size(); ++d)
    if (!is_column_coord(draft, member.at[d]) && at[d] != member.at[d]) return false;
  return true;
}

}  // namespace obelisk::stitch
