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

namespace {

/// The shape as libxsmm takes it. It counts columns first: its C is our C transposed, its A our B,
/// its B our A.
struct Ask {
  bool fits = false;
  int m, n, k, lda, ldb, ldc;
  float alpha = 1, beta;
  int flags, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;

  explicit Ask(const Product& p) {
    static const bool started = start();
    constexpr int64_t kLargest = std::numeric_limits<int>::max() / 8;
    if (!started) return;
    const bool transposed = p.a_col != 1;
    int64_t stride = transposed ? p.a_col : p.a_row;
    if (transposed ? p.k == 1 : p.m == 1)
      stride = transposed ? p.m : p.k;  // a single row has no stride
    if (stride < (transposed ? p.m : p.k) || (transposed && p.a_row != 1)) return;
    if (std::max({p.m, p.n, p.k, stride, p.b_row, p.c_row}) > kLargest) return;
    fits = true;
    m = static_cast<int>(p.n), n = static_cast<int>(p.m), k = static_cast<int>(p.k);
    lda = static_cast<int>(p.b_row), ldb = static_cast<int>(stride),
    ldc = static_cast<int>(p.c_row);
    beta = p.accumulate ? 1 : 0;
    flags = transposed ? LIBXSMM_GEMM_FLAG_TRANS_B : LIBXSMM_GEMM_FLAG_NONE;
  }
};

}  // namespace

MachineCode machine_code(const Product& product) {
  const Ask a(product);
  if (!a.fits) return nullptr;
  return libxsmm_smmdispatch(a.m, a.n, a.k, &a.lda, &a.ldb, &a.ldc, &a.alpha, &a.beta, &a.flags,
                             &a.prefetch);
}

MachineCodeSum machine_code_sum(const Product& product) {
  const Ask a(product);
  if (!a.fits) return nullptr;
  return libxsmm_smmdispatch_reducebatch_addr(a.m, a.n, a.k, &a.lda, &a.ldb, &a.ldc, &a.alpha,
                                              &a.beta, &a.flags, &a.prefetch);
}

}  // namespace obelisk::kernels

#else

namespace obelisk::kernels {

MachineCode machine_code(const Product&) { return nullptr; }
MachineCodeSum machine_code_sum(const Product&) { return nullptr; }

}  // namespace obelisk::kernels

#endif
