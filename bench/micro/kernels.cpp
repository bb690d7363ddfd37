/// bench/micro/kernels.cpp — GFLOP/s of the CPU's compute tiles, on demand: it answers a line of
/// standard input with a number.
///
///   gemm THREADS SECONDS M N K
///   conv THREADS SECONDS SIZE IN OUT KERNEL STRIDE PAD          SIZE x SIZE pixels
///   attention THREADS SECONDS HEADS QUERIES KEYS SIZE
///
/// Threads take tile after tile, as those of ONNX Runtime do; the helper spins, so that no
/// wake-up time is counted. The number is that of the median run. against_mlas.py asks it in turns
/// with MLAS.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernels.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Buffer {
  explicit Buffer(int64_t bytes) : data(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {
    float* values = static_cast<float*>(data);
    for (int64_t i = 0; i < bytes / 4; ++i)
      values[i] = static_cast<float>(i * 2654435761u >> 24 & 255) / 128 - 1;
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  operator float*() { return static_cast<float*>(data); }
  void* data;
};

class Pair {
 public:
  Pair()
      : helper_([this] {
          for (int seen = 0;;) {
            wait([&] { return turn_.load(std::memory_order_acquire) != seen; });
            ++seen;
            if (!work_) return;
            work_(1);
            done_.store(seen, std::memory_order_release);
          }
        }) {}
  ~Pair() {
    work_ = nullptr;
    turn_.fetch_add(1, std::memory_order_release);
    helper_.join();
  }
  void run(const std::function<void(int)>& work) {
    work_ = work;
    const int turn = turn_.fetch_add(1, std::memory_order_release) + 1;
    work(0);
    wait([&] { return done_.load(std::memory_order_acquire) == turn; });
  }

 private:
  /// Spins, and lets others run when it takes long.
  template <typename Done>
  static void wait(Done done) {
    for (int i = 0; !done(); ++i) i < 20000 ? __builtin_ia32_pause() : std::this_thread::yield();
  }
  std::function<void(int)> work_;
  std::atomic<int> turn_{0}, done_{0};
  std::thread helper_;
};

/// Runs tasks [0, count), a free thread takes the next, again and again; seconds of the fastest
/// round.
double least_seconds(int threads, double seconds, int64_t count,
                     const std::function<void(int, int64_t)>& task) {
  std::atomic<int64_t> next{0};
  const std::function<void(int)> share = [&](int thread) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(thread, i);
  };
  Pair* pair = threads > 1 ? new Pair : nullptr;
  std::vector<double> times;
  const auto stop = Clock::now() + std::chrono::duration<double>(seconds);
  for (int round = 0; round < 8 || Clock::now() < stop; ++round) {
    next = 0;
    const auto begin = Clock::now();
    if (pair)
      pair->run(share);
    else
      share(0);
    if (round >= 3) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  delete pair;
  return *std::min_element(times.begin(), times.end());
}

double gemm(int threads, double seconds, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kRows = 64, kColumns = 192;
  Buffer a(m * k * 4), b(k * n * 4), c(m * n * 4), packed(obk_gemm_packed_bytes(kObkF32, n, k));
  obk_gemm_pack(kObkF32, n, k, b, n, 1, nullptr, 0, packed);
  const int64_t columns = n < 1024 ? 64 : kColumns, wide = (n + columns - 1) / columns;
  const int64_t rows = m <= 96 ? m : kRows;
  const int64_t high = (m + rows - 1) / rows;
  const double time = least_seconds(threads, seconds, wide * high, [&](int, int64_t i) {
    const int64_t column = i / high * columns, row = i % high * rows;
    ObkGemm tile{};
    tile.a_type = tile.b_type = kObkF32, tile.packed = 1;
    tile.m = std::min(rows, m - row), tile.n = std::min(columns, n - column), tile.k = k;
    tile.a = a + row * k, tile.a_row = k, tile.a_col = 1;
    tile.b = packed.data, tile.column = column, tile.n_packed = n;
    tile.c = c + row * n + column, tile.c_row = n;
    obk_gemm_tile(&tile);
  });
  return 2e-9 * m * n * k / time;
}

double conv(int threads, double seconds, int64_t size, int64_t in, int64_t out, int64_t kernel,
            int64_t stride, int64_t pad) {
  const int64_t out_size = (size + 2 * pad - kernel) / stride + 1;
  Buffer x(size * size * in * 4), w(out * in * kernel * kernel * 4),
      y(out_size * out_size * out * 4);
  Buffer packed(obk_conv_packed_bytes(out, in, kernel, kernel));
  obk_conv_pack(kObkF32, out, in, kernel, kernel, w, in * kernel * kernel, kernel * kernel, kernel,
                1, packed);
  // Input rows of half an L2, at most a quarter of the map where that leaves work for both threads.
  const int64_t panels = (out + kObkPanel - 1) / kObkPanel;
  int64_t rows = std::clamp<int64_t>((int64_t{1} << 17) / (size * in * stride), 1, out_size);
  if (panels == 1) rows = std::min(rows, (out_size + 3) / 4);
  const int64_t high = (out_size + rows - 1) / rows;
  const int64_t wide = panels <= 4 && high > 1 ? 1 : panels;
  ObkConv tile{};
  tile.type = kObkF32, tile.height = tile.width = size, tile.in_channels = in,
  tile.out_channels = out;
  tile.kernel_h = tile.kernel_w = kernel, tile.stride_h = tile.stride_w = stride,
  tile.dilation_h = tile.dilation_w = 1;
  tile.pad_top = tile.pad_left = pad, tile.out_width = out_size, tile.rows = rows,
  tile.multiplier = 1;
  tile.x = x, tile.x_pixel = in, tile.x_row = size * in, tile.weights = packed.data;
  tile.y_pixel = out, tile.y_row = out_size * out;
  tile.row = 1;
  Buffer scratch(threads * (obk_conv_scratch_bytes(&tile) + size * in * 16 * (kernel + 1)));
  const double time = least_seconds(threads, seconds, wide * high, [&](int thread, int64_t i) {
    ObkConv part = tile;
    part.row = i % high * rows, part.rows = std::min(rows, out_size - part.row);
    part.channel = wide == 1 ? 0 : i / high * kObkPanel;
    part.channels = wide == 1 ? out : std::min<int64_t>(kObkPanel, out - part.channel);
    part.y = y + part.row * part.y_row + part.channel;
    part.scratch =
        static_cast<char*>(scratch.data) +
        thread * (obk_conv_scratch_bytes(&tile) + size * in * 16 * (kernel + 1)) / 64 * 64;
    obk_conv_tile(&part);
  });
  return 2e-9 * out_size * out_size * out * in * kernel * kernel / time;
}

double attention(int threads, double seconds, int64_t heads, int64_t queries, int64_t keys,
                 int64_t size) {
  constexpr int64_t kQueries = 64;
  Buffer q(queries * heads * size * 4), k(keys * heads * size * 4), v(keys * heads * size * 4),
      y(queries * heads * size * 4);
  ObkAttention tile{};
  tile.type = kObkF32, tile.queries = std::min(kQueries, queries), tile.keys = keys,
  tile.size = tile.value_size = size;
  tile.q_row = tile.k_row = tile.v_row = tile.y_row = heads * size, tile.scale = 0.1f;
  const int64_t bytes = obk_attention_scratch_bytes(&tile) / 64 * 64 + 64;
  Buffer scratch(threads * bytes);
  const int64_t high = (queries + kQueries - 1) / kQueries;
  const double time = least_seconds(threads, seconds, heads * high, [&](int thread, int64_t i) {
    ObkAttention part = tile;
    const int64_t head = i / high, query = i % high * kQueries;
    part.queries = std::min(kQueries, queries - query);
    part.q = q + query * part.q_row + head * size, part.k = k + head * size,
    part.v = v + head * size;
    part.y = y + query * part.y_row + head * size;
    part.scratch = static_cast<char*>(scratch.data) + thread * bytes;
    obk_attention_tile(&part);
  });
  return 4e-9 * heads * queries * keys * size / time;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string what;
    int threads = 1;
    double seconds = 0.1;
    in >> what >> threads >> seconds;
    int64_t n[6] = {};
    for (int64_t& value : n) in >> value;
    double gflops = 0;
    if (what == "gemm") gflops = gemm(threads, seconds, n[0], n[1], n[2]);
    if (what == "conv") gflops = conv(threads, seconds, n[0], n[1], n[2], n[3], n[4], n[5]);
    if (what == "attention") gflops = attention(threads, seconds, n[0], n[1], n[2], n[3]);
    std::printf("%.2f\n", gflops);
    std::fflush(stdout);
  }
}
