#include "kernels/cpu/machine_code.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "kernels/cpu/loops.h"

#if defined(OBELISK_LIBXSMM) && !defined(__SANITIZE_THREAD__)
#include <libxsmm.h>

namespace obelisk::kernels {

namespace {

/// Makes libxsmm use the instruction set that the loops use, which the user may have lowered;
/// false: no code at all.
bool start() {
  libxsmm_init();
  const std::string_view isa = loops().name;
  if (isa == "base") return false;
  const int limit = isa == "avx2" ? LIBXSMM_X86_AVX2 : LIBXSMM_X86_ALLFEAT;
  if (libxsmm_get_target_archid() > limit) libxsmm_set_target_archid(limit);
  return true;
}

}  // namespace

MachineCode machine_code(const Product& p) {
  static const bool started = start();
  constexpr int64_t kLargest = std::numeric_limits<int>::max() / 8;
  if (!started) return nullptr;
  // libxsmm counts columns first: its C is our C transposed, its A our B, its B our A.
  const bool turned = p.a_col != 1;
  int64_t stride = turned ? p.a_col : p.a_row;
  if (turned ? p.k == 1 : p.m == 1) stride = turned ? p.m : p.k;  // a single row has no stride
  if (stride < (turned ? p.m : p.k) || (turned && p.a_row != 1)) return nullptr;
  if (std::max({p.m, p.n, p.k, stride, p.b_row, p.c_row}) > kLargest) return nullptr;
  const int lda = static_cast<int>(p.b_row), ldb = static_cast<int>(stride);
  const int ldc = static_cast<int>(p.c_row);
  const float alpha = 1, beta = p.accumulate ? 1 : 0;
  const int flags = turned ? LIBXSMM_GEMM_FLAG_TRANS_B : LIBXSMM_GEMM_FLAG_NONE;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_smmdispatch(static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k),
                             &lda, &ldb, &ldc, &alpha, &beta, &flags, &prefetch);
}

}  // namespace obelisk::kernels

#else

namespace obelisk::kernels {

MachineCode machine_code(const Product&) { return nullptr; }

}  // namespace obelisk::kernels

#endif
