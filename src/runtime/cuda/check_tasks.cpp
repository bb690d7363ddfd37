#include "runtime/cuda/check_tasks.h"

namespace obelisk::runtime::cuda {

Status check_in_place_kv(const Program& program, const ObkTask& task) {
  const WorkRecord& work = program.works[task.work];
  const int64_t row = -int64_t{task.weight_group}, bytes = task.weight_bytes;
  const auto broken = [&] {
    return Error{
        Code::kBuild, "runtime",
        fmt::format(
            "a task takes keys of {} bytes, {} a row, from {:#x}; wanted: whole rows of "
            "multiples of {} bytes up to {}, inside its last two operands, inputs or outputs "
            "that take their memory",
            bytes, row, task.weights, obk::kGatherUnit, obk::kDataflowPageBytes),
        work.label, "compile the model again"};
  };
  if (!program.dataflow || row > obk::kDataflowPageBytes || row % obk::kGatherUnit != 0 ||
      bytes <= 0 || bytes % row != 0 || work.operands.size() < 2)
    return broken();
  for (size_t which = 0; which < 2; ++which) {
    const Place& place = work.operands[work.operands.size() - 2 + which];
    const bool output = place.kind == BufferKind::kOutput;
    const std::vector<Port>& ports = output ? program.outputs : program.inputs;
    if ((place.kind != BufferKind::kInput && !output) || place.smem_copy >= 0 || place.index < 0 ||
        place.index >= static_cast<int64_t>(ports.size()))
      return broken();
    const Port& port = ports[static_cast<size_t>(place.index)];
    if (output && !port.written_in_place()) return broken();
    const int64_t from =
        (which == 0 ? OBK_IN_PLACE_KEYS(&task) : OBK_IN_PLACE_VALUES(&task)) * obk::kGatherUnit;
    if (task.weights < 0 || from + bytes > port.type.bytes()) return broken();
  }
  return ok_status();
}

Status check_weight_range(const Program& program, const ObkTask& task) {
  const WorkRecord& work = program.works[task.work];
  const int64_t bytes = task.weight_bytes, group = task.weight_group;
  const auto broken = [&] {
    return Error{Code::kBuild, "runtime",
                 fmt::format("a task streams {} bytes, {} a group, from {}; wanted: whole groups "
                             "of multiples of {} bytes, inside its last operand, a weight",
                             bytes, group, task.weights, obk::kAtomBytes),
                 work.label, "compile the model again"};
  };
  if (bytes < 0 || group <= 0 || group % obk::kAtomBytes != 0 || bytes % group != 0 ||
      work.operands.empty() || work.operands.back().kind != BufferKind::kWeight)
    return broken();
  const Tensor& weight = program.weights[static_cast<size_t>(work.operands.back().index)];
  return task.weights >= 0 && !weight.empty() && task.weights <= weight.bytes() - bytes
             ? ok_status()
             : Status(broken());
}

}  // namespace obelisk::runtime::cuda
