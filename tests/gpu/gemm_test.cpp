// Product tiles on the GPU against sums in double: types, tails, strides, alignments, operands in
// shared memory, packed and plain, with and without the ring of weights; the same bits whatever the
// cut; the ring across barriers under load; chains of phases, timed. Without a GPU they are only
// compiled. OBELISK_GPU_PHASES sets the phases of the stress test.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <sstream>

#include "device.h"
#include "kernels/cuda/gemm/gemm.h"
#include "tf32.h"

namespace obelisk::runtime::cuda {
namespace {

constexpr const char* kText = R"cu(
#include "gemm/gemm.cuh"

struct Job {
  ObkGemm g;          /* c: the place in global memory */
  const char* weights; /* to request ahead, or null */
  int32_t groups, chunks;
  int32_t flags;      /* 1: through shared memory, 2: A staged in shared memory, 4: compare */
  int32_t wave;
};

#if OBK_TYPE == 0
typedef double Sum;
#elif OBK_TYPE == 13 || OBK_TYPE == 19
typedef int32_t Sum;
#else
typedef float Sum;
#endif
#if OBK_TYPE == 0
typedef double In;
#elif OBK_TYPE == 1 || OBK_TYPE == 64
typedef float In;
#elif OBK_TYPE == 13 || OBK_TYPE == 19
typedef int8_t In;
#else
typedef uint16_t In;
#endif

/* CTA s runs jobs first[s] .. first[s + 1], `repeats` times, a barrier between waves. */
extern "C" __global__ void __launch_bounds__(256, 1)
    run_jobs(const Job* jobs, const int* first, int repeats, int waves, uint64_t* counter, int pages,
             int c_bytes, int a_bytes, unsigned long long* wrong, ObkWatch* watch) {
  extern __shared__ __align__(1024) char shared[];
  ObkLanes lanes = {};
  ObkLanes* w = &lanes;
  const int ring_bytes = pages * obk::WeightPages::kPageBytes;
  char* c_at = shared + ring_bytes + 128;
  char* a_at = c_at + c_bytes;
  w->scratch = a_at + a_bytes;
  obk::ring_start(obk::shared_address(shared), obk::shared_address(shared + ring_bytes), pages,
                  watch, blockIdx.x);
  obk::GridBarrier barrier(counter, gridDim.x, watch, blockIdx.x);
  unsigned bad = 0;
  int wave = 0;
  const int begin = first[blockIdx.x], end = first[blockIdx.x + 1];
  auto ahead = [&](int next) {
    if (begin == end) return; /* a CTA without jobs */
    const Job& j = jobs[next < end ? next : begin];
    if (j.weights) obk::ring_load_ahead(obk::WeightPages::of_tile(j.weights, j.groups, j.chunks));
  };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (int at = begin; at < end; ++at) {
      const Job& j = jobs[at];
      if (threadIdx.x == 0) obk::ring_state().dog.task = at;
      while (wave < repeat * waves + j.wave) {
        barrier.arrive();
        ahead(at);
        barrier.wait();
        ++wave;
      }
      ObkGemm g = j.g;
      Sum* to = (Sum*)g.c;
      const int64_t pitch = g.c_row;
      g.scratch = w->scratch;
      if (j.flags & 2) {
        In* a = (In*)a_at;
        const int64_t row = g.k + 8 & ~7;
        for (int64_t i = threadIdx.x; i < g.m * g.k; i += 256)
          a[i / g.k * row + i % g.k] = ((const In*)g.a)[i / g.k * g.a_row + i % g.k * g.a_col];
        g.a = a, g.a_row = row, g.a_col = 1;
      }
      if (j.flags & 1) {
        g.c = c_at, g.c_row = (g.n + 15) / 16 * 16 + 4;
        if (g.accumulate) {
          for (int64_t i = threadIdx.x; i < g.m * g.n; i += 256)
            ((Sum*)g.c)[i / g.n * g.c_row + i % g.n] = to[i / g.n * pitch + i % g.n];
          __syncthreads();
        }
      }
      OBK_GEMM_TILE(OBK_TYPE, g);
      if (j.flags & 1) {
        for (int64_t i = threadIdx.x; i < g.m * g.n; i += 256) {
          const Sum v = ((Sum*)g.c)[i / g.n * g.c_row + i % g.n];
          Sum* place = to + i / g.n * pitch + i % g.n;
          if (j.flags & 4)
            bad += *place != v;
          else
            *place = v;
        }
      }
      __syncthreads();
      if (at + 1 < end && jobs[at + 1].wave == j.wave) ahead(at + 1);
      __syncthreads();
    }
    while (wave < (repeat + 1) * waves) {
      barrier.arrive();
      if (repeat + 1 < repeats) ahead(begin);
      barrier.wait();
      ++wave;
    }
  }
  obk::ring_finish();
  if (bad) atomicAdd(wrong, (unsigned long long)bad);
}

#if defined OBK_CHAIN && (OBK_TYPE == 2 || OBK_TYPE == 3)
#if OBK_TYPE == 3
#define NARROW obk::narrow_bf16_bits
#else
#define NARROW obk::narrow_f16_bits
#endif
#define TILE_OF(...) OBK_GEMM_TILE_OF(__VA_ARGS__)
/* Phase p: y[p] = x W[p % layers]^T, where x is the first k columns of y[p - 1]. One tile a CTA. */
extern "C" __global__ void __launch_bounds__(256, 1)
    chain(uint64_t* counter, const char* weights, int64_t layer_bytes, const uint16_t* input,
          uint16_t* outputs, int tokens, int n, int k, int tile_rows, int tile_columns, int layers,
          int phases, int keep, int pages, int ahead, ObkWatch* watch) {
  extern __shared__ __align__(1024) char shared[];
  ObkLanes lanes = {};
  ObkLanes* w = &lanes;
  const int ring_bytes = pages * obk::WeightPages::kPageBytes;
  const int c_row = (tile_columns + 15) / 16 * 16 + 4;
  float* c = (float*)(shared + ring_bytes + 128);
  w->scratch = c + tile_rows * c_row;
  obk::ring_start(obk::shared_address(shared), obk::shared_address(shared + ring_bytes), pages,
                  watch, blockIdx.x);
  obk::GridBarrier barrier(counter, gridDim.x, watch, blockIdx.x);
  const int across = (n + tile_columns - 1) / tile_columns;
  const int column = blockIdx.x % across * tile_columns, row = blockIdx.x / across * tile_rows;
  const bool mine = row < tokens;
  const int rows = min(tile_rows, tokens - row), columns = min(tile_columns, n - column);
  obk::WeightPages own;
  own.pitch = (columns + 15) / 16 * 2;
  own.groups = min(own.pitch, (int)gemm_pass_columns(rows) / 8);
  own.chunks = (k + 63) / 64;
  for (int p = 0; p < phases; ++p) {
    const char* layer = weights + (int64_t)(p % layers) * layer_bytes;
    if (mine) {
      ObkGemm g = {};
      g.a_type = g.b_type = OBK_TYPE, g.packed = 1;
      g.m = rows, g.n = columns, g.k = k;
      g.a_row = n, g.a_col = 1;
      g.a = (p == 0 ? input : outputs + (int64_t)((p - 1) % keep) * tokens * n) + row * g.a_row;
      g.b = layer, g.column = column, g.n_packed = n;
      g.c = c, g.c_row = c_row, g.scratch = w->scratch;
#ifdef OBK_SHAPE
      TILE_OF(OBK_TYPE, g, false, OBK_SHAPE);
#else
      OBK_GEMM_TILE(OBK_TYPE, g);
#endif
      uint16_t* y = outputs + (int64_t)(p % keep) * tokens * n + (int64_t)row * n + column;
      const int packs = (columns & 7) == 0 && (n & 7) == 0 ? columns / 8 : 0;
      for (int i = threadIdx.x; i < rows * packs; i += 256) { /* as a good epilogue does */
        const float4* from = (const float4*)(c + i / packs * c_row + i % packs * 8);
        const float4 u = from[0], v = from[1];
        uint4 o;
        o.x = obk::narrow_two<OBK_TYPE == 3>(u.x, u.y), o.y = obk::narrow_two<OBK_TYPE == 3>(u.z, u.w);
        o.z = obk::narrow_two<OBK_TYPE == 3>(v.x, v.y), o.w = obk::narrow_two<OBK_TYPE == 3>(v.z, v.w);
        *(uint4*)(y + (int64_t)(i / packs) * n + i % packs * 8) = o;
      }
      if (!packs)
        for (int i = threadIdx.x; i < rows * columns; i += 256)
          y[(int64_t)(i / columns) * n + i % columns] = NARROW(c[i / columns * c_row + i % columns]);
    }
    if (p + 1 == phases) break;
    barrier.arrive();
    if (mine && ahead) {
      own.from = weights + (int64_t)((p + 1) % layers) * layer_bytes +
                 (int64_t)column / 8 * own.chunks * 1024;
      obk::ring_load_ahead(own);
    }
    barrier.wait();
  }
  obk::ring_finish();
}
#endif
)cu";

enum Kind { kPacked, kPlainN, kPlainK, kPlainOdd };

/// One product, and a way to cut it into tiles. Variants of one product must give equal bits.
struct Product {
  int64_t m, n, k;
  int product;  // variants of the same one share data and reference
  Kind kind = kPacked;
  int64_t rows = 64, columns = 48;  // of a tile
  int64_t a_pad = 0, a_shift = 0;   // elements
  bool a_transposed = false, a_staged = false, c_shared = true, accumulate = false, ahead = true;
  int wave = 0;
};

bool whole(int type) { return type == kObkI8 || type == kObkU8; }
int64_t width(int type) {
  return type == kObkF64 ? 8 : OBK_LIES_AS_F32(type) ? 4 : type <= 3 ? 2 : 1;
}

void put(int type, std::vector<char>& to, int64_t index, double v) {
  char* at = to.data() + index * width(type);
  auto copy = [&](auto value) { memcpy(at, &value, sizeof value); };
  if (type == kObkF64) copy(v);
  if (type == kObkF32) copy(static_cast<float>(v));
  if (type == kObkTf32) copy(near_tf32(v, index));
  if (type == kObkF16) copy(float_to_f16(static_cast<float>(v)));
  if (type == kObkBf16) copy(float_to_bf16(static_cast<float>(v)));
  if (type == kObkI8) copy(static_cast<int8_t>(v));
  if (type == kObkU8) copy(static_cast<uint8_t>(v));
}
double get(int type, const std::vector<char>& from, int64_t index) {
  const char* at = from.data() + index * width(type);
  auto read = [&](auto value) {
    memcpy(&value, at, sizeof value);
    return value;
  };
  if (type == kObkF64) return read(double{});
  if (type == kObkF32) return read(float{});
  if (type == kObkTf32) return to_tf32(read(float{}));
  if (type == kObkF16) return f16_to_float(read(uint16_t{}));
  if (type == kObkBf16) return bf16_to_float(read(uint16_t{}));
  return type == kObkI8 ? read(int8_t{}) : read(uint8_t{});
}

struct Job {
  ObkGemm g;
  DevicePointer weights;
  int32_t groups, chunks, flags, wave;
};

/// Random operands of one product and its exact sums.
struct Data {
  int64_t m, n, k;
  std::vector<double> a, b, c0, sum, size;
};

Data make_data(int type, int64_t m, int64_t n, int64_t k, std::mt19937& random) {
  Data d{m, n, k, {}, {}, {}, {}, {}};
  std::uniform_real_distribution<double> value(-1, 1);
  std::vector<char> one(8);
  auto fill = [&](std::vector<double>& to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const bool whole = type == kObkI8 || type == kObkU8;
      put(type, one, 0,
          whole ? std::floor(value(random) * 100 + (type == kObkU8 ? 101 : 0)) : value(random));
      to.push_back(get(type, one, 0));
    }
  };
  fill(d.a, m * k), fill(d.b, k * n);
  for (int64_t i = 0; i < m * n; ++i) d.c0.push_back(std::floor(value(random) * 64));
  d.sum.assign(m * n, 0), d.size.assign(m * n, 0);
  for (int64_t y = 0; y < m; ++y)
    for (int64_t r = 0; r < k; ++r)
      for (int64_t x = 0; x < n; ++x) {
        const double v = d.a[y * k + r] * d.b[r * n + x];
        d.sum[y * n + x] += v, d.size[y * n + x] += std::fabs(v);
      }
  return d;
}

/// The jobs of several products on one device.
struct Jobs {
  Device& g;
  int type;
  std::mt19937 random{11};
  std::map<int, Data> data;
  std::vector<Job> jobs;
  struct Output {
    Product p;
    DevicePointer at;
    int64_t pitch;
  };
  std::vector<Output> outputs;
  int64_t c_bytes = 0, a_bytes = 0, scratch = 0;

  int64_t sum_width() const { return type == kObkF64 ? 8 : 4; }
  DevicePointer upload(const std::vector<char>& bytes, int64_t shift) {
    const DevicePointer at = g.make(bytes.size() + 64, 0x7f) + static_cast<uint64_t>(shift);
    EXPECT_EQ(g.d->CopyToDevice(at, bytes.data(), bytes.size()), 0);
    return at;
  }
  void add(const Product& p) {
    auto found = data.find(p.product);
    if (found == data.end())
      found = data.emplace(p.product, make_data(type, p.m, p.n, p.k, random)).first;
    const Data& d = found->second;
    const int64_t size = width(type);
    ObkGemm gemm = {};
    gemm.a_type = gemm.b_type = type;
    gemm.accumulate = p.accumulate;
    gemm.a_row = p.a_transposed ? 1 : p.k + p.a_pad,
    gemm.a_col = p.a_transposed ? p.m + p.a_pad : 1;
    std::vector<char> a((p.a_transposed ? p.k * gemm.a_col : p.m * gemm.a_row) * size, 0x7f);
    for (int64_t y = 0; y < p.m; ++y)
      for (int64_t r = 0; r < p.k; ++r)
        put(type, a, y * gemm.a_row + r * gemm.a_col, d.a[y * p.k + r]);
    const DevicePointer a_at = upload(a, p.a_shift * size);
    gemm.b_row = p.kind == kPlainK ? 1 : p.kind == kPlainOdd ? p.n * 2 + 3 : p.n;
    gemm.b_col = p.kind == kPlainK ? p.k : p.kind == kPlainOdd ? 2 : 1;
    std::vector<char> b(((p.k - 1) * gemm.b_row + (p.n - 1) * gemm.b_col + 1) * size, 0x7f);
    for (int64_t r = 0; r < p.k; ++r)
      for (int64_t x = 0; x < p.n; ++x)
        put(type, b, r * gemm.b_row + x * gemm.b_col, d.b[r * p.n + x]);
    if (p.kind == kPacked) {
      std::vector<char> packed(
          static_cast<size_t>(kernels::cuda_gemm_packed_bytes(type, p.n, p.k)));
      kernels::cuda_gemm_pack(type, p.n, p.k, p.columns, b.data(), gemm.b_row, gemm.b_col,
                              packed.data());
      b = std::move(packed);
      gemm.packed = 1;
    }
    const DevicePointer b_at = upload(b, 0);
    Output out{p, g.make(static_cast<size_t>(p.m * (p.n + 3) * sum_width()), 0x7b), p.n + 3};
    if (p.accumulate) {
      std::vector<char> c(static_cast<size_t>(p.m * out.pitch * sum_width()), 0x7b);
      for (int64_t y = 0; y < p.m; ++y)
        for (int64_t x = 0; x < p.n; ++x) {
          char* at = c.data() + (y * out.pitch + x) * sum_width();
          const double v = d.c0[y * p.n + x];
          const float f = static_cast<float>(v);
          const int32_t i = static_cast<int32_t>(v);
          memcpy(at,
                 sum_width() == 8 ? static_cast<const void*>(&v)
                 : whole(type)    ? static_cast<const void*>(&i)
                                  : &f,
                 static_cast<size_t>(sum_width()));
        }
      EXPECT_EQ(g.d->CopyToDevice(out.at, c.data(), c.size()), 0);
    }
    outputs.push_back(out);
    for (int64_t row = 0; row < p.m; row += p.rows)
      for (int64_t column = 0; column < p.n; column += p.columns) {
        Job job = {};
        job.g = gemm;
        job.g.m = std::min(p.rows, p.m - row), job.g.n = std::min(p.columns, p.n - column);
        job.g.k = p.k;
        job.g.a = reinterpret_cast<const void*>(a_at + row * gemm.a_row * size);
        job.g.b = reinterpret_cast<const void*>(
            p.kind == kPacked ? b_at : b_at + column * gemm.b_col * size);
        if (p.kind == kPacked) job.g.column = column, job.g.n_packed = p.n;
        job.g.c = reinterpret_cast<void*>(out.at + (row * out.pitch + column) * sum_width());
        job.g.c_row = out.pitch;
        job.flags = p.c_shared + 2 * p.a_staged;
        job.wave = p.wave;
        const kernels::WeightRange range =
            kernels::cuda_gemm_weights(type, p.n, p.k, column, column + job.g.n);
        if (p.kind == kPacked && p.ahead && range.group) {
          job.weights = b_at + static_cast<uint64_t>(range.offset);
          job.groups = static_cast<int32_t>(range.bytes / range.group);
          job.chunks = static_cast<int32_t>(range.group / 1024);
        }
        scratch = std::max(scratch, kernels::cuda_gemm_scratch_bytes(&job.g));
        if (p.c_shared)
          c_bytes = std::max(c_bytes, job.g.m * ((job.g.n + 15) / 16 * 16 + 4) * sum_width());
        if (p.a_staged) a_bytes = std::max(a_bytes, job.g.m * (p.k + 8) * size);
        jobs.push_back(job);
      }
  }
  /// Assigns the jobs to the SMs in turn and runs them. Microseconds.
  double run(int pages, int repeats, uint64_t* wrong) {
    const int sms = g.gpu.sms;
    int waves = 1;
    std::vector<std::vector<Job>> lists(sms);
    for (size_t i = 0; i < jobs.size(); ++i) {
      lists[i % sms].push_back(jobs[i]);
      waves = std::max(waves, jobs[i].wave + 1);
    }
    std::vector<Job> all;
    std::vector<int32_t> first;
    for (auto& list : lists) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Job& a, const Job& b) { return a.wave < b.wave; });
      first.push_back(static_cast<int32_t>(all.size()));
      all.insert(all.end(), list.begin(), list.end());
    }
    first.push_back(static_cast<int32_t>(all.size()));
    auto place = [&](const void* from, size_t bytes) {
      const DevicePointer at = g.make(bytes, 0);
      EXPECT_EQ(g.d->CopyToDevice(at, from, bytes), 0);
      return at;
    };
    const DevicePointer table = place(all.data(), all.size() * sizeof(Job)),
                        lists_at = place(first.data(), first.size() * 4), counter = g.make(128, 0),
                        bad = g.make(8, 0);
    const int64_t c = (c_bytes + 1023) / 1024 * 1024, a = (a_bytes + 1023) / 1024 * 1024;
    const int shared = static_cast<int>(pages * int64_t{24576} + 128 + c + a + scratch);
    EXPECT_LE(shared, g.gpu.shared_bytes);
    Handle begin = nullptr, end = nullptr;
    g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
    g.d->EventRecord(begin, nullptr);
    EXPECT_EQ(g.launch(g.function("run_jobs", shared), sms, shared, nullptr, table, lists_at,
                       repeats, waves, counter, pages, static_cast<int>(c), static_cast<int>(a),
                       bad, DevicePointer{0}),
              0);
    g.d->EventRecord(end, nullptr);
    Status done = check(g.d->CtxSynchronize(), "products");
    EXPECT_TRUE(done.ok()) << done.error().text();
    float millis = 0;
    g.d->EventElapsed(&millis, begin, end);
    if (wrong) *wrong = g.read<uint64_t>(bad);
    return millis * 1000;
  }
  /// Against the reference, and the variants of a product against each other, bit by bit.
  void check_outputs() {
    std::map<int, std::pair<size_t, std::vector<char>>> first;
    double worst = 0;
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Product& p = outputs[o].p;
      const Data& d = data.at(p.product);
      std::vector<char> got(static_cast<size_t>(p.m * outputs[o].pitch * sum_width()));
      ASSERT_EQ(g.d->CopyToHost(got.data(), outputs[o].at, got.size()), 0);
      std::vector<char> bits;
      for (int64_t y = 0; y < p.m; ++y)
        for (int64_t x = 0; x < outputs[o].pitch; ++x) {
          const char* at = got.data() + (y * outputs[o].pitch + x) * sum_width();
          if (x >= p.n) {  // nobody may write between the rows
            for (int64_t e = 0; e < sum_width(); ++e)
              ASSERT_EQ(at[e], 0x7b) << "product " << o << " row " << y << " beyond " << x;
            continue;
          }
          bits.insert(bits.end(), at, at + sum_width());
          double have = 0;
          if (sum_width() == 8) {
            memcpy(&have, at, 8);
          } else if (whole(type)) {
            int32_t v;
            memcpy(&v, at, 4);
            have = v;
          } else {
            float v;
            memcpy(&v, at, 4);
            have = v;
          }
          const double want = d.sum[y * p.n + x] + (p.accumulate ? d.c0[y * p.n + x] : 0);
          const double step = whole(type) ? 0 : type == kObkF64 ? 4e-16 : 4e-7;
          const double room = step * (d.size[y * p.n + x] + (p.accumulate ? 64 : 0) + 1e-30) * 4;
          ASSERT_LE(std::fabs(have - want), room)
              << "product " << o << " (" << p.m << " x " << p.n << " x " << p.k << ", kind "
              << p.kind << ", tile " << p.rows << " x " << p.columns << ") row " << y << " column "
              << x << ": " << have << " wanted " << want;
          worst = std::max(worst, std::fabs(have - want) / (d.size[y * p.n + x] + 1));
        }
      if (p.accumulate) continue;
      auto [it, fresh] = first.try_emplace(p.product, o, bits);
      if (!fresh) {
        EXPECT_TRUE(it->second.second == bits)
            << "products " << it->second.first << " and " << o << " are cut differently (" << p.rows
            << " x " << p.columns << ", kind " << p.kind << ") and give other bits";
      }
    }
    fmt::print("{{\"products\": {}, \"type\": {}, \"jobs\": {}, \"worst\": {:.2e}}}\n",
               outputs.size(), type, jobs.size(), worst);
  }
};

/// Every product in several cuts and kinds.
std::vector<Product> products(int type) {
  std::vector<Product> list;
  const int64_t shapes[][3] = {{128, 144, 768}, {100, 200, 777}, {1, 64, 96},   {7, 33, 40},
                               {16, 16, 16},    {33, 97, 130},   {65, 80, 64},  {5, 400, 1000},
                               {197, 50, 300},  {3, 5, 1},       {64, 96, 2048}};
  int product = 0;
  for (const auto& s : shapes) {
    Product p{s[0], s[1], s[2], product++};
    list.push_back(p);
    Product q = p;
    q.rows = 8, q.columns = 16, list.push_back(q);
    q.rows = 128, q.columns = 208, q.c_shared = false, list.push_back(q);
    q = p, q.rows = 40, q.columns = 32, q.a_pad = 8, q.c_shared = false, q.ahead = false;
    list.push_back(q);
    q = p, q.rows = 17, q.columns = 112, q.a_pad = 3, q.a_shift = 1, list.push_back(q);
    q = p, q.a_transposed = true, q.a_pad = 5, list.push_back(q);
    if (p.k <= 800) q = p, q.rows = 20, q.a_staged = true, list.push_back(q);
    for (Kind kind : {kPlainN, kPlainK, kPlainOdd}) {
      q = p, q.kind = kind, list.push_back(q);
      q.rows = 20, q.columns = 100, q.c_shared = false, list.push_back(q);
    }
    q = p, q.accumulate = true, list.push_back(q);
    q.c_shared = false, q.rows = 30, list.push_back(q);
  }
  if (few()) std::erase_if(list, [](const Product& p) { return p.m * p.n * p.k > 450'000; });
  if (type == kObkF64)  // its staged operands take the room
    for (Product& p : list) p.a_staged = false;
  if (type == kObkF32)  // beside the stages of tiles of 64 rows there is room for fewer
    for (Product& p : list)
      if (p.a_staged) p.rows = 12;
  return list;
}

class Tiles : public testing::TestWithParam<std::tuple<int, int>> {};

std::string defined(int type) { return fmt::format("OBK_TYPE={}", type); }

TEST_P(Tiles, EqualReferenceWhateverTheCut) {
  const auto [type, pages] = GetParam();
  OPEN(g, kText, defined(type), "OBK_WATCHDOG=4000000000LL");
  Jobs jobs{g, type};
  for (const Product& p : products(type)) jobs.add(p);
  jobs.run(pages, 1, nullptr);
  jobs.check_outputs();
}

INSTANTIATE_TEST_SUITE_P(
    Gemm, Tiles,
    testing::Values(std::tuple{kObkF16, 3}, std::tuple{kObkF16, 0}, std::tuple{kObkF16, 2},
                    std::tuple{kObkBf16, 3}, std::tuple{kObkF32, 0}, std::tuple{kObkF64, 0},
                    std::tuple{kObkTf32, 0}, std::tuple{kObkI8, 0}, std::tuple{kObkU8, 0}),
    [](const auto& info) {
      return fmt::format("type{}_pages{}", std::get<0>(info.param), std::get<1>(info.param));
    });

TEST(Gemm, CompilesForEveryArchitecture) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  for (const auto& [architecture, type] :
       {std::pair{"sm_90a", int{kObkF16}}, std::pair{"sm_90a", int{kObkF32}},
        std::pair{"sm_90a", int{kObkF64}}, std::pair{"sm_90a", int{kObkI8}},
        std::pair{"sm_90a", int{kObkTf32}}, std::pair{"sm_80", int{kObkTf32}},
        std::pair{"sm_80", int{kObkBf16}}}) {
    auto cubin = compile_cubin(kText, architecture, {defined(type)});
    ASSERT_TRUE(cubin.ok()) << architecture << " " << type << "\n" << cubin.error().text();
    EXPECT_EQ(cubin->log.find("C75"), std::string::npos) << cubin->log;
    // No tile spills. The kernel around them may save a few of its registers for the call.
    bool kernel = false;
    std::istringstream lines(cubin->log);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("Function properties for") != std::string::npos)
        kernel = line.find("for run_jobs") != std::string::npos;
      const size_t at = line.find(" bytes spill stores");
      if (at == std::string::npos) continue;
      const int bytes = atoi(line.c_str() + line.rfind(' ', at - 1));
      EXPECT_LE(bytes, kernel ? 64 : 0) << cubin->log;
    }
  }
}

// Tiles of many widths and depths, with and without weights, several in a wave, barriers between:
// each repeat must give the bits of the first.
TEST(Gemm, RingAcrossBarriers) {
  OPEN(g, kText, defined(kObkF16), "OBK_WATCHDOG=4000000000LL");
  Jobs jobs{g, kObkF16};
  int product = 0, wave = 0;
  for (const auto& [rows, columns, k, kind, ahead] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, Kind, bool>>{
           {64, 48, 768, kPacked, true},
           {16, 64, 512, kPlainK, true},
           {16, 112, 1000, kPacked, true},
           {64, 16, 384, kPacked, true},
           {64, 144, 256, kPacked, true},
           {8, 16, 3072, kPacked, false},
           {32, 32, 64, kPacked, true},
           {64, 48, 768, kPacked, true}}) {
    Product p{rows, columns * (few() ? 8 : g.gpu.sms), k, product++, kind, rows, columns};
    p.ahead = ahead, p.wave = wave;
    jobs.add(p);
    if (product % 3 != 2) ++wave;  // sometimes two in a wave
  }
  jobs.run(3, 1, nullptr);
  jobs.check_outputs();
  for (Job& job : jobs.jobs) job.flags |= 4;
  const char* text = getenv("OBELISK_GPU_PHASES");
  const int repeats = (text ? atoi(text) : 20000) / (wave + 1);
  for (int pages : {3, 2}) {
    uint64_t wrong = 0;
    const double micros = jobs.run(pages, repeats, &wrong);
    EXPECT_EQ(wrong, 0u);
    fmt::print(
        "{{\"ring_stress\": {{\"pages\": {}, \"phases\": {}, \"us\": {:.0f}, "
        "\"wrong_words\": {}}}}}\n",
        pages, repeats * (wave + 1), micros, wrong);
  }
}

struct ChainCase {
  int tokens, n, k, type, rows, columns, pages;
};

class Chain : public testing::TestWithParam<ChainCase> {};

TEST_P(Chain, EqualsReferenceAndIsTimed) {
  const ChainCase c = GetParam();
  OPEN(g, kText, defined(c.type), "OBK_CHAIN",
       fmt::format("OBK_SHAPE={},{},{},{},{}", c.rows, c.columns, c.k, c.n,
                   (c.columns + 15) / 16 * 16 + 4));
  const int64_t bytes = kernels::cuda_gemm_packed_bytes(c.type, c.n, c.k);
  const int checked = 4;
  const int layers =
      few() ? checked : static_cast<int>(std::max<int64_t>(2, (int64_t{150} << 20) / bytes));
  const bool brain = c.type == kObkBf16;
  auto widen = [&](uint16_t v) { return brain ? bf16_to_float(v) : f16_to_float(v); };
  auto narrow = [&](float v) { return brain ? float_to_bf16(v) : float_to_f16(v); };
  std::mt19937 random(5);
  std::uniform_real_distribution<float> value(-1, 1);
  const float scale = std::sqrt(3.0f / static_cast<float>(c.k));
  std::vector<std::vector<uint16_t>> host;
  const DevicePointer weights = g.make(static_cast<size_t>(bytes) * layers, 0);
  std::vector<char> packed(static_cast<size_t>(bytes));
  for (int l = 0; l < layers; ++l) {
    if (l < checked) {
      std::vector<uint16_t> w(static_cast<size_t>(c.n) * c.k);
      for (uint16_t& v : w) v = narrow(value(random) * scale);
      kernels::cuda_gemm_pack(c.type, c.n, c.k, c.columns, w.data(), 1, c.k, packed.data());
      host.push_back(std::move(w));
    }
    ASSERT_EQ(
        g.d->CopyToDevice(weights + static_cast<uint64_t>(l) * bytes, packed.data(), packed.size()),
        0);
  }
  std::vector<uint16_t> x(static_cast<size_t>(c.tokens) * c.n);  // k of each row are read
  for (uint16_t& v : x) v = narrow(value(random) * 1.7f);
  const DevicePointer input = g.make(x.size() * 2, 0), counter = g.make(128, 0);
  ASSERT_EQ(g.d->CopyToDevice(input, x.data(), x.size() * 2), 0);
  const size_t out_bytes = static_cast<size_t>(c.tokens) * c.n * 2;
  const DevicePointer outputs = g.make(out_bytes * checked, 0xee);
  ObkGemm shape = {};
  shape.a_type = shape.b_type = c.type, shape.packed = 1;
  shape.m = c.rows, shape.n = c.columns, shape.k = c.k;
  const int shared =
      static_cast<int>(c.pages * 24576 + 128 + c.rows * ((c.columns + 15) / 16 * 16 + 4) * 4 +
                       kernels::cuda_gemm_scratch_bytes(&shape));
  const int grid = (c.tokens + c.rows - 1) / c.rows * ((c.n + c.columns - 1) / c.columns);
  ASSERT_LE(shared, g.gpu.shared_bytes);
  ASSERT_LE(grid, g.gpu.sms);
  const Handle kernel = g.function("chain", shared);
  int registers = 0, local = 0;
  g.d->FuncGetAttribute(&registers, kRegisters, kernel);
  g.d->FuncGetAttribute(&local, kLocalBytes, kernel);
  auto run = [&](int phases, int keep, int ahead) {
    EXPECT_EQ(g.launch(kernel, grid, shared, nullptr, counter, weights, bytes, input, outputs,
                       c.tokens, c.n, c.k, c.rows, c.columns, layers, phases, keep, c.pages, ahead,
                       DevicePointer{0}),
              0);
  };
  run(checked, checked, 1);
  Status done = check(g.d->CtxSynchronize(), "chain");
  ASSERT_TRUE(done.ok()) << done.error().text();
  std::vector<std::vector<uint16_t>> got(
      checked, std::vector<uint16_t>(static_cast<size_t>(c.tokens) * c.n));
  double worst = 0;
  for (int p = 0; p < checked; ++p) {
    ASSERT_EQ(
        g.d->CopyToHost(got[p].data(), outputs + static_cast<uint64_t>(p) * out_bytes, out_bytes),
        0);
    const std::vector<uint16_t>& from = p ? got[p - 1] : x;
    const size_t pitch = c.n;
    for (int look = 0; look < 8; ++look) {
      const size_t t = random() % c.tokens;
      for (int n = 0; n < c.n; ++n) {
        double sum = 0;
        for (int k = 0; k < c.k; ++k)
          sum += static_cast<double>(widen(from[t * pitch + k])) *
                 widen(host[p][static_cast<size_t>(n) * c.k + k]);
        const double have = widen(got[p][t * c.n + n]);
        const double error = std::fabs(have - sum) / (0.1 + std::fabs(sum));
        ASSERT_LE(error, brain ? 8e-3 : 1e-3) << "phase " << p << " token " << t << " column " << n
                                              << ": " << have << " wanted " << sum;
        worst = std::max(worst, error);
      }
    }
  }
  if (few()) return;
  Handle begin = nullptr, end = nullptr;
  g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  auto micros = [&](int phases, int ahead) {
    std::vector<float> all;
    for (int k = 0; k < 9; ++k) {
      float millis = 0;
      g.d->EventRecord(begin, nullptr);
      run(phases, 2, ahead);
      g.d->EventRecord(end, nullptr);
      g.d->EventSynchronize(end);
      g.d->EventElapsed(&millis, begin, end);
      all.push_back(millis * 1000);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  };
  micros(200, 1);
  const double phase = (micros(1200, 1) - micros(200, 1)) / 1000.0,
               late = (micros(1200, 0) - micros(200, 0)) / 1000.0,
               stream = static_cast<double>(bytes) / 4.67e6;
  fmt::print(
      "{{\"gemm_phase\": {{\"tokens\": {}, \"n\": {}, \"k\": {}, \"type\": \"{}\", \"tile\": [{}, "
      "{}], \"pages\": {}, \"ctas\": {}}}, \"us\": {:.2f}, \"us_weights_after_barrier\": {:.2f}, "
      "\"stream_us\": {:.2f}, \"registers\": {}, \"local\": {}, \"shared\": {}, \"worst\": "
      "{:.1e}}}\n",
      c.tokens, c.n, c.k, brain ? "bf16" : "f16", c.rows, c.columns, c.pages, grid, phase, late,
      stream, registers, local, shared, worst);
}

INSTANTIATE_TEST_SUITE_P(
    Gemm, Chain,
    testing::Values(
        ChainCase{128, 1152, 384, kObkF16, 64, 32, 4},
        ChainCase{128, 1152, 384, kObkF16, 32, 48, 4}, ChainCase{128, 384, 384, kObkF16, 32, 16, 4},
        ChainCase{128, 384, 384, kObkF16, 16, 32, 4}, ChainCase{128, 1536, 384, kObkF16, 64, 32, 4},
        ChainCase{128, 2304, 768, kObkF16, 64, 48, 4}, ChainCase{128, 768, 768, kObkF16, 32, 32, 4},
        ChainCase{128, 768, 768, kObkF16, 64, 16, 4}, ChainCase{128, 3072, 768, kObkF16, 64, 48, 4},
        ChainCase{128, 3072, 768, kObkBf16, 64, 48, 4}, ChainCase{8, 3072, 3072, kObkF16, 8, 32, 4},
        ChainCase{1, 2048, 2048, kObkF16, 1, 16, 4}, ChainCase{32, 2048, 2048, kObkF16, 32, 16, 4},
        ChainCase{128, 3072, 768, kObkF16, 64, 48, 2},
        ChainCase{197, 3072, 768, kObkF16, 64, 96, 3}, ChainCase{1, 8192, 2048, kObkF16, 1, 64, 5}),
    [](const auto& info) {
      const ChainCase& c = info.param;
      return fmt::format("m{}_n{}_k{}_type{}_tile{}x{}_pages{}", c.tokens, c.n, c.k, c.type, c.rows,
                         c.columns, c.pages);
    });

}  // namespace
}  // namespace obelisk::runtime::cuda
