#include "runtime/cpu/executable.h"

#include <algorithm>

#include "base/parallel.h"
#include "runtime/cpu/context.h"
#include "runtime/cpu/threads.h"

namespace obelisk::runtime::cpu {

Result<std::unique_ptr<Context>> CpuExecutable::context(int threads) const {
  const int limit =
      std::min(program_->sms, std::max(threads > 0 ? threads : cores_we_may_use(), 1));
  const int chosen = every_thread_ ? limit : threads_that_pay(*program_, limit);
  return std::unique_ptr<Context>(new CpuContext(shared_from_this(), chosen));
}

std::string CpuExecutable::code() const {
  if (!instances_) return "";
  std::string all;
  for (const auto& object : objects_) all += object->bytes();
  for (const auto* ports : {&program_->inputs, &program_->outputs})
    for (const Port& port : *ports) all += " " + obelisk::to_string(port.type);
  return to_string(hash_text(all));
}

}  // namespace obelisk::runtime::cpu
