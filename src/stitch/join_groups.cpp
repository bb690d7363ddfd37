// Which of its producers' groups a node joins, and why not the others.
#include <algorithm>

#include "stitch/adapt.h"
#include "stitch/former.h"

namespace obelisk::stitch {

/// The producer that runs latest comes first: a node that joined another would make that one wait
/// too, and a shortcut's convolution would run after the branch that it runs beside.
void Former::deepest_first(std::vector<int>& candidates) const {
  if (candidates.size() < 2) return;
  std::map<int, int> depth;  // of drafts: the longest chain before each
  for (int candidate : candidates) {
    std::vector<int> stack{candidate};
    while (!stack.empty()) {
      const int g = stack.back();
      int longest = 0;
      bool ready = true;
      for (int before : out_.drafts[g].after) {
        if (before == g) continue;
        auto known = depth.find(before);
        if (known != depth.end())
          longest = std::max(longest, known->second + 1);
        else
          stack.push_back(before), ready = false;
      }
      if (ready) depth[g] = longest, stack.pop_back();
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](int a, int b) { return depth[a] > depth[b]; });
}

void Former::place_loop(NodeId n, int output) {
  const ValueId out = graph_.node(n).outputs[output];
  const Loop& form = *views_.loop(n, output);
  std::vector<int> candidates;  // groups of direct producers, latest first
  std::vector<Read> reads;
  Exprs scratch;
  collect(n, form, scratch, reads);
  for (const Read& read : reads)
    for (int group : groups_behind(read.value))
      if (std::find(candidates.begin(), candidates.end(), group) == candidates.end())
        candidates.push_back(group);
  std::sort(candidates.rbegin(), candidates.rend());
  deepest_first(candidates);
  if (options_.stitch && left_to_reduction(n, form, reads, candidates)) {
    views_.read_through(n);
    for (const Read& read : reads)
      explain(read.value, n, Scheme::kLocal,
              "light, and larger than what it is made of: the reduction that reads it computes it");
    return;
  }
  // As it is first, in every group; only then by other coordinates.
  const size_t known = out_.edges.size();
  for (const bool adapted : {false, true}) {
    if (!options_.stitch || (adapted && !options_.adapt)) break;
    out_.edges.resize(known);
    for (int candidate : candidates) {
      std::string why;
      if (join(n, output, form, scratch, reads, candidate, adapted, why)) return;
      for (const Read& read : reads)
        for (int group : groups_behind(read.value))
          if (group == candidate) explain(read.value, n, Scheme::kGlobal, why);
    }
  }
  if (options_.stitch && left_to_readers(n, form, reads)) {
    views_.read_through(n);
    for (const Read& read : reads)
      explain(read.value, n, Scheme::kLocal, "light, and read about once: its readers compute it");
    return;
  }
  Draft draft;
  draft.group.nodes = {};
  Body& body = draft.group.body;
  body.domain = form.domain;
  for (size_t d = 0; d < form.domain.size(); ++d)
    body.exprs.coord(static_cast<int>(d), form.domain[d]);
  draft.is_column.assign(form.domain.size(), false);
  out_.drafts.push_back(std::move(draft));
  std::vector<ExprId> coords;
  Draft& made = out_.drafts.back();
  for (size_t d = 0; d < form.domain.size(); ++d)
    coords.push_back(made.group.body.exprs.coord(static_cast<int>(d), form.domain[d]));
  std::string why;
  const bool ok =
      enter(n, output, form, coords, static_cast<int>(out_.drafts.size()) - 1, false, why);
  CHECK(ok, "'{}' cannot begin a group: {}", graph_.node(n).name, why);
  (void)out;
}

/// The reads of a loop, through views, with coordinates over the loop's domain.
void Former::collect(NodeId n, const Loop& form, Exprs& scratch, std::vector<Read>& reads) {
  std::vector<ExprId> coords;
  for (size_t d = 0; d < form.domain.size(); ++d)
    coords.push_back(scratch.coord(static_cast<int>(d), form.domain[d]));
  auto leaf = [&](ValueId value, DType dtype, std::vector<ExprId> at, ExprId guard,
                  ExprId otherwise) {
    reads.push_back({value, at});
    return scratch.load(static_cast<int>(reads.size()), dtype, std::move(at), guard, otherwise);
  };
  scratch.import(
      form.exprs, form.body, coords,
      [&](int slot, DType dtype, std::vector<ExprId> at, ExprId guard, ExprId otherwise) {
        return views_.read(scratch, graph_.node(n).inputs[slot], dtype, std::move(at), guard,
                           otherwise, leaf);
      });
}

bool Former::join(NodeId n, int output, const Loop& form, const Exprs& scratch,
                  const std::vector<Read>& reads, int target, bool adapted, std::string& why) {
  if (!may_join(form, reads, target, why)) return false;
  if (adapted && join_adapted(n, output, form, scratch, reads, target, why)) return true;
  return why.empty() && join_as_it_is(n, output, form, scratch, reads, target,
                                      why);  // where it failed before, for the reason
}

bool Former::may_join(const Loop& form, const std::vector<Read>& reads, int target,
                      std::string& why) const {
  const Draft& draft = out_.drafts[target];
  if (calls_op(draft.group.kind)) {
    why = "the producer has no loop form";
    return false;
  }
  if (draft.group.kind == GroupKind::kProduct && draft.group.product.split_k > 1 &&
      !splits_meet(device_, strategy_, rows_of(draft), draft.group.product.n[0].extent,
                   draft.group.product.split_k)) {
    why = "what follows a sum of parts is its reader's";
    return false;
  }
  const bool reduces = form.combine != Combine::kNone;
  for (const Read& read : reads) {
    if (writes_piece_of(target, read.value)) {
      why = "it reads a concatenation of which the group stores a piece";
      return false;
    }
    if (draft.members.count(read.value) == 0) continue;
    if ((reduces && made_of_demoted_.count(read.value)) ||
        demoted_.fully.count(graph_.value(read.value).producer)) {
      why = "its row has no place in scratchpad memory";
      return false;
    }
  }
  if (draft.anchored && reduces) {
    why = "a reduction over a tile's row needs the whole row";
    return false;
  }
  if (element_count(form.domain) == 0) {
    why = "empty";
    return false;
  }
  for (const Read& read : reads) {
    for (int group : groups_behind(read.value)) {
      if (group != target && reaches(group, target)) {
        why = "another input is computed after the group: a cycle";
        return false;
      }
    }
  }
  if (static_cast<int>(draft.group.body.operands.size()) + static_cast<int>(reads.size()) + 2 >
      options_.max_operands) {
    why = "the body has enough operands";
    return false;
  }
  return true;
}

/// The reader reads members through a reshape: it takes the group's coordinates, or, where it
/// reduces, a group without reductions takes its.
bool Former::join_adapted(NodeId n, int output, const Loop& form, const Exprs& scratch,
                          const std::vector<Read>& reads, int target, std::string& why) {
  Draft& draft = out_.drafts[target];
  if (draft.anchored) return false;
  for (const Read& read : reads) {
    const auto member = draft.members.find(read.value);
    if (member == draft.members.end()) continue;
    const Shape& shape = graph_.type(read.value).shape;
    if (form.combine == Combine::kNone) {
      if (const auto coords =
              reader_coordinates(draft, member->second, shape, form, scratch, read.at))
        return enter(n, output, form, *coords, target, false, why, true);
    } else if (draft.open) {
      const Draft before = draft;
      if (!take_coordinates(draft, graph_, views_, Member(member->second), shape, form, scratch,
                            read.at))
        continue;
      if (join_as_it_is(n, output, form, scratch, reads, target, why)) return true;
      draft = before;
      return false;
    }
  }
  return draft.open && join_wider(n, output, form, scratch, reads, target, why);
}

/// The reader spreads what a group without reductions gives: the group's points become its rows.
bool Former::join_wider(NodeId n, int output, const Loop& form, const Exprs& scratch,
                        const std::vector<Read>& reads, int target, std::string& why) {
  Draft& draft = out_.drafts[target];
  std::vector<std::pair<ValueId, std::vector<ExprId>>> taken;
  for (const Read& read : reads)
    if (draft.members.count(read.value)) taken.emplace_back(read.value, read.at);
  const Draft before = draft;
  if (!take_columns(draft, graph_, views_, device_, strategy_, graph_.node(n).outputs[output], form,
                    scratch, taken))
    return false;
  if (join_as_it_is(n, output, form, scratch, reads, target, why)) return true;
  draft = before;
  return false;
}

/// Which of the group's coordinates is each coordinate of the loop, -1 of one that has a single
/// element. Learnt from reads of members at plain coordinates.
static std::optional<std::vector<int>> slots_of_reader(const Draft& draft, const Loop& form,
                                                       const Exprs& scratch,
                                                       const std::vector<Read>& reads,
                                                       std::string& why) {
  const int rank = static_cast<int>(form.domain.size());
  const Exprs& exprs = draft.group.body.exprs;
  const Shape& domain = draft.group.body.domain;
  std::vector<int> slot(rank, -1);
  for (const Read& read : reads) {
    auto member = draft.members.find(read.value);
    if (member == draft.members.end()) continue;
    for (size_t d = 0; d < read.at.size(); ++d) {
      const ops::Expr& mine = scratch[read.at[d]];
      const ops::Expr& theirs = exprs[member->second.at[d]];
      if (mine.scalar == Scalar::kCoord && theirs.scalar == Scalar::kCoord && slot[mine.slot] < 0)
        slot[mine.slot] = theirs.slot;
    }
  }
  // Coordinates that no member tells (a row value spread over columns): the unused slots of equal
  // extent, in order.
  std::vector<bool> used(domain.size(), false);
  for (int s : slot)
    if (s >= 0) {
      if (used[s]) {
        why = "two coordinates of the reader are one of the group";
        return std::nullopt;
      }
      used[s] = true;
    }
  size_t next = 0;
  for (int d = 0; d < rank; ++d) {
    if (slot[d] >= 0 || form.domain[d] == 1) continue;
    while (next < domain.size() && (used[next] || domain[next] == 1)) ++next;
    if (next == domain.size() || domain[next] != form.domain[d]) {
      why = "the reader is larger than the group";
      return std::nullopt;
    }
    slot[d] = static_cast<int>(next);
    used[next] = true;
  }
  return slot;
}

bool Former::join_as_it_is(NodeId n, int output, const Loop& form, const Exprs& scratch,
                           const std::vector<Read>& reads, int target, std::string& why) {
  Draft& draft = out_.drafts[target];
  const bool reduces = form.combine != Combine::kNone;
  const auto slots = slots_of_reader(draft, form, scratch, reads, why);
  if (!slots) return false;
  const std::vector<int>& slot = *slots;
  const int rank = static_cast<int>(form.domain.size());
  Exprs& exprs = draft.group.body.exprs;
  const Shape& domain = draft.group.body.domain;
  std::vector<bool> used(domain.size(), false);
  for (int s : slot)
    if (s >= 0) used[s] = true;
  bool all = true, all_rows = true, any_column = false;
  for (size_t s = 0; s < domain.size(); ++s) {
    if (domain[s] == 1) continue;
    all = all && used[s];
    if (draft.is_column[s])
      any_column = any_column || used[s];
    else
      all_rows = all_rows && used[s];
  }
  for (int d = 0; d < rank; ++d) {
    if (slot[d] >= 0 && domain[slot[d]] != form.domain[d]) {
      why = "extents differ";
      return false;
    }
  }
  const bool per_row = !draft.open && !draft.anchored && !all && all_rows && !any_column;
  if (!all && !per_row) {
    why = "the reader does not cover the group's rows";
    return false;
  }
  std::vector<bool> columns = draft.is_column;
  if (reduces) {
    if (!all) {
      why = "a reduction of row values crosses rows";
      return false;
    }
    std::vector<bool> wanted(domain.size(), false);
    for (int d = form.parallel; d < rank; ++d)
      if (slot[d] >= 0) wanted[slot[d]] = true;
    for (size_t s = 0; s < domain.size(); ++s)
      if (domain[s] == 1) wanted[s] = columns[s];
    if (!draft.open && wanted != columns) {
      why = "reduces other dimensions than the group's columns";
      return false;
    }
    columns = wanted;
  }
  std::vector<ExprId> coords;
  for (int d = 0; d < rank; ++d)
    coords.push_back(slot[d] < 0 ? exprs.integer(0) : exprs.coord(slot[d], domain[slot[d]]));
  const std::vector<bool> before = draft.is_column;
  const bool was_open = draft.open;
  if (reduces) draft.is_column = columns;
  if (enter(n, output, form, coords, target, per_row, why)) return true;
  draft.is_column = before;
  draft.open = was_open;
  return false;
}

}  // namespace obelisk::stitch
