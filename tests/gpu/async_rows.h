// tests/gpu/async_rows.h — a 16-bit product whose rows come by a map (rows.cuh), for tests on a
// core: A inside a wider matrix, its map, packed weights, C, and its sums in the order of
// gemm_mma.cuh. After the device headers.
#pragma once

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"

namespace obelisk {
namespace {

/// A product of `rows` rows, from row kAbove and column kBefore of a matrix on.
struct Product {
  int columns, k;
  std::vector<uint16_t> a;  // [above + rows][pitch], from column `before` on
  std::vector<uint64_t> packed;
  std::vector<double> exact_a, exact_b;
  std::vector<float> c;
  alignas(64) char map[128];
  int pitch;
  const char* weights() const {
    return reinterpret_cast<const char*>(packed.data()) +
           reinterpret_cast<uint64_t>(packed.data()) % 16;
  }
  const uint16_t* matrix() const {
    return a.data() + reinterpret_cast<uint64_t>(a.data()) % 16 / 2;
  }
};
inline constexpr int kAbove = 3, kBefore = 64;

inline double number(uint16_t bits) {
  return static_cast<double>(static_cast<float>(std::bit_cast<_Float16>(bits)));
}

inline Product product_of(int rows, int columns, int k, int box, int together, int seed) {
  Product p{.columns = columns, .k = k};
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto half = [&] {
    return static_cast<uint16_t>(obk::narrow_two<false>(uniform(random), 0));
  };
  p.pitch = kBefore + k + 64;
  p.a.resize(static_cast<size_t>((kAbove + rows) * p.pitch) + 8);
  for (uint16_t& bits : p.a) bits = half();
  for (int r = 0; r < rows; ++r)
    for (int e = 0; e < k; ++e)
      p.exact_a.push_back(number(p.matrix()[(kAbove + r) * p.pitch + kBefore + e]));
  std::vector<uint16_t> b(static_cast<size_t>(columns) * k);
  for (uint16_t& bits : b) bits = half(), p.exact_b.push_back(number(bits));
  p.packed.resize(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(kObkF16, columns, k)) / 8 +
                  2);
  kernels::cuda_gemm_pack(kObkF16, columns, k, columns, b.data(), 1, k,
                          const_cast<char*>(p.weights()));
  const one_cta::RowsMap map = {reinterpret_cast<const char*>(p.matrix()), kAbove + rows, p.pitch,
                                together, box};
  memcpy(p.map, &map, sizeof map);
  p.c.assign(static_cast<size_t>(rows) * columns, -77);
  return p;
}

/// A sum over k as tiles of 16 bits have it: four chains of sixteen, joined in pairs.
inline float sum_of(const double* a, const double* b, int k) {
  float sums[4] = {};
  for (int step = 0; step < k; step += 16) {
    double sum = static_cast<double>(sums[step / 16 % 4]);
    for (int e = step; e < std::min(k, step + 16); ++e) sum += a[e] * b[e];
    sums[step / 16 % 4] = static_cast<float>(sum);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// What a copy may read of it.
inline void let_read(const Product& p) {
  one_cta::readable.push_back(
      {p.weights(), p.weights() + kernels::cuda_gemm_packed_bytes(kObkF16, p.columns, p.k)});
  one_cta::readable.push_back({reinterpret_cast<const char*>(p.matrix()),
                               reinterpret_cast<const char*>(p.a.data() + p.a.size())});
}

inline void expect_sums(const Product& p, int rows) {
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < p.columns; ++n)
      ASSERT_EQ(p.c[static_cast<size_t>(r) * p.columns + n],
                sum_of(&p.exact_a[static_cast<size_t>(r) * p.k],
                       &p.exact_b[static_cast<size_t>(n) * p.k], p.k))
          << "row " << r << " column " << n << " of " << p.k;
}

}  // namespace
}  // namespace obelisk
