/// runtime/cpu/executable.h — a program that is loaded for cores: its bodies' machine code, and the
/// report.
#pragma once

#include "runtime/cpu/objects.h"
#include "runtime/runtime.h"

namespace obelisk::runtime::cpu {

class CpuExecutable : public Executable, public std::enable_shared_from_this<CpuExecutable> {
 public:
  CpuExecutable(std::shared_ptr<const Program> program,
                std::vector<std::unique_ptr<Object>> objects, LoadReport report,
                const LoadOptions& options)
      : program_(std::move(program)),
        objects_(std::move(objects)),
        report_(std::move(report)),
        every_thread_(options.every_thread),
        instances_(options.instances) {}
  const Program& program() const override { return *program_; }
  const LoadReport& report() const override { return report_; }
  Result<std::unique_ptr<Context>> context(int threads) const override;
  std::vector<std::string> objects() const override {
    std::vector<std::string> bytes;
    for (const auto& object : objects_) bytes.push_back(object->bytes());
    return bytes;
  }
  std::string code() const override;
  ObkBody body(int index) const { return objects_[index]->body(); }

 private:
  std::shared_ptr<const Program> program_;
  std::vector<std::unique_ptr<Object>> objects_;
  LoadReport report_;
  const bool every_thread_, instances_;
};

}  // namespace obelisk::runtime::cpu
