#include "kernels/cuda/gemm.h"

#include <cstring>

namespace obelisk::kernels {
namespace {

int64_t width(int32_t type) { return type == kObkF64 ? 8 : type == kObkF32 ? 4 : 2; }
int64_t up16(int64_t x) { return (x + 15) / 16 * 16; }

}  // namespace

int64_t cuda_gemm_packed_bytes(int32_t type, int64_t n, int64_t k) {
  return up16(n) * (width(type) == 2 ? up16(k) : k) * width(type);
}

void cuda_gemm_pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row, int64_t b_col,
                    void* packed) {
  const int64_t size = width(type);
  const char* from = static_cast<const char*>(b);
  char* to = static_cast<char*>(packed);
  std::memset(to, 0, static_cast<size_t>(cuda_gemm_packed_bytes(type, n, k)));
  const int64_t steps = up16(k) / 16;
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < k; ++row) {
      int64_t at = (column / 16 * k + row) * 16 + column % 16;
      if (size == 2) {
        const int64_t c = column % 16, r = row % 16;
        const int64_t lane = c % 8 * 4 + r % 8 / 2, part = (r / 8) * 2 + c / 8;
        at = (((column / 16 * steps + row / 16) * 32 + lane) * 4 + part) * 2 + r % 2;
      }
      std::memcpy(to + at * size, from + (row * b_row + column * b_col) * size,
                  static_cast<size_t>(size));
    }
  }
}

int64_t cuda_gemm_scratch_bytes(const ObkGemm* gemm) {
  (void)gemm;
  return 0;
}

double cuda_gemm_nanos(int32_t type, int64_t m, int64_t n, int64_t k) {
  // Streaming both sides at what one SM takes in, and the sums.
  const double bytes = static_cast<double>((m * 0.5 + n) * k * width(type));
  const double flops = 2.0 * static_cast<double>(m) * n * k;
  const double rate = width(type) == 2 ? 1800 : type == kObkF32 ? 300 : 150;  // per nanosecond
  return 600 + bytes / 50 + flops / rate;
}

}  // namespace obelisk::kernels
