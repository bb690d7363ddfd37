#include "kernels/cpu/loops.h"

#include <cstdlib>
#include <string_view>

namespace obelisk::kernels {

namespace {

const Loops& choose() {
  const char* wish = std::getenv("OBELISK_ISA");
  const std::string_view limit = wish ? wish : "";
  // What x86-64-v4 and -v3 require, as far as the compiler uses it.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  if (avx512 && limit != "avx2" && limit != "base") return kLoopsAvx512;
  if (avx2 && limit != "base") return kLoopsAvx2;
  return kLoopsBase;
}

}  // namespace

const Loops& loops() {
  static const Loops& chosen = choose();
  return chosen;
}

}  // namespace obelisk::kernels
