#include "target/target.h"

namespace obelisk::target {

Result<DeviceSpec> device(const std::string& name, int sms) {
  if (name == "cpu") return cpu(sms);
  return Error{Code::kUsage, "target", fmt::format("no target is called '{}'", name), "", "targets: cpu"};
}

}  // namespace obelisk::target
