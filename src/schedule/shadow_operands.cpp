// What tiles and ops that are called read whole, against what the graph means.
#include <algorithm>

#include "schedule/dataflow_spans.h"
#include "schedule/shadow.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule::shadow {

Status Shadow::read_operands() {
  for (size_t w = 0; w < tasks_.works.size(); ++w) {
    const Work& work = tasks_.works[w];
    if (work.wave != wave_ || work.nest.row_count() == 0) continue;
    const Group& group = plan_.groups[work.group];
    if (stitch::calls_op(group.kind)) {
      for (const WorkAccess& access : accesses_of(graph_, plan_, work).reads)
        if (tasks_.buffers[work.buffers[access.slot]].reach == Reach::kAll)  // others: by task
          TRY_STATUS(look_at_whole(w, work.buffers[access.slot], -1, access.value));
      continue;
    }
    const auto slot = static_cast<size_t>(work.operand_count(group));
    if (group.kind == GroupKind::kProduct) {
      TRY_STATUS(read_product(w, slot));
    } else if (group.kind == GroupKind::kConv && !tasks_.dataflow) {
      TRY_STATUS(look_at_whole(w, work.buffers[slot], -1, group.conv.x));
    } else if (group.kind == GroupKind::kAttention) {
      TRY_STATUS(read_attention(w, slot));
    }
  }
  return ok_status();
}

Status Shadow::follow(size_t work, ValueId from, ValueId to, std::vector<Numbers>& at) {
  while (from != to) {
    const graph::Value& value = graph_.value(from);
    if (value.producer == graph::kNone || value.is_constant())
      return wrong(work, fmt::format("no moves lead from %{} to its operand %{}", from, to));
    const graph::Node& node = graph_.node(value.producer);
    const std::optional<ops::Loop> form =
        ops::loop(graph_.call(value.producer), value.producer_output);
    const Expr* body =
        form && form->combine == ops::Combine::kNone ? &form->exprs[form->body] : nullptr;
    if (body && body->scalar == Scalar::kCast) body = &form->exprs[body->args[0]];
    if (!body || body->scalar != Scalar::kLoad || body->args[0] != kNoExpr)
      return wrong(work, fmt::format("'{}' between %{} and its operand %{} is no move", node.name,
                                     from, to));
    PointValues values(form->exprs, [&](int slot) -> const Tensor* {
      const graph::Value& input = graph_.value(node.inputs[static_cast<size_t>(slot)]);
      return input.is_constant() ? &input.constant : nullptr;
    });
    values.begin(at);
    std::vector<Numbers> next;
    for (const ops::ExprId coord : body->coords) {
      if (!values.known(coord)) return wrong(work, fmt::format("'{}' moves by data", node.name));
      next.push_back(values[coord]);
    }
    from = node.inputs[static_cast<size_t>(body->slot)];
    at = std::move(next);
  }
  return ok_status();
}

Status Shadow::look_through(size_t work, int b, ValueId from, ValueId to, std::vector<Numbers> at,
                            const Numbers& offsets) {
  TRY_STATUS(follow(work, from, to, at));
  std::vector<const Numbers*> coords;
  for (const Numbers& one : at) coords.push_back(&one);
  Numbers elements(offsets.size(), 0);
  TRY_STATUS(tags_at(work, to, coords, nullptr, elements));
  TRY(const Tagging* tags, tagging(to));
  if (tasks_.dataflow && tasks_.buffers[static_cast<size_t>(b)].kind == BufferKind::kArena)
    return ok_status();  // copies are looked at below
  for (size_t p = 0; p < offsets.size(); ++p)
    TRY_STATUS(look(work, b, -1, offsets[p], tag_of(tags->storage, elements[p])));
  return ok_status();
}

Status Shadow::read_product(size_t w, size_t slot) {
  const Status second = read_product(w, slot, 1);
  return second.ok() ? second : read_product(w, slot, 0);
}

Status Shadow::read_product(size_t w, size_t slot, int first_argument) {
  const Work& work = tasks_.works[w];
  const Group& group = plan_.groups[work.group];
  const stitch::Product& product = group.product;
  const std::optional<ops::Loop> form = ops::loop(graph_.call(group.anchor), 0);
  if (!form) return wrong(w, "its GEMM's node has no loop form");
  const Expr body = form->exprs[form->body];
  // Coordinates of the reduced dimensions, from the linear index of k.
  const auto reduced_from = static_cast<size_t>(form->parallel);
  int64_t depth = 1;
  for (size_t d = reduced_from; d < form->domain.size(); ++d) depth *= form->domain[d];
  if (product.k.size() != 1 || depth != product.k[0].extent)
    return wrong(w, fmt::format("its GEMM sums {} numbers, the node {}",
                                product.k.empty() ? 0 : product.k[0].extent, depth));
  for (const int side : {0, 1}) {
    const Expr load = form->exprs[body.args[side == 0 ? first_argument : 1 - first_argument]];
    if (load.scalar != Scalar::kLoad) return wrong(w, "its GEMM's node is no product of two loads");
    std::vector<const stitch::Product::Dim*> dims;
    for (const auto* list : {&product.batch, &product.m, &product.n})
      for (const stitch::Product::Dim& dim : *list)
        if (side ? dim.b : dim.a) dims.push_back(&dim);
    const int64_t halves = side ? product.b_count() : 1;
    int64_t points = depth * halves;
    for (const auto* dim : dims) points *= dim->extent;
    const int64_t step = points > options_.most_points ? (points / options_.most_points) | 1 : 1;
    for (int64_t first = 0; first < points; first += kBatch * step) {
      Numbers offsets;
      std::vector<Numbers> at(form->domain.size());
      for (int64_t point = first; point < std::min(first + kBatch * step, points); point += step) {
        int64_t rest = point;
        int64_t k = rest % depth;
        rest /= depth;
        int64_t offset = (side ? product.b_offset : product.a_offset) +
                         k * (side ? product.k[0].b : product.k[0].a);
        std::vector<int64_t> domain(group.body.domain.size(), 0);
        for (size_t d = dims.size(); d-- > 0;) {
          const int64_t coordinate = rest % dims[d]->extent;
          rest /= dims[d]->extent;
          offset += coordinate * (side ? dims[d]->b : dims[d]->a);
          domain[static_cast<size_t>(dims[d]->c)] = coordinate;
        }
        if (halves > 1) {  // the second half's columns stand behind the first's
          offset += rest * product.n[0].extent * product.n[0].b;
          domain[static_cast<size_t>(product.n[0].c)] += rest * product.n[0].extent;
        }
        for (size_t d = 0; d < reduced_from; ++d)
          at[d].push_back(domain[static_cast<size_t>(group.anchor_coords[d])]);
        for (size_t d = form->domain.size(); d-- > reduced_from;)
          at[d].push_back(k % form->domain[d]), k /= form->domain[d];
        offsets.push_back(offset);
      }
      PointValues values(form->exprs, [](int) -> const Tensor* { return nullptr; });
      values.begin(at);
      std::vector<Numbers> coords;
      for (const ops::ExprId coord : load.coords) {
        if (!values.known(coord))
          return wrong(w, "an operand of its GEMM is read at computed places");
        coords.push_back(values[coord]);
      }
      TRY_STATUS(look_through(w, work.buffers[slot + static_cast<size_t>(side)],
                              graph_.node(group.anchor).inputs[static_cast<size_t>(load.slot)],
                              side ? product.b : product.a, std::move(coords), offsets));
    }
  }
  return ok_status();
}

Status Shadow::read_attention(size_t w, size_t slot) {
  const Work& work = tasks_.works[w];
  const stitch::AttentionTile& tile = plan_.groups[work.group].attention;
  const graph::Node& node = graph_.node(plan_.groups[work.group].anchor);
  for (const int input : {0, 1, 2}) {
    const stitch::AttentionTile::Operand& operand = input == 0   ? tile.q
                                                    : input == 1 ? tile.k
                                                                 : tile.v;
    const Shape& shape = graph_.type(node.inputs[static_cast<size_t>(input)]).shape;
    const int64_t heads = tile.heads / (input == 0 ? 1 : tile.shared),
                  rows = input == 0 ? tile.queries : tile.keys;
    const int64_t columns = input == 2 ? tile.value_size : tile.size;
    // A few queries may be the heads that share keys: rows of the tile, heads of the graph.
    const bool by_head = input == 0 && shape.size() == 4 && shape[1] != heads;
    const int64_t points = tile.images * heads * rows * columns;
    const int64_t step = points > options_.most_points ? (points / options_.most_points) | 1 : 1;
    for (int64_t first = 0; first < points; first += kBatch * step) {
      Numbers offsets;
      std::vector<Numbers> at(shape.size());
      for (int64_t point = first; point < std::min(first + kBatch * step, points); point += step) {
        const int64_t column = point % columns, row = point / columns % rows,
                      head = point / columns / rows % heads;
        const int64_t image = point / columns / rows / heads;
        offsets.push_back(operand.offset + image * operand.image + head * operand.head +
                          row * operand.row + column * operand.column);
        if (shape.size() == 4) {
          const int64_t mine[] = {image, by_head ? head * rows + row : head, by_head ? 0 : row,
                                  column};
          for (size_t d = 0; d < 4; ++d) at[d].push_back(mine[d]);
        } else {
          const int64_t mine[] = {image, row, head * columns + column};
          for (size_t d = 0; d < 3; ++d) at[d].push_back(mine[d]);
        }
      }
      TRY_STATUS(look_through(w, work.buffers[slot + static_cast<size_t>(input)],
                              node.inputs[static_cast<size_t>(input)], operand.value, std::move(at),
                              offsets));
    }
  }
  if (tile.mask.value != graph::kNone && !tasks_.dataflow)
    return look_at_whole(w, work.buffers[slot + 3], -1, tile.mask.value);
  return ok_status();
}

Status Shadow::check_tile_rows(const ObkTask& task) {
  const Work& work = tasks_.works[task.work];
  const Group& group = plan_.groups[work.group];
  if (group.kind == GroupKind::kStitched) return ok_status();
  const Points points = points_of(work.nest, task.r0, task.r1, 0, 1);
  if (group.kind == GroupKind::kProduct) {
    if (const Access* a = work.nest.of_product(group, 0)) {
      const Numbers offsets = offsets_of(*a, points);
      const std::vector<Numbers> coords = coords_of(group.body, work.nest, points);
      const int64_t next =
          work.nest.rows > 0 ? a->strides[static_cast<size_t>(work.nest.rows) - 1] : 0;
      for (size_t p = 0; p < offsets.size(); ++p) {
        int64_t meant = group.product.a_offset;
        for (const auto* list : {&group.product.batch, &group.product.m})
          for (const stitch::Product::Dim& dim : *list)
            meant += dim.a * coords[static_cast<size_t>(dim.c)][p];
        const int64_t walked = offsets[0] + static_cast<int64_t>(p) * next;
        if (offsets[p] != meant || walked != meant)
          return wrong(
              task.work,
              fmt::format("row {} of its tile begins at element {} of A, its epilogue means {}",
                          task.r0 + static_cast<int64_t>(p), walked, meant));
      }
    }
    return ok_status();
  }
  const std::vector<Numbers> coords = coords_of(group.body, work.nest, points);
  const Shape& domain = group.body.domain;
  const int column =
      group.kind == GroupKind::kConv ? group.anchor_coords[1] : group.anchor_coords.back();
  for (size_t p = 0; p < points.count(); ++p) {
    int64_t row = 0;
    for (const int slot : group.anchor_coords)
      if (slot != column)
        row = row * domain[static_cast<size_t>(slot)] + coords[static_cast<size_t>(slot)][p];
    if (row != task.r0 + static_cast<int64_t>(p))
      return wrong(task.work, fmt::format("row {} of its tile is row {} of its epilogue",
                                          task.r0 + static_cast<int64_t>(p), row));
  }
  return ok_status();
}

}  // namespace obelisk::schedule::shadow
