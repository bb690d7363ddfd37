/// stitch/adapt.h — a reader and a group whose coordinates differ, but enumerate the same elements,
/// adapt to each other.
///
///   x [128,384] ── norm ── Reshape [128,12,32] ── mul        the reader's (i, j, k) is the group's
///   (i, 32 j + k) x [8,16,32] ── exp ─── Reshape [128,32] ──── sum         the group's (a, b, c)
///   is the reader's (r / 16, r % 16, c) x [64,1] ───── tanh ── broadcast ─────────── mul [64,256]
///   the group's points are rows, the reader's for each are columns
///
/// A reader without a reduction takes the coordinates of the group, and so its rows; a group
/// without reductions takes those of a reduction, and so its rows; or the group is made wider for a
/// reader that broadcasts its values: its points become rows, each value is computed once a row and
/// read by the columns. The value in between always stays where the group has it.
///
/// Paper    AStitch (ASPLOS'22) §4.3 step 3, proactive adaptation of groups without reductions.
/// Differs  a group with reductions is not made wider: its columns are those of its row. Only where
/// all that is read and stored stays
///          affine: a walk over computed addresses costs more than a wave.
/// Errors   none: nothing is returned, and the value goes through global memory.
#pragma once

#include "stitch/form_groups.h"

namespace obelisk::stitch {

/// The reader's coordinates, one for each dimension of its domain, over the group's: where `read`
/// is the member's element at the group's point. Nothing where the reader's points are not the
/// member's elements, each once.
std::optional<std::vector<ExprId>> reader_coordinates(Draft& draft, const Member& member,
                                                      const Shape& shape, const ops::Loop& form,
                                                      const ops::Exprs& scratch,
                                                      const std::vector<ExprId>& read);

/// The group walks the domain of `form`, which reads `member` at `read`; its members keep their
/// values at other coordinates. False, with the group as it was, where the reader's points are not
/// the group's or something would lie at computed places.
bool take_coordinates(Draft& draft, const Graph& graph, const Views& views, const Member& member,
                      const Shape& shape, const ops::Loop& form, const ops::Exprs& scratch,
                      const std::vector<ExprId>& read);

/// The group's points become rows, and what the domain of `form` has beside them columns, behind
/// the group's own coordinates; what the reader takes of it (`reads`: value, where in the reader's
/// domain) are values of a row. False, with the group as it was, where its points do not lie
/// outermost in what the reader gives, `out`, or, where the number of rows may decide that
/// (strategy), rows would be too few for the machine.
bool take_columns(Draft& draft, const Graph& graph, const Views& views,
                  const machine::Machine& device, const machine::Strategy& strategy, ValueId out,
                  const ops::Loop& form, const ops::Exprs& scratch,
                  const std::vector<std::pair<ValueId, std::vector<ExprId>>>& reads);

/// Whether element `at` of the value lies at a place that is affine in the body's coordinates.
bool lies_affine(const Body& body, const Views& views, ValueId value,
                 const std::vector<ExprId>& at);

}  // namespace obelisk::stitch
