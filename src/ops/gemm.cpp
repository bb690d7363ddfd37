#include "ops/gemm.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

// The inner kernel is written once with vectors of constant length and compiled for three
// instruction sets; the widest that the machine has is chosen when running. (A plain
// `target_clones` would do the same through an indirect function, whose resolver runs before a
// sanitizer is ready.)
namespace obelisk::ops {
namespace {

constexpr int kRows = 4, kColumns = 16;  // of the tile held in registers: 8 vectors of 8 doubles
constexpr int64_t kDepth = 256;          // of a packed panel: 16 columns of it are 32 KiB
constexpr int64_t kPanels = 32;          // packed at a time, 1 MiB: stays in the second-level cache

struct Tile {
  const double* rows[kRows];  // of a, at the first k of the panel
  const double* panel;        // [depth, kColumns]
  int64_t depth;
  double* out[kRows];
  int columns;  // stored, <= kColumns
  bool add;     // to what out holds
};

using Vector = double
    __attribute__((vector_size(64), may_alias));  // two or four registers where they are narrower
constexpr int kVectors = kColumns / 8;
struct alignas(64) Line {  // what a vector is loaded from
  double at[8];
};

[[gnu::always_inline]] inline void run_tile(const Tile& tile) {
  Vector acc[kRows][kVectors] = {};
  for (int64_t k = 0; k < tile.depth; ++k) {
    const Vector* b = reinterpret_cast<const Vector*>(tile.panel + k * kColumns);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const double a = tile.rows[row][k];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[row][v] += a * b[v];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    if (!tile.out[row]) continue;
    for (int column = 0; column < tile.columns; ++column) {
      const double sum = acc[row][column / 8][column % 8];
      tile.out[row][column] = tile.add ? tile.out[row][column] + sum : sum;
    }
  }
}

using TileFn = void (*)(const Tile&);
void run_tile_plain(const Tile& tile) { run_tile(tile); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void run_tile_avx2(const Tile& tile) { run_tile(tile); }
[[gnu::target("avx512f,fma,prefer-vector-width=512")]] void run_tile_avx512(const Tile& tile) {
  run_tile(tile);
}
#endif

TileFn choose_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return run_tile_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_tile_avx2;
#endif
  return run_tile_plain;
}

/// panel[depth, kColumns] = b[depth, columns], zeros behind.
void pack(const double* b, int64_t stride, int64_t depth, int columns, double* panel) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int column = 0; column < kColumns; ++column)
      panel[k * kColumns + column] = column < columns ? b[k * stride + column] : 0;
  }
}

int64_t thread_count() {
  static const int64_t count = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  return count;
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride, const double* b,
          int64_t b_stride, double* c, int64_t c_stride) {
  static const TileFn tile_fn = choose_tile();
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * c_stride, n, 0.0);
    return;
  }
  const int64_t block = kPanels * kColumns;
  const int64_t widest = std::min(block, (n + kColumns - 1) / kColumns * kColumns);
  std::vector<Line> storage(std::min(k, kDepth) * widest / 8);
  double* packed = storage.data()->at;
  for (int64_t column0 = 0; column0 < n; column0 += block) {
    const int64_t columns = std::min(block, n - column0);
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, k - k0);
      for (int64_t column = 0; column < columns; column += kColumns) {
        pack(b + k0 * b_stride + column0 + column, b_stride, depth,
             static_cast<int>(std::min<int64_t>(kColumns, columns - column)),
             packed + column * depth);
      }
      for (int64_t row0 = 0; row0 < m; row0 += kRows) {
        Tile tile{};
        tile.depth = depth;
        tile.add = k0 > 0;
        for (int64_t column = 0; column < columns; column += kColumns) {
          for (int row = 0; row < kRows;
               ++row) {  // rows past the end read the last one and store nothing
            const bool inside = row0 + row < m;
            const int64_t at = inside ? row0 + row : m - 1;
            tile.rows[row] = a + at * a_stride + k0;
            tile.out[row] = inside ? c + at * c_stride + column0 + column : nullptr;
          }
          tile.panel = packed + column * depth;
          tile.columns = static_cast<int>(std::min<int64_t>(kColumns, columns - column));
          tile_fn(tile);
        }
      }
    }
  }
}

void gemm_on_threads(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_stride,
                     const double* b, int64_t b_stride, double* c, int64_t c_stride) {
  constexpr double kWorthAThread = 1 << 18;  // multiply-adds; starting a thread costs about as much
  const double work = static_cast<double>(std::max<int64_t>(k, 1));
  if (m >= n) {
    const auto grain = static_cast<int64_t>(kWorthAThread /
                                            (work * static_cast<double>(std::max<int64_t>(n, 1)))) +
                       kRows;
    parallel_for(m, grain, [&](int64_t begin, int64_t end) {
      gemm(end - begin, n, k, a + begin * a_stride, a_stride, b, b_stride, c + begin * c_stride,
           c_stride);
    });
  } else {
    const auto grain = static_cast<int64_t>(kWorthAThread /
                                            (work * static_cast<double>(std::max<int64_t>(m, 1)))) +
                       kColumns;
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      gemm(m, end - begin, k, a, a_stride, b + begin, b_stride, c + begin, c_stride);
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
