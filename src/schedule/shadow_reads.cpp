// What bodies read, point by point, against what the graph means.
#include <algorithm>

#include "schedule/dataflow_spans.h"
#include "schedule/shadow.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule::shadow {

Points Shadow::points_of(const Nest& nest, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
  Points points;
  points.dims.resize(nest.dims.size());
  const size_t rows = static_cast<size_t>(nest.rows);
  for (int64_t r = r0; r < r1; ++r)
    for (int64_t c = c0; c < c1; ++c) {
      int64_t row = r, column = c;
      const auto split = [&](size_t d, int64_t& place) {
        const int64_t extent = std::max<int64_t>(nest.dims[d].extent, 1);  // 0: sums over nothing
        points.dims[d].push_back(place % extent), place /= extent;
      };
      for (size_t d = rows; d-- > 0;) split(d, row);
      for (size_t d = nest.dims.size(); d-- > rows;) split(d, column);
    }
  return points;
}

std::vector<Numbers> Shadow::coords_of(const Body& body, const Nest& nest, const Points& points) {
  std::vector<Numbers> coords(body.domain.size(), Numbers(points.count(), 0));
  for (size_t d = 0; d < nest.dims.size(); ++d) {
    Numbers rest = points.dims[d];
    for (size_t k = nest.dims[d].coords.size(); k-- > 0;) {
      const auto slot = static_cast<size_t>(nest.dims[d].coords[k]);
      const int64_t extent = std::max<int64_t>(body.domain[slot], 1);  // as in points_of
      for (size_t p = 0; p < rest.size(); ++p) {
        coords[slot][p] = k == 0 ? rest[p] : rest[p] % extent;
        rest[p] /= extent;
      }
    }
  }
  return coords;
}

Numbers Shadow::offsets_of(const Access& access, const Points& points) {
  Numbers out(points.count(), access.offset);
  for (size_t d = 0; d < access.strides.size(); ++d)
    if (access.strides[d])
      for (size_t p = 0; p < out.size(); ++p) out[p] += access.strides[d] * points.dims[d][p];
  return out;
}

PointValues Shadow::values_of(const Group& group) const {
  return PointValues(group.body.exprs, [this, &group](int slot) -> const Tensor* {
    if (slot >= stitch::kRowSlot) return nullptr;
    const graph::Value& value = graph_.value(group.body.operands[static_cast<size_t>(slot)]);
    return value.is_constant() ? &value.constant : nullptr;
  });
}

Status Shadow::tags_at(size_t work, ValueId value, const std::vector<const Numbers*>& at,
                       const Numbers* guard, Numbers& elements) {
  TRY(const Tagging* tags, tagging(value));
  const Shape& shape = graph_.type(value).shape;
  for (size_t p = 0; p < elements.size(); ++p) {
    if (guard && (*guard)[p] == 0) continue;
    int64_t element = tags->base;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t coordinate = (*at[d])[p];
      if (coordinate < 0 || coordinate >= shape[d])
        return wrong(work,
                     fmt::format("names coordinate {} of dimension {} of %{}, whose extent is {}",
                                 coordinate, d, value, shape[d]));
      element += coordinate * tags->strides[d];
    }
    elements[p] = element;
  }
  return ok_status();
}

Status Shadow::read(const ObkTask& task, int sm) {
  const Work& work = tasks_.works[task.work];
  const Group& group = plan_.groups[work.group];
  if (tasks_.dataflow) TRY_STATUS(gather(task, sm));
  if (stitch::calls_op(group.kind)) {
    if (!tasks_.dataflow) return ok_status();  // whole values, once a work
    for (const WorkAccess& access : accesses_of(graph_, plan_, work).reads)
      if (tasks_.buffers[work.buffers[access.slot]].reach != Reach::kAll)
        TRY_STATUS(look_at_whole(task.work, work.buffers[access.slot], sm, access.value));
    return ok_status();
  }
  const int64_t all = work.nest.row_count() * std::max<int64_t>(work.nest.column_count(), 1);
  const int64_t row_step =
      all > options_.most_points ? (all + options_.most_points - 1) / options_.most_points : 1;
  PointValues values = values_of(group);
  // By whether a load moves with the columns: one point a row is enough for the others.
  for (const bool rows_only : {true, false}) {
    std::vector<const Access*> loads;
    for (const Access& access : work.nest.accesses)
      if (access.load != kNoExpr && moves_with_columns(work, group.body, access.load) != rows_only)
        loads.push_back(&access);
    // A sum over nothing reads none of what it would sum.
    if (loads.empty() || (!rows_only && work.nest.column_count() == 0)) continue;
    TRY_STATUS(batches(work, group.body, task, rows_only, row_step,
                       [&](const Points& points, std::vector<Numbers> coords) -> Status {
                         values.begin(std::move(coords));
                         for (const Access* access : loads)
                           TRY_STATUS(read_load(task.work, sm, *access, points, values));
                         return ok_status();
                       }));
  }
  return check_tile_rows(task);
}

bool Shadow::moves_with_columns(const Work& work, const Body& body, ops::ExprId id) {
  std::vector<bool> column(body.domain.size(), false);
  for (size_t d = static_cast<size_t>(work.nest.rows); d < work.nest.dims.size(); ++d)
    for (const int slot : work.nest.dims[d].coords) column[static_cast<size_t>(slot)] = true;
  std::map<ops::ExprId, bool> seen;
  const std::function<bool(ops::ExprId)> walk = [&](ops::ExprId at) {
    if (const auto it = seen.find(at); it != seen.end()) return it->second;
    const Expr& expr = body.exprs[at];
    bool moves = expr.scalar == Scalar::kCoord && column[static_cast<size_t>(expr.slot)];
    for (const ops::ExprId arg : expr.args)
      if (arg != kNoExpr) moves = walk(arg) || moves;
    for (const ops::ExprId coord : expr.coords) moves = walk(coord) || moves;
    return seen[at] = moves;
  };
  return walk(id);
}

Status Shadow::read_load(size_t w, int sm, const Access& access, const Points& points,
                         PointValues& values) {
  const Work& work = tasks_.works[w];
  const Body& body = plan_.groups[work.group].body;
  const Expr& load = body.exprs[access.load];
  const ValueId value = body.operands[static_cast<size_t>(access.operand)];
  const int b = work.buffers[static_cast<size_t>(access.operand)];
  const bool guarded = load.args[0] != kNoExpr;
  bool known = !guarded || values.known(load.args[0]);
  for (const ops::ExprId at : load.coords) known = known && values.known(at);
  if (!known) {  // any element, then
    if (!whole_.insert({static_cast<int>(w), sm, value}).second) return ok_status();
    return look_at_whole(w, b, sm, value);
  }
  const Numbers* guard = guarded ? &values[load.args[0]] : nullptr;
  std::vector<const Numbers*> at;
  for (const ops::ExprId coord : load.coords) at.push_back(&values[coord]);
  Numbers elements(points.count(), 0);
  TRY_STATUS(tags_at(w, value, at, guard, elements));
  TRY(const Tagging* tags, tagging(value));
  const Numbers offsets =
      access.affine ? offsets_of(access, points) : laid_out(value, at, points.count());
  for (size_t p = 0; p < offsets.size(); ++p)
    if (!guard || (*guard)[p] != 0)
      TRY_STATUS(look(w, b, sm, offsets[p], tag_of(tags->storage, elements[p])));
  return ok_status();
}

Numbers Shadow::laid_out(ValueId value, const std::vector<const Numbers*>& at,
                         size_t points) const {
  const stitch::Layout& layout = plan_.layouts[value];
  Numbers out(points, layout.offset);
  for (size_t d = 0; d < at.size(); ++d)
    for (size_t p = 0; p < points; ++p) out[p] += layout.strides[d] * (*at[d])[p];
  return out;
}

Status Shadow::gather(const ObkTask& task, int sm) {
  const Work& work = tasks_.works[task.work];
  const Group& group = plan_.groups[work.group];
  for (size_t slot = 0; slot < work.buffers.size(); ++slot) {
    const int b = work.buffers[slot];
    const Buffer& buffer = tasks_.buffers[static_cast<size_t>(b)];
    if (buffer.reach != Reach::kBroadcast || read_by(plan_, tasks_, task, slot).empty()) continue;
    if (!gathered_[static_cast<size_t>(sm)].insert(b).second) continue;
    Area& copies = copies_[static_cast<size_t>(sm)];
    for (int64_t at = 0; at < buffer.size.count; at += arena_.unit) {
      const size_t from = unit_at(buffer, at),
                   to = static_cast<size_t>((buffer.copy_at.count + at) / copies.unit);
      if (arena_.stored_in[from] >= wave_)
        return wrong(task.work, fmt::format("gathers {} in the wave that gives it",
                                            text_of(arena_.tags[from])));
      copies.tags[to] = arena_.tags[from];
    }
  }
  (void)group;
  return ok_status();
}

}  // namespace obelisk::schedule::shadow
