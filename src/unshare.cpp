#include "compile.h"

namespace obelisk::compiler {

Result<Unshared> unshare(const Compilation& made, const Options& options) {
  if (made.tasks.dataflow)
    return Error{Code::kUnsupported, "compile",
                 "what a dataflow program stores cannot be looked at", "", "--disable dataflow"};
  Unshared unshared{nullptr, made.tasks};
  constexpr int64_t kApart = 256;
  int64_t end = 0;
  for (schedule::Buffer& buffer : unshared.tasks.buffers) {
    if (buffer.kind != schedule::BufferKind::kArena) continue;
    buffer.offset = Bytes{end};
    end += (buffer.room().count + kApart - 1) / kApart * kApart;
  }
  unshared.tasks.arena = Bytes{end};
  TRY(machine::Machine device, machine::device(made.program->target, made.program->sms));
  codegen::Source source =
      codegen::emit(made.graph, made.plan, unshared.tasks, kernels::tile_library(device));
  auto program = std::make_shared<runtime::Program>(runtime::assemble(
      made.graph, made.plan, unshared.tasks, std::move(source), made.program->target));
  program->granularity = made.program->granularity, program->precision = made.program->precision;
  const auto last = static_cast<int>(program->outputs.size());
  program->outputs.push_back({"", {DType::u8, {end}}});
  if (end > 0) program->copies.push_back({last, {runtime::BufferKind::kArena, 0}});
  TRY(unshared.executable, runtime::load(std::move(program), options.load));
  return unshared;
}

std::map<graph::ValueId, Tensor> stored_values(const Compilation& made, const Unshared& unshared,
                                               std::span<const Tensor> outputs) {
  std::map<graph::ValueId, Tensor> storages, values;
  for (const schedule::Buffer& buffer : unshared.tasks.buffers) {
    if (buffer.value == graph::kNone) continue;
    const DType dtype = made.graph.type(buffer.value).dtype;
    if (buffer.kind == schedule::BufferKind::kOutput) {
      const Tensor& output = outputs[static_cast<size_t>(buffer.index)];
      storages[buffer.value] = output.reshaped({output.count()});
    } else if (buffer.kind == schedule::BufferKind::kArena) {
      const auto* bytes =
          static_cast<const std::byte*>(outputs.back().data()) + buffer.offset.count;
      storages[buffer.value] =
          Tensor::view({dtype, {buffer.size.count * 8 / bits(dtype)}}, bytes, nullptr);
    }
  }
  for (const graph::NodeId id : made.graph.order()) {
    for (const graph::ValueId v : made.graph.node(id).outputs) {
      const stitch::Layout& layout = made.plan.layouts[static_cast<size_t>(v)];
      const auto from = storages.find(layout.storage);
      if (!layout.materialized || from == storages.end()) continue;
      const Type& type = made.graph.type(v);
      if (from->second.dtype() != type.dtype || layout.strides.size() != type.shape.size())
        continue;
      Tensor value = Tensor::allocate(type);
      std::vector<int64_t> at(type.shape.size(), 0);
      int64_t place = layout.offset;
      for (int64_t k = 0; k < value.count(); ++k) {
        if (is_float(type.dtype))
          value.set_double(k, from->second.get_double(place));
        else
          value.set_int(k, from->second.get_int(place));
        for (size_t d = at.size(); d-- > 0;) {
          place += layout.strides[d];
          if (++at[d] < type.shape[d]) break;
          place -= layout.strides[d] * type.shape[d];
          at[d] = 0;
        }
      }
      values[v] = std::move(value);
    }
  }
  return values;
}

}  // namespace obelisk::compiler
