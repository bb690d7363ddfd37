#include "ops/gemm.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>

// The inner kernel is written once with vectors of constant length and compiled for three
// instruction sets; the widest that the machine has is chosen when running. (A plain
// `target_clones` would do the same through an indirect function, whose resolver runs before a
// sanitizer is ready.)
namespace obelisk::ops {
namespace {

constexpr int kRows = 4;
constexpr int kVectorBytes = 64, kVectors = 2;  // of a row of the tile, which is held in registers
template <typename Real>
constexpr int kLanes = kVectorBytes / sizeof(Real);
template <typename Real>
constexpr int kColumns = kVectors * kLanes<Real>;
constexpr int64_t kDepth = 256;  // of a packed panel, whose kColumns columns are 32 KiB
constexpr int64_t kPanels = 32;  // packed at a time, 1 MiB: stays in the second-level cache

template <typename Real>
struct Tile {
  const Real* rows[kRows];  // of a, at the first k of the panel
  const Real* panel;        // [depth, kColumns]
  int64_t depth;
  double* out[kRows];
  int columns;  // stored, <= kColumns
  bool add;     // to what out holds
};

// Two or four registers where they are narrower.
template <typename Real>
struct VectorOf;
template <>
struct VectorOf<double> {
  using Type = double __attribute__((vector_size(kVectorBytes), may_alias));
};
template <>
struct VectorOf<float> {
  using Type = float __attribute__((vector_size(kVectorBytes), may_alias));
};
struct alignas(kVectorBytes) Line {  // what a vector is loaded from
  char at[kVectorBytes];
};

template <typename Real>
[[gnu::always_inline]] inline void run_tile(const Tile<Real>& tile) {
  using Vector = typename VectorOf<Real>::Type;
  constexpr int lanes = kLanes<Real>;
  Vector acc[kRows][kVectors] = {};
  // In f32 a panel goes on with the sum of the one before it, as an accumulator of a program does;
  // in f64, whose sums are the reference, panels are summed apart, which rounds less.
  constexpr bool goes_on = std::is_same_v<Real, float>;
  if (goes_on && tile.add)
    for (int row = 0; row < kRows; ++row)
      for (int column = 0; tile.out[row] && column < tile.columns; ++column)
        acc[row][column / lanes][column % lanes] = static_cast<Real>(tile.out[row][column]);
  for (int64_t k = 0; k < tile.depth; ++k) {
    const Vector* b = reinterpret_cast<const Vector*>(tile.panel + k * kColumns<Real>);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Real a = tile.rows[row][k];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[row][v] += a * b[v];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    if (!tile.out[row]) continue;
    for (int column = 0; column < tile.columns; ++column) {
      const double sum = acc[row][column / lanes][column % lanes];
      tile.out[row][column] = !goes_on && tile.add ? tile.out[row][column] + sum : sum;
    }
  }
}

template <typename Real>
using TileFn = void (*)(const Tile<Real>&);
template <typename Real>
void run_tile_plain(const Tile<Real>& tile) {
  run_tile(tile);
}
#if defined(__x86_64__)
template <typename Real>
[[gnu::target("avx2,fma")]] void run_tile_avx2(const Tile<Real>& tile) {
  run_tile(tile);
}
template <typename Real>
[[gnu::target("avx512f,fma,prefer-vector-width=512")]] void run_tile_avx512(
    const Tile<Real>& tile) {
  run_tile(tile);
}
#endif

template <typename Real>
TileFn<Real> choose_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return run_tile_avx512<Real>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_tile_avx2<Real>;
#endif
  return run_tile_plain<Real>;
}

/// To the nearest number of 10 bits of mantissa, halves away from zero, as tensor cores' operands.
float round_to_tf32(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (~bits & 0x7f800000u) bits += 0x1000u;  // finite
  return std::bit_cast<float>(bits & ~0x1fffu);
}

/// What a product multiplies.
template <typename Real>
Real operand(double value, Sums sums) {
  const Real rounded = static_cast<Real>(value);
  return sums == Sums::kTf32 ? static_cast<Real>(round_to_tf32(static_cast<float>(rounded)))
                             : rounded;
}

/// panel[depth, kColumns] = b[depth, columns], zeros behind.
template <typename Real>
void pack(const double* b, int64_t stride, int64_t depth, int columns, Sums sums, Real* panel) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int column = 0; column < kColumns<Real>; ++column)
      panel[k * kColumns<Real> + column] =
          column < columns ? operand<Real>(b[k * stride + column], sums) : 0;
  }
}

template <typename Real>
void gemm_in(int64_t m, int64_t n, int64_t k, const Real* a, int64_t a_stride, const double* b,
             int64_t b_stride, double* c, int64_t c_stride, Sums sums) {
  static const TileFn<Real> tile_fn = choose_tile<Real>();
  constexpr int wide = kColumns<Real>;
  const int64_t block = kPanels * wide;
  const int64_t widest = std::min(block, (n + wide - 1) / wide * wide);
  std::vector<Line> storage(std::min(k, kDepth) * widest / kLanes<Real>);
  Real* packed = reinterpret_cast<Real*>(storage.data());
  for (int64_t column0 = 0; column0 < n; column0 += block) {
    const int64_t columns = std::min(block, n - column0);
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, k - k0);
      for (int64_t column = 0; column < columns; column += wide) {
        pack(b + k0 * b_stride + column0 + column, b_stride, depth,
             static_cast<int>(std::min<int64_t>(wide, columns - column)), sums,
             packed + column * depth);
      }
      for (int64_t row0 = 0; row0 < m; row0 += kRows) {
        Tile<Real> tile{};
        tile.depth = depth;
        tile.add = k0 > 0;
        for (int64_t column = 0; column < columns; column += wide) {
          for (int row = 0; row < kRows;
               ++row) {  // rows past the end read the last one and store nothing
            const bool inside = row0 + row < m;
            const int64_t at = inside ? row0 + row : m - 1;
            tile.rows[row] = a + at * a_stride + k0;
            tile.out[row] = inside ? c + at * c_stride + column0 + column : nullptr;
          }
          tile.panel = packed + column * depth;
          tile.columns = static_cast<int>(std::min<int64_t>(wide, columns - column));
          tile_fn(tile);
        }
      }
    }
  }
}

int64_t thread_count() {
  static const int64_t count = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  return count;
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride, const double* b,
          int64_t b_stride, double* c, int64_t c_stride, Sums sums) {
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * c_stride, n, 0.0);
    return;
  }
  if (sums == Sums::kDouble)
    return gemm_in<double>(m, n, k, a, a_stride, b, b_stride, c, c_stride, sums);
  std::vector<float> left(m * k);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t at = 0; at < k; ++at)
      left[row * k + at] = operand<float>(a[row * a_stride + at], sums);
  gemm_in<float>(m, n, k, left.data(), k, b, b_stride, c, c_stride, sums);
}

void gemm_on_threads(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride,
                     const double* b, int64_t b_stride, double* c, int64_t c_stride, Sums sums) {
  constexpr double kWorthAThread = 1 << 18;  // multiply-adds; starting a thread costs about as much
  const double work = static_cast<double>(std::max<int64_t>(k, 1));
  if (m >= n) {
    const auto grain = static_cast<int64_t>(kWorthAThread /
                                            (work * static_cast<double>(std::max<int64_t>(n, 1)))) +
                       kRows;
    parallel_for(m, grain, [&](int64_t begin, int64_t end) {
      gemm(end - begin, n, k, a + begin * a_stride, a_stride, b, b_stride, c + begin * c_stride,
           c_stride, sums);
    });
  } else {
    const auto grain = static_cast<int64_t>(kWorthAThread /
                                            (work * static_cast<double>(std::max<int64_t>(m, 1)))) +
                       kColumns<double>;
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      gemm(m, end - begin, k, a, a_stride, b + begin, b_stride, c + begin, c_stride, sums);
    });
  }
}

void parallel_for(int64_t count, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body) {
  if (count <= 0) return;
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, thread_count());
  if (parts == 1) return body(0, count);
  std::exception_ptr failure;
  std::mutex mutex;  // guards failure
  auto run = [&](int64_t part) {
    try {
      body(count * part / parts, count * (part + 1) / parts);
    } catch (...) {
      std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < parts; ++part) threads.emplace_back(run, part);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

std::vector<double> transposed(const double* from, int64_t m, int64_t n) {
  constexpr int64_t kBlock = 16;
  std::vector<double> to(m * n);
  for (int64_t row0 = 0; row0 < m; row0 += kBlock)
    for (int64_t column0 = 0; column0 < n; column0 += kBlock)
      for (int64_t row = row0; row < std::min(m, row0 + kBlock); ++row)
        for (int64_t column = column0; column < std::min(n, column0 + kBlock); ++column)
          to[column * m + row] = from[row * n + column];
  return to;
}

}  // namespace obelisk::ops
