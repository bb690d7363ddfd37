#include "stitch/adapt.h"

#include <algorithm>
#include <functional>

namespace obelisk::stitch {
namespace {

using ops::Exprs;
using ops::Scalar;

/// The number of the element at these coordinates, row by row.
ExprId number_of(Exprs& exprs, const Shape& shape, const std::vector<ExprId>& at) {
  const std::vector<int64_t> strides = row_major_strides(shape);
  ExprId sum = exprs.integer(0);
  for (size_t d = 0; d < at.size(); ++d) sum = exprs.add(sum, exprs.mul(at[d], strides[d]));
  return sum;
}

/// The steps of a number over a domain whose points have all numbers from 0 on, each once; by
/// dimension.
std::optional<std::vector<int64_t>> steps_of(const Exprs& exprs, ExprId number,
                                             const Shape& domain) {
  const auto affine = ops::affine(exprs, number, static_cast<int>(domain.size()));
  if (!affine || affine->offset != 0) return std::nullopt;
  std::vector<size_t> order;
  for (size_t d = 0; d < domain.size(); ++d)
    if (domain[d] > 1) order.push_back(d);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return affine->strides[a] < affine->strides[b]; });
  int64_t step = 1;
  for (size_t d : order) {
    if (affine->strides[d] != step) return std::nullopt;
    step *= domain[d];
  }
  return affine->strides;
}

/// The steps by which `read` numbers the elements of a value of this shape over the reader's
/// domain.
std::optional<std::vector<int64_t>> steps_of_read(const Shape& shape, const Shape& domain,
                                                  const Exprs& scratch,
                                                  const std::vector<ExprId>& read) {
  if (element_count(shape) != element_count(domain) || element_count(domain) == 0)
    return std::nullopt;
  Exprs mine = scratch;
  return steps_of(mine, number_of(mine, shape, read), domain);
}

}  // namespace

bool lies_affine(const Body& body, const Views& views, ValueId value,
                 const std::vector<ExprId>& at) {
  Exprs exprs = body.exprs;
  return ops::affine(exprs, views.offset(exprs, value, at), static_cast<int>(body.domain.size()))
      .has_value();
}

std::optional<std::vector<ExprId>> reader_coordinates(Draft& draft, const Member& member,
                                                      const Shape& shape, const ops::Loop& form,
                                                      const Exprs& scratch,
                                                      const std::vector<ExprId>& read) {
  const Body& body = draft.group.body;
  if (member.per_row || element_count(shape) != element_count(body.domain)) return std::nullopt;
  const auto steps = steps_of_read(shape, form.domain, scratch, read);
  if (!steps) return std::nullopt;
  Exprs& exprs = draft.group.body.exprs;
  const ExprId number = number_of(exprs, shape, member.at);
  std::vector<ExprId> coords;
  for (size_t d = 0; d < form.domain.size(); ++d)
    coords.push_back(form.domain[d] == 1
                         ? exprs.integer(0)
                         : exprs.mod(exprs.div(number, (*steps)[d]), form.domain[d]));
  return coords;
}

bool take_coordinates(Draft& draft, const Graph& graph, const Views& views, const Member& member,
                      const Shape& shape, const ops::Loop& form, const Exprs& scratch,
                      const std::vector<ExprId>& read) {
  const Body& old = draft.group.body;
  if (element_count(shape) != element_count(old.domain) ||
      !steps_of_read(shape, form.domain, scratch, read))
    return false;
  Body body = old;
  body.domain = form.domain;
  body.exprs = {};
  std::vector<ExprId> own;
  for (size_t d = 0; d < form.domain.size(); ++d)
    own.push_back(body.exprs.coord(static_cast<int>(d), form.domain[d]));
  // Where the member's coordinates are the group's, `read` says what these are over the reader's.
  std::vector<ExprId> coords(old.domain.size(), body.exprs.integer(0));
  const auto no_load = [](int, DType, std::vector<ExprId>, ExprId, ExprId) -> ExprId {
    return kNoExpr;
  };
  for (size_t d = 0; d < member.at.size(); ++d) {
    const ops::Expr& at = old.exprs[member.at[d]];
    if (at.scalar == Scalar::kCoord)
      coords[at.slot] = body.exprs.import(scratch, read[d], own, no_load);
    else if (shape[d] != 1)
      return false;
  }
  bool affine = true;
  const auto load = [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard,
                        ExprId otherwise) {
    affine = affine && lies_affine(body, views, body.operands[slot], at);
    return body.exprs.load(slot, dtype, std::move(at), guard, otherwise);
  };
  std::map<ValueId, Member> members;
  for (const auto& [value, was] : draft.members) {
    Member now{.per_row = was.per_row};
    now.value = body.exprs.import(old.exprs, was.value, coords, load);
    for (ExprId at : was.at) now.at.push_back(body.exprs.import(old.exprs, at, coords, load));
    affine = affine && (graph.type(value).count() <= 1 || lies_affine(body, views, value, now.at));
    members[value] = std::move(now);
  }
  if (!affine) return false;
  draft.group.body = std::move(body);
  draft.members = std::move(members);
  draft.is_column.assign(form.domain.size(), false);
  return true;
}

bool take_columns(Draft& draft, const Graph& graph, const Views& views,
                  const machine::Machine& device, const machine::Strategy& strategy, ValueId out,
                  const ops::Loop& form, const Exprs& scratch,
                  const std::vector<std::pair<ValueId, std::vector<ExprId>>>& reads) {
  Body& body = draft.group.body;
  const size_t rank = form.domain.size();
  std::vector<int> slot_of(rank, -1);  // by the reader's coordinate
  for (const auto& [value, at] : reads) {
    const auto member = draft.members.find(value);
    if (member == draft.members.end()) continue;
    for (size_t d = 0; d < at.size(); ++d) {
      const ops::Expr &mine = scratch[at[d]], &own = body.exprs[member->second.at[d]];
      if (mine.scalar == Scalar::kCoord && own.scalar == Scalar::kCoord)
        slot_of[mine.slot] = own.slot;
      else if (graph.type(value).shape[d] != 1)
        return false;
    }
  }
  int64_t rows = 1, columns = 1;
  bool behind = false;  // a column was met
  const Layout& layout = views.layout(out);
  int64_t least_row = INT64_MAX, most_column = 0;  // strides of what is stored
  for (size_t d = 0; d < rank; ++d) {
    if (form.domain[d] == 1) continue;
    const bool parallel = static_cast<int>(d) < form.parallel;
    const int64_t stride = parallel ? layout.strides[d] : 0;
    if (slot_of[d] >= 0) {
      if (behind || body.domain[slot_of[d]] != form.domain[d]) return false;
      rows *= form.domain[d], least_row = std::min(least_row, stride);
    } else {
      behind = true, columns *= form.domain[d], most_column = std::max(most_column, stride);
    }
  }
  if (rows != element_count(body.domain) || columns == 1 || columns > kernels::kMostColumnsOfRow ||
      most_column > least_row)
    return false;
  // What goes through memory instead is rounded to its type: of a core, and where programs are
  // batch-invariant, neither rows nor workers may decide that.
  const bool may_count = device.family != machine::Family::kCpu && !strategy.batch_invariant;
  if (may_count && rows < device.sms && rows * columns > machine::thresholds::kWidenedElements)
    return false;
  for (size_t d = 0; d < rank; ++d) {
    if (slot_of[d] >= 0 || form.domain[d] == 1) continue;
    body.exprs.coord(static_cast<int>(body.domain.size()), form.domain[d]);
    body.domain.push_back(form.domain[d]);
    draft.is_column.push_back(true);
  }
  for (auto& [value, member] : draft.members) member.per_row = true;
  for (const auto& [value, at] : reads) {
    const auto member = draft.members.find(value);
    if (member == draft.members.end() || body.exprs[member->second.value].slot >= kRowSlot)
      continue;
    const DType type = ops::compute_type(body.exprs[member->second.value].dtype);
    draft.reduce_steps.push_back({.kind = StepKind::kRow,
                                  .expr = member->second.value,
                                  .per_row = true,
                                  .slot = body.row_values++,
                                  .node = graph.value(value).producer});
    body.row_types.push_back(type);
    member->second.value = body.exprs.load(kRowSlot + body.row_values - 1, type, {});
  }
  draft.open = false;
  return true;
}

}  // namespace obelisk::stitch
