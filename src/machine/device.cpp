#include "machine/machine.h"

namespace obelisk::machine {

Result<Machine> device(const std::string& name, int sms) {
  if (name == "cpu") return cpu(sms);
  if (name.starts_with("sm_")) return gpu(name, sms);
  return Error{Code::kUsage, "machine", fmt::format("no target is called '{}'", name), "",
               "targets: cpu, or a GPU by its architecture, as sm_90a"};
}

}  // namespace obelisk::machine
