#include <chrono>

#include "runtime/cpu/executable.h"

namespace obelisk::runtime {

Result<std::shared_ptr<const Executable>> load_cpu(std::shared_ptr<const Program> program,
                                                   const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadReport report;
  std::vector<std::unique_ptr<cpu::Object>> objects;
  if (!program->objects.empty()) {
    auto carried = cpu::carried_objects(*program);
    if (carried.ok()) {
      objects = std::move(*carried);
      report.carried = static_cast<int>(objects.size());
    } else {
      report.not_carried = carried.error().message;
    }
  }
  if (objects.empty()) {
    TRY(objects, cpu::build_objects(program->bodies, options, report));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const Executable>(
      new cpu::CpuExecutable(std::move(program), std::move(objects), std::move(report), options));
}

}  // namespace obelisk::runtime
