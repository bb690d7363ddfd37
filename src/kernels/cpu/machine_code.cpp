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

MachineCode machine_code_f32(int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t b_row,
                             int64_t c_row, bool accumulate) {
  static const bool started = start();
  constexpr int64_t kLargest = std::numeric_limits<int>::max() / 8;
  if (m == 1) a_row = k;  // one row has no stride
  if (!started || a_row < k || std::max({m, n, k, a_row, b_row, c_row}) > kLargest) return nullptr;
  // libxsmm counts columns first: its C is our C transposed, its A our B, its B our A.
  const int lda = static_cast<int>(b_row), ldb = static_cast<int>(a_row),
            ldc = static_cast<int>(c_row);
  const float alpha = 1, beta = accumulate ? 1 : 0;
  const int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_smmdispatch(static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &lda,
                             &ldb, &ldc, &alpha, &beta, &flags, &prefetch);
}

}  // namespace obelisk::kernels

#else

namespace obelisk::kernels {

MachineCode machine_code_f32(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool) {
  return nullptr;
}

}  // namespace obelisk::kernels

#endif
