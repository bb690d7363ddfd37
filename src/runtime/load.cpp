// By the program's target; and what a context answers where its machine cannot.
#include "runtime/runtime.h"

namespace obelisk::runtime {

Result<std::shared_ptr<const Executable>> load(std::shared_ptr<const Program> program,
                                               const LoadOptions& options) {
  return program->on_gpu() ? load_cuda(std::move(program), options)
                           : load_cpu(std::move(program), options);
}

Status Context::run_together(std::span<const SharedRun> runs) {
  for (const SharedRun& each : runs) TRY_STATUS(each.context->run(each.inputs, each.outputs));
  return ok_status();
}

Status Context::run_on(std::span<const void* const>, std::span<void* const>, void*) {
  return Error{Code::kUnsupported, "runtime", "a program on the CPU has no streams", "",
               "run() without a stream"};
}
Status Context::run_together_on(std::span<const SharedRun>, void*) {
  return Error{Code::kUnsupported, "runtime", "a program on the CPU has no streams", "",
               "run_together() without a stream"};
}
Result<std::vector<double>> Context::device_us(int, Launches) {
  return Error{Code::kUnsupported, "runtime", "a program on the CPU has no device time", "",
               "bench with --target cuda"};
}
Result<bool> Context::on_device(const void*) const { return false; }
Status Context::wait() { return ok_status(); }
Result<std::byte*> Context::input_memory(size_t) { return nullptr; }
Result<std::byte*> Context::output_memory(size_t) { return nullptr; }
Result<std::vector<TaskTime>> Context::task_times() {
  return Error{Code::kUnsupported, "runtime", "a program on the CPU records no times of tasks", "",
               "OBELISK_PROFILE=1 prints times of bodies"};
}

}  // namespace obelisk::runtime
