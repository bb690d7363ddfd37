#include "target/target.h"

namespace obelisk::target {

Result<DeviceSpec> device(const std::string& name, int sms) {
  if (name == "cpu") return cpu(sms);
  if (name.starts_with("sm_")) return gpu(name, sms);
  return Error{Code::kUsage, "target", fmt::format("no target is called '{}'", name), "",
               "targets: cpu, or a GPU by its architecture, as sm_90a"};
}

}  // namespace obelisk::target
