// Product tiles of one to eight rows whose shape stands in their text, for tests on a core (after
// gemm_skinny.cuh): cases, their numbers, what sums must be.
#pragma once

#include <random>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/kernels.h"

namespace obelisk {

struct Skinny {
  const char* name;
  int rows, columns, k, c_row;
  bool bfloat;
  void (*tile)(const ObkGemm&);
  DType type() const { return bfloat ? DType::bf16 : DType::f16; }
  int wide() const { return (columns + 15) / 16 * 16; }
  int chunks() const { return (k + 63) / 64; }
};
inline void PrintTo(const Skinny& c, std::ostream* out) { *out << c.name; }
template <bool kBfloat, typename S>
void tile_of(const ObkGemm& g) {
  static_assert(obk::skinny_fits<S>() && S::kGroups <= obk::WeightPages::kMostGroups);
  obk::skinny_tile<kBfloat, S>(g);
}
#define FEW(name, rows, columns, k, c_row, bfloat)                    \
  Skinny {                                                            \
    name, rows, columns, k, c_row, bfloat,                            \
        tile_of<bfloat, obk::FixedShape<rows, columns, k, k, c_row> > \
  }

/// A, and B of so many tiles' columns, packed, where TMA may read it.
struct SkinnyNumbers {
  SkinnyNumbers(const Skinny& of, int tiles) : c(of), n(tiles * of.wide()) {
    const auto number = static_cast<int32_t>(c.type());
    std::mt19937 random(5);
    std::uniform_real_distribution<double> uniform(-1, 1);
    const auto make = [&](int64_t count, std::vector<uint64_t>& bytes, std::vector<double>& exact) {
      bytes.resize(static_cast<size_t>(count * 2 + 15) / 8),
          exact.resize(static_cast<size_t>(count));
      for (int64_t k = 0; k < count; ++k) {
        set_double(bytes.data(), c.type(), k, uniform(random));
        exact[static_cast<size_t>(k)] = get_double(bytes.data(), c.type(), k);
      }
    };
    std::vector<uint64_t> b_bytes;
    make(int64_t{c.rows} * c.k, a_bytes, a), make(int64_t{n} * c.k, b_bytes, b);
    hold_.resize(static_cast<size_t>(kernels::cuda_gemm_packed_bytes(number, n, c.k)) + 16);
    weights = hold_.data() + (16 - reinterpret_cast<uint64_t>(hold_.data()) % 16) % 16;
    kernels::cuda_gemm_pack(number, n, c.k, c.wide(), b_bytes.data(), 1, c.k, weights);
    one_cta::readable.clear();
    one_cta::readable.push_back({weights, weights + hold_.size() - 16});
  }
  ObkGemm gemm() const {
    ObkGemm g = {};
    g.a_type = g.b_type = static_cast<int32_t>(c.type()), g.packed = 1;
    g.m = c.rows, g.n = c.columns, g.k = c.k, g.n_packed = n;
    g.a_row = c.k, g.a_col = 1, g.c_row = c.c_row, g.b = weights;
    return g;
  }
  obk::WeightPages weights_of(int tile) const {
    return obk::WeightPages::of_tile(weights + tile * c.wide() / 8 * int64_t{c.chunks()} * 1024,
                                     c.wide() / 8, c.chunks());
  }
  /// y: [rows][n], of which each tile has its columns.
  void expect_sums(const std::vector<float>& y, int pages) const {
    for (int row = 0; row < c.rows; ++row)
      for (int x = 0; x < n; ++x) {
        if (x % c.wide() >= c.columns) continue;
        double sum = 0, size = 0.01;
        for (int k = 0; k < c.k; ++k) {
          const double product =
              a[static_cast<size_t>(row * c.k + k)] * b[static_cast<size_t>(int64_t{x} * c.k + k)];
          sum += product, size += std::fabs(product);
        }
        ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(row * n + x)]), sum, 2e-6 * size)
            << "row " << row << " column " << x << " pages " << pages;
      }
  }

  const Skinny& c;
  int n;
  std::vector<uint64_t> a_bytes;
  std::vector<double> a, b;
  char* weights = nullptr;

 private:
  std::vector<char> hold_;
};

}  // namespace obelisk
