// tests/gpu/one_cta_wgmma.h — the tensor cores of sm_90a (wgmma.cuh) on a core, beside one_cta.h.
//
//   #include "one_cta.h"
//   #include "one_cta_wgmma.h"      before device headers: tiles by wgmma are taken
//
// A product is done when it is requested, so one that is waited for too late, or whose operands are
// written too early, is not seen here.
#pragma once

#include "one_cta.h"

#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define OBK_WGMMA_CUH
#define OBK_WGMMA 1

namespace obk {

OBK_DEVICE void wgmma_begin() {}
OBK_DEVICE void wgmma_commit() {}
template <int kPending>
OBK_DEVICE void wgmma_wait() {}
OBK_DEVICE uint64_t matrix_at(uint32_t address, uint32_t pitch) {
  return uint64_t{pitch >> 4} << 32 | (address & 0x3ffff) >> 4;
}
OBK_DEVICE uint64_t k_rows_at(uint32_t address, uint32_t apart) {
  return uint64_t{1024 >> 4} << 32 | uint64_t{apart >> 4} << 16 | (address & 0x3ffff) >> 4;
}
template <int kN>
struct WgmmaTf32 {
  /* As the tensor cores read a float: what tf32 has no bits for is cut off. */
  static double number(uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits >> 13 << 13));
  }
  static double weight(uint64_t y, int n, int k) {
    uint32_t at = static_cast<uint32_t>(y & 0x3fff) * 16 +
                  static_cast<uint32_t>(n % 8 * 128 + k * 4) +
                  static_cast<uint32_t>(n / 8) * static_cast<uint32_t>(y >> 32 & 0x3fff) * 16;
    at ^= (at >> 7 & 7) << 4;
    uint32_t bits;
    memcpy(&bits, one_cta::at(at, 4), 4);
    return number(bits);
  }
  static void multiply_rows(float (&d)[kN / 2], const uint32_t (&x)[4], uint64_t y) {
    const one_cta::Lane* lanes = one_cta::exchange({{x[0], x[1], x[2], x[3]}});
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int j = 0; j < kN / 8; ++j)
      for (int e = 0; e < 4; ++e) {
        double sum = static_cast<double>(d[4 * j + e]);
        for (int k = 0; k < 8; ++k)
          sum += number(lanes[lane / 4 * 4 + k % 4].words[e / 2 + k / 4 * 2]) *
                 weight(y, 8 * j + lane % 4 * 2 + e % 2, k);
        d[4 * j + e] = static_cast<float>(sum);
      }
  }
};
template <int kN, bool kBfloat>
struct Wgmma {
  static double number(uint32_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    return static_cast<double>(kBfloat ? std::bit_cast<float>(uint32_t{half} << 16)
                                       : static_cast<float>(std::bit_cast<_Float16>(half)));
  }
  /* Column (of the other operand: row) n, step k of 16 of the matrix that `y` describes. */
  static double weight(uint64_t y, int n, int k) {
    const uint32_t row = static_cast<uint32_t>(n % 8 * 128 + k * 2);
    uint32_t at = static_cast<uint32_t>(y & 0x3fff) * 16 + row +
                  static_cast<uint32_t>(n / 8) * static_cast<uint32_t>(y >> 32 & 0x3fff) * 16;
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, one_cta::at(at, 2), 2);
    return number(bits);
  }
  /* The same where the matrix's rows are those of k: of eight, 64 columns in 128 bytes. */
  static double weight_of_k_row(uint64_t y, int n, int k) {
    const auto field = [&](int bit) { return static_cast<uint32_t>(y >> bit & 0x3fff) * 16; };
    uint32_t at = field(0) + static_cast<uint32_t>(n / 64) * field(16) +
                  static_cast<uint32_t>(k / 8) * field(32) +
                  static_cast<uint32_t>(k % 8 * 128 + n % 64 * 2);
    at ^= (at >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, one_cta::at(at, 2), 2);
    return number(bits);
  }
  static void multiply_rows(float (&d)[kN / 2], const uint32_t (&x)[4], uint64_t y) {
    const one_cta::Lane* lanes = one_cta::exchange({{x[0], x[1], x[2], x[3]}});
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int j = 0; j < kN / 8; ++j)
      for (int e = 0; e < 4; ++e) {
        double sum = static_cast<double>(d[4 * j + e]);
        for (int k = 0; k < 16; ++k) {
          const uint32_t word = lanes[lane / 4 * 4 + k % 8 / 2].words[e / 2 + k / 8 * 2];
          sum += number(word >> (k & 1) * 16) * weight(y, 8 * j + lane % 4 * 2 + e % 2, k);
        }
        d[4 * j + e] = static_cast<float>(sum);
      }
  }
  template <bool kOfKRows = false>
  static void multiply(float (&d)[kN / 2], uint64_t x, uint64_t y) {
    const int warp = static_cast<int>(threadIdx.x / 32 % 4),
              lane = static_cast<int>(threadIdx.x % 32);
    double rows[2][16];
    for (int k = 0; k < 32; ++k)
      rows[k / 16][k % 16] = weight(x, warp * 16 + lane / 4 + k / 16 * 8, k % 16);
    for (int j = 0; j < kN / 8; ++j)
      for (int c = 0; c < 2; ++c) {
        double sum[2] = {static_cast<double>(d[4 * j + c]), static_cast<double>(d[4 * j + 2 + c])};
        for (int k = 0; k < 16; ++k) {
          const int n = 8 * j + lane % 4 * 2 + c;
          const double w = kOfKRows ? weight_of_k_row(y, n, k) : weight(y, n, k);
          sum[0] += rows[0][k] * w, sum[1] += rows[1][k] * w;
        }
        d[4 * j + c] = static_cast<float>(sum[0]), d[4 * j + 2 + c] = static_cast<float>(sum[1]);
      }
  }
};

}  // namespace obk
