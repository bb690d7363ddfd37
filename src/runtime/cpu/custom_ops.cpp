#include <string.h>

#include "runtime/cpu/context.h"

namespace obelisk::runtime::cpu {

void CpuContext::prepare(const CustomRecord& custom) {
  customs_.push_back(std::make_unique<CustomCall>(
      CustomCall{{.op = custom.op, .attrs = custom.attrs}, {}, {}, {}}));
  CustomCall& made = *customs_.back();
  made.call.outputs = static_cast<int>(custom.outputs.size());
  made.inputs.resize(custom.inputs.size());
  made.pointers.assign(custom.inputs.size(), nullptr);
  for (size_t k = 0; k < custom.inputs.size(); ++k) {
    if (custom.inputs[k] >= 0) made.pointers[k] = &made.inputs[k];
    made.call.inputs.push_back(custom.inputs[k] >= 0 ? &custom.input_types[k] : nullptr);
    made.call.constants.push_back(made.pointers[k]);
  }
  for (const Type& type : custom.output_types) {
    made.call.results.push_back(&type);
    made.outputs.push_back(Tensor::allocate(type));
  }
}

Status CpuContext::run_custom(const WorkRecord& work, void* const* operands) {
  const CustomRecord& custom = executable_->program().customs[work.custom];
  CustomCall& made = *customs_[work.custom];
  for (size_t k = 0; k < custom.inputs.size(); ++k) {
    if (custom.inputs[k] < 0 || made.inputs[k].data() == operands[custom.inputs[k]]) continue;
    made.inputs[k] = Tensor::view(custom.input_types[k], operands[custom.inputs[k]], nullptr);
  }
  // a reference may rely on it
  for (Tensor& output : made.outputs) memset(output.mutable_data(), 0, output.bytes());
  if (Status status = ops::reference(made.call, made.pointers, made.outputs); !status.ok()) {
    Error error = status.error();
    error.node = custom.name;
    return error;
  }
  for (size_t k = 0; k < made.outputs.size(); ++k)
    if (custom.outputs[k] >= 0)
      memcpy(operands[custom.outputs[k]], made.outputs[k].data(), made.outputs[k].bytes());
  return ok_status();
}

}  // namespace obelisk::runtime::cpu
