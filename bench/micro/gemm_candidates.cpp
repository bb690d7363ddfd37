/// bench/micro/gemm_candidates.cpp — which library should cut our CPU tiles? GFLOP/s of each on the
/// shapes that networks use.
///
///   gemm_candidates [seconds per cell = 0.2]
///
/// libxsmm runs as we would use it: weights packed ahead into panels, one call per (row tile,
/// panel), a thread per half of the panels. oneDNN runs its own matmul primitive with weights in
/// the format it takes. BLIS and OpenBLAS are opened at run time (OBELISK_BLIS, OBELISK_OPENBLAS
/// name the libraries) and multiply plain row-major matrices, for they have no packed form. Each
/// number is the median of the repeats.
#include <dlfcn.h>
#include <libxsmm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#ifdef OBELISK_HAS_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace {

using Clock = std::chrono::steady_clock;
double seconds_per_cell = 0.2;

struct Problem {
  int m, n, k;
};
const Problem kProblems[] = {{128, 384, 384}, {128, 1536, 384}, {128, 384, 1536}, {128, 2304, 768},
                             {128, 768, 768}, {128, 3072, 768}, {128, 768, 3072}, {197, 2304, 768},
                             {197, 768, 768}, {197, 3072, 768}, {197, 768, 3072}, {1, 400, 624},
                             {8, 400, 624},   {39, 400, 624},   {39, 400, 400},   {512, 512, 512}};

float* floats(size_t count) {
  auto* data = static_cast<float*>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64));
  for (size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 24) - 128) / 128;
  return data;
}

double best_gflops(const Problem& p, const std::function<void()>& run) {
  run();
  std::vector<double> times;
  const auto stop = Clock::now() + std::chrono::duration<double>(seconds_per_cell);
  while (Clock::now() < stop || times.size() < 5) {
    const auto begin = Clock::now();
    run();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return 2.0 * p.m * p.n * p.k / *std::min_element(times.begin(), times.end()) * 1e-9;
}

/// One helper thread, ready before it is needed, so that two-thread numbers hold no wake-up time.
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

double xsmm(const Problem& p, int panel, int k_block, int m_tile, int threads) {
  float *a = floats(size_t(p.m) * p.k), *b = floats(size_t(p.k) * (p.n + panel)),
        *c = floats(size_t(p.m) * p.n);
  const int panels = (p.n + panel - 1) / panel;
  struct Kernel {
    libxsmm_smmfunction_reducebatch_strd full;
    libxsmm_smmfunction rest;
  };
  const int blocks = p.k / k_block, rest = p.k % k_block;
  auto make = [&](int rows, int columns) {
    Kernel kernel{};
    const int lda = panel, ldb = p.k, ldc = p.n;
    float one = 1, zero = 0;
    int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    if (blocks)
      kernel.full = libxsmm_smmdispatch_reducebatch_strd(
          columns, rows, k_block, k_block * panel * 4, k_block * 4, &lda, &ldb, &ldc, &one, &zero,
          &flags, &prefetch);
    if (rest)
      kernel.rest = libxsmm_smmdispatch(columns, rows, rest, &lda, &ldb, &ldc, &one,
                                        blocks ? &one : &zero, &flags, &prefetch);
    return kernel;
  };
  Kernel kernels[2][2];
  const int tail_rows = p.m % m_tile, tail_columns = p.n % panel;
  kernels[0][0] = make(std::min(m_tile, p.m), std::min(panel, p.n));
  if (tail_rows) kernels[1][0] = make(tail_rows, std::min(panel, p.n));
  if (tail_columns) kernels[0][1] = make(std::min(m_tile, p.m), tail_columns);
  if (tail_rows && tail_columns) kernels[1][1] = make(tail_rows, tail_columns);
  auto half = [&](int thread) {
    const int begin = panels * thread / threads, end = panels * (thread + 1) / threads;
    for (int row = 0; row < p.m; row += m_tile) {
      for (int q = begin; q < end; ++q) {
        const Kernel& kernel = kernels[row + m_tile > p.m][(q + 1) * panel > p.n];
        const float* packed = b + size_t(q) * panel * p.k;
        unsigned long long count = blocks;
        if (blocks)
          kernel.full(packed, a + size_t(row) * p.k, c + size_t(row) * p.n + q * panel, &count);
        if (rest)
          kernel.rest(packed + size_t(blocks) * k_block * panel,
                      a + size_t(row) * p.k + blocks * k_block, c + size_t(row) * p.n + q * panel,
                      nullptr, nullptr, nullptr);
      }
    }
  };
  double result;
  if (threads == 1) {
    result = best_gflops(p, [&] { half(0); });
  } else {
    Pair pair;
    const std::function<void(int)> work = half;
    result = best_gflops(p, [&] { pair.run(work); });
  }
  free(a), free(b), free(c);
  return result;
}

using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);

double blas(const Problem& p, CblasSgemm sgemm) {
  float *a = floats(size_t(p.m) * p.k), *b = floats(size_t(p.k) * p.n),
        *c = floats(size_t(p.m) * p.n);
  const double result =
      best_gflops(p, [&] { sgemm(101, 111, 111, p.m, p.n, p.k, 1, a, p.k, b, p.n, 0, c, p.n); });
  free(a), free(b), free(c);
  return result;
}

#ifdef OBELISK_HAS_ONEDNN
double onednn(const Problem& p) {
  using namespace dnnl;
  static engine cpu(engine::kind::cpu, 0);
  static stream queue(cpu);
  using Tag = memory::format_tag;
  const auto f32 = memory::data_type::f32;
  const memory::desc a({p.m, p.k}, f32, Tag::ab), any({p.k, p.n}, f32, Tag::any),
      c({p.m, p.n}, f32, Tag::ab);
#if DNNL_VERSION_MAJOR < 3
  const matmul::primitive_desc plan(matmul::desc(a, any, c), cpu);
#else
  const matmul::primitive_desc plan(cpu, a, any, c);
#endif
  memory a_memory(a, cpu), b_memory(plan.weights_desc(), cpu), c_memory(c, cpu);
  const matmul product(plan);
  return best_gflops(p, [&] {
    product.execute(
        queue, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    queue.wait();
  });
}
#endif

void print(const Problem& p, int threads, const char* name, double gflops) {
  std::printf("%4d %5d %5d  %d  %-22s %7.1f\n", p.m, p.n, p.k, threads, name, gflops);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) seconds_per_cell = std::atof(argv[1]);
  libxsmm_init();
  struct Blas {
    const char *name, *variable, *set_threads;
    CblasSgemm sgemm;
    void (*threads)(long);
  };
  Blas libraries[] = {
      {"blis", "OBELISK_BLIS", "bli_thread_set_num_threads", nullptr, nullptr},
      {"openblas", "OBELISK_OPENBLAS", "openblas_set_num_threads", nullptr, nullptr}};
  for (Blas& library : libraries) {
    const char* path = std::getenv(library.variable);
    void* handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!handle) continue;
    library.sgemm = reinterpret_cast<CblasSgemm>(dlsym(handle, "cblas_sgemm"));
    library.threads = reinterpret_cast<void (*)(long)>(dlsym(handle, library.set_threads));
  }
  struct Setting {
    int panel, k_block, m_tile;
  };
  const Setting settings[] = {{64, 4096, 48}, {64, 64, 48},  {64, 128, 48}, {64, 256, 48},
                              {64, 128, 24},  {64, 128, 96}, {48, 128, 48}, {32, 256, 48}};
  std::printf("   m     n     k  t  candidate              GFLOP/s\n");
  for (const Problem& p : kProblems) {
    for (int threads : {1, 2}) {
      for (const Setting& s : settings) {
        const std::string name = "xsmm n" + std::to_string(s.panel) + " k" +
                                 std::to_string(s.k_block) + " m" + std::to_string(s.m_tile);
        print(p, threads, name.c_str(),
              xsmm(p, s.panel, std::min(s.k_block, p.k), s.m_tile, threads));
      }
      for (Blas& library : libraries) {
        if (!library.sgemm) continue;
        if (library.threads) library.threads(threads);
        print(p, threads, library.name, blas(p, library.sgemm));
      }
#ifdef OBELISK_HAS_ONEDNN  // its own OpenMP threads
      omp_set_num_threads(threads);
      print(p, threads, "onednn", onednn(p));
#endif
    }
  }
}
