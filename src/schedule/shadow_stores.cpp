// What tasks store, and whether outputs are whole at the end.
#include <algorithm>

#include "schedule/dataflow_spans.h"
#include "schedule/shadow.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule::shadow {

Status Shadow::store(const ObkTask& task, int sm) {
  const Work& work = tasks_.works[task.work];
  const Group& group = plan_.groups[work.group];
  if (stitch::calls_op(group.kind)) return ok_status();
  PointValues values = values_of(group);
  for (const Access& access : work.nest.accesses) {
    if (access.step < 0) continue;
    const Step& step = group.body.steps[static_cast<size_t>(access.step)];
    if (step.per_row && work.nest.cut_columns && task.c0 != 0)
      continue;  // of the tiles of a row one stores it
    const ValueId value = group.body.operands[static_cast<size_t>(step.slot)];
    const int b = work.buffers[static_cast<size_t>(step.slot)];
    if (tasks_.dataflow && work.replicated() &&
        tasks_.buffers[static_cast<size_t>(b)].kind == BufferKind::kArena &&
        tasks_.buffers[static_cast<size_t>(b)].reach == Reach::kAll)
      continue;  // validate_dataflow follows these
    TRY(const Tagging* tags, tagging(value));
    TRY_STATUS(batches(
        work, group.body, task, step.per_row, 1,
        [&](const Points& points, std::vector<Numbers> coords) -> Status {
          values.begin(std::move(coords));
          std::vector<const Numbers*> at;
          for (const ops::ExprId coord : step.at) {
            if (!values.known(coord))
              return wrong(task.work,
                           fmt::format("stores %{} at places that depend on data", value));
            at.push_back(&values[coord]);
          }
          Numbers elements(points.count(), 0);
          TRY_STATUS(tags_at(task.work, value, at, nullptr, elements));
          const Numbers offsets =
              access.affine ? offsets_of(access, points) : laid_out(value, at, points.count());
          for (size_t p = 0; p < offsets.size(); ++p)
            TRY_STATUS(put(task.work, b, sm, offsets[p], tag_of(tags->storage, elements[p])));
          return ok_status();
        }));
  }
  return ok_status();
}

Status Shadow::store_whole() {
  for (size_t w = 0; w < tasks_.works.size(); ++w) {
    const Work& work = tasks_.works[w];
    const Group& group = plan_.groups[work.group];
    if (work.wave != wave_) continue;
    if (group.in_place_of != graph::kNone) {  // which elements depends on data: all of them, then
      InputWaves& waves = overwritten_[group.in_place_of];
      if (waves.read_in == wave_)
        return wrong(
            w, fmt::format("overwrites input %{}, which the same wave reads", group.in_place_of));
      waves.overwritten_in = wave_;
    }
    if (stitch::calls_op(group.kind))
      for (const WorkAccess& access : accesses_of(graph_, plan_, work).stores)
        TRY_STATUS(each_element(access.value, [&](int64_t offset, Tag tag) {
          return put(w, work.buffers[access.slot], -1, offset, tag);
        }));
    for (const bool leaves : {true, false}) {
      if (leaves ? group.partials == graph::kNone : !group.product.statistics.of_partials) continue;
      const int b = work.buffers[static_cast<size_t>(leaves ? work.left_partials(group)
                                                            : work.read_partials(group))];
      const ValueId value = leaves ? group.partials : group.product.a;
      const int64_t count = tasks_.buffers[static_cast<size_t>(b)].type.count();
      for (int64_t k = 0; k < count; ++k) {
        const Tag tag = tag_of(graph_.value_count() + value, k);
        TRY_STATUS(leaves ? put(w, b, -1, k, tag) : look(w, b, -1, k, tag));
      }
    }
  }
  return ok_status();
}

Status Shadow::check_end() {
  for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
    const Buffer& buffer = tasks_.buffers[b];
    if (is_kept(buffer)) {
      for (int64_t at = 0; at < buffer.size.count; at += arena_.unit)
        if (arena_.tags[unit_at(buffer, at)] != kept_tag(b))
          return end_error(fmt::format("bytes that last from run to run hold {}",
                                       text_of(arena_.tags[unit_at(buffer, at)])));
    }
    if (buffer.kind != BufferKind::kOutput) continue;
    TRY_STATUS(each_element(buffer.value, [&](int64_t offset, Tag tag) -> Status {
      const int64_t width = bits(buffer.type.dtype);
      if (width < 8) tag -= static_cast<Tag>(offset % (8 / width));
      const Tag found =
          outputs_[b].tags[static_cast<size_t>(width < 8 ? offset * width / 8 : offset)];
      return found == tag
                 ? ok_status()
                 : Status(end_error(fmt::format("output %{} holds {} where {} is meant",
                                                buffer.value, text_of(found), text_of(tag))));
    }));
  }
  return ok_status();
}

Error Shadow::end_error(std::string text) {
  return Error{Code::kBuild, "schedule", "shadow run, at the end: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

}  // namespace obelisk::schedule::shadow
