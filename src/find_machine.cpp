#include "compile.h"

namespace obelisk::compiler {

Result<FoundMachine> find_machine(const std::string& name, int sms, int threads) {
  FoundMachine machine;
  if (name.starts_with("sm_")) {
    machine.target = name, machine.sms = sms;
    return machine;
  }
  const bool numbered = name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 &&
                        name.find_first_not_of("0123456789", 5) == std::string::npos;
  const bool asked = name == "cuda" || numbered;
  if (asked || name == "auto") {
    machine.gpu = numbered ? atoi(name.c_str() + 5) : 0;
    auto gpu = runtime::describe_gpu(machine.gpu);
    if (!gpu.ok() && asked) return gpu.error();
    if (gpu.ok() && (asked || runtime::find_device_compiler().ok())) {
      machine.target = gpu->architecture, machine.name = gpu->name;
      machine.sms = sms > 0 ? sms : gpu->sms;
      return machine;
    }
  } else {
    machine.target = name;
  }
  machine.sms = sms > 0 ? sms : threads;
  return machine;
}

}  // namespace obelisk::compiler
