#include "runtime/cuda/launch_forms.h"

namespace obelisk::runtime::cuda {

Status lay_out_grid(const Program& program, const Shape& shape, const std::vector<ObkTask>& tasks,
                    Launch& launch) {
  const WorkRecord& work = program.works[launch.work];
  launch.grid = program.bodies[work.body].traits.form == codegen::BodyTraits::Form::kGrid;
  if (!launch.grid) return ok_status();
  const ObkTask &first = tasks.front(), &last = tasks.back();
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format("{} tasks, the first of {} x {}, are not a grid of such rectangles over {} x "
                    "{}, by up to {} operands without parameters",
                    launch.tasks, first.r1, first.c1, last.r1, last.c1, schedule::kGridOperands),
        work.label, "compile the model again"};
  };
  if (!work.params.empty() || work.operands.size() > size_t{schedule::kGridOperands} ||
      first.r1 < 1 || first.c1 < 1 || last.r1 > INT32_MAX || last.c1 > INT32_MAX)
    return broken();
  ObkGrid& cut = launch.rectangles;
  cut.rows = static_cast<int32_t>(last.r1), cut.columns = static_cast<int32_t>(last.c1);
  cut.tile_rows = static_cast<int32_t>(first.r1), cut.tile_columns = static_cast<int32_t>(first.c1);
  cut.across = static_cast<int32_t>((last.c1 + first.c1 - 1) / first.c1);
  cut.scratch_bytes = launch.shared = static_cast<int32_t>(shape.scratch());
  const int64_t down = (int64_t{cut.rows} + cut.tile_rows - 1) / cut.tile_rows;
  return int64_t{cut.across} * down == launch.tasks ? ok_status() : Status(broken());
}

}  // namespace obelisk::runtime::cuda
