// bench/micro/multicast.cu — what reaches shared memory from the second-level cache when CTAs of a
// cluster share operands by multicast, on an H100 or H200.
//
//   nvcc -O3 -gencode arch=compute_90a,code=sm_90a bench/micro/multicast.cu -o /tmp/multicast &&
//   /tmp/multicast
//
// Each CTA fills its shared memory with a tile's operands of k = 768, 16-bit: ROWS of A, COLS of B,
// twelve blocks of 64 k, a barrier each. A row tile's A is the same for all column tiles, a column
// tile's B for all row tiles. A's blocks come by a tensor map, B's by plain bulk copies. Then who
// is near whom: A or B alone, copies of A, A's blocks in another order, tiles by the number of the
// multiprocessor. "B by 2": two CTAs with the same B bring every other block of it, each to both;
// "A by 4": four with the same A. Timed from the first request to the last byte, mean over CTAs and
// rounds, median of seven runs; every byte is summed once and compared.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(what)                                                                      \
  do {                                                                                   \
    if (auto code = (what); code != 0) {                                                 \
      printf("%s:%d: %s gives %d\n", __FILE__, __LINE__, #what, static_cast<int>(code)); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

constexpr int kBlocks = 12, kThreads = 256;

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ bool has_come(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ void rows(uint32_t to, const void* map, int row, int block, uint32_t bar, int share,
                     uint16_t ctas) {
  if (share == 1)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(block), "r"(bar)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(block), "r"(bar), "h"(ctas)
        : "memory");
}
__device__ void weights(uint32_t to, const void* from, uint32_t bytes, uint32_t bar, int share,
                        uint16_t ctas) {
  if (share == 1)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar), "h"(ctas)
        : "memory");
}
__device__ void meet() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ uint64_t now() {
  uint64_t nanos;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanos));
  return nanos;
}

// Which operands; how many copies of A, which column tiles read in turns; by how many blocks the
// order of A's is turned from one column tile to the next; whether a multiprocessor's number says
// its tile, so that those with the same B are neighbours.
struct Way {
  bool a = true, b = true;
  int copies = 1, turn = 0;
  bool by_sm = false;
};

template <int ROWS, int COLS, int BY_A, int BY_B>
__global__ void __launch_bounds__(kThreads, 1)
    fill_tiles(const __grid_constant__ CUtensorMap a, const char* b, int row_tiles,
               int column_tiles, int sets, int rounds, long long* nanos, unsigned* sums, Way way) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ __align__(8) uint64_t bars[kBlocks];
  constexpr int kCluster = BY_A * BY_B, kA = ROWS * 128, kB = COLS * 128;
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  const int tile = way.by_sm ? sm : blockIdx.x;
  if (tile >= row_tiles * column_tiles) return;
  const int rank = tile % kCluster, cluster = tile / kCluster, r = rank % BY_B, c = rank / BY_B;
  const int row = cluster % (row_tiles / BY_B) * BY_B + r,
            column = cluster / (row_tiles / BY_B) * BY_A + c;
  const uint32_t at = address(shared), behind = at + kBlocks * kA;
  if (threadIdx.x == 0) {
    for (uint64_t& bar : bars)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&bar)), "r"(1));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  uint16_t same_a = 0, same_b = 0;
  for (int k = 0; k < BY_A; ++k) same_a |= 1 << (k * BY_B + r);
  for (int k = 0; k < BY_B; ++k) same_b |= 1 << (c * BY_B + k);
  long long all = 0;
  unsigned sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const int set = round % sets;
    if (kCluster > 1)
      meet();
    else
      __syncthreads();
    const uint64_t start = now();
    if (threadIdx.x % 32 == 0) {
      for (int k = threadIdx.x / 32; k < kBlocks; k += kThreads / 32)
        expect(address(bars + k), way.a * kA + way.b * kB);
      for (int k = threadIdx.x / 32; k < kBlocks; k += kThreads / 32)
        if (way.b && k % BY_B == r)
          weights(behind + k * kB,
                  b + ((long long)(set * column_tiles + column) * kBlocks + k) * kB, kB,
                  address(bars + k), BY_B, same_b);
      for (int n = threadIdx.x / 32; n < kBlocks; n += kThreads / 32) {
        const int k = (n + column * way.turn) % kBlocks;
        if (way.a && n % BY_A == c)
          rows(at + k * kA, &a, (row + column % way.copies * row_tiles) * ROWS, set * kBlocks + k,
               address(bars + k), BY_A, same_a);
      }
    }
    for (uint64_t& bar : bars)
      while (!has_come(address(&bar), round & 1)) {
      }
    __syncthreads();
    all += now() - start;
    if (sums == nullptr) continue;
    for (int k = threadIdx.x; k < kBlocks * (kA + kB) / 4; k += kThreads)
      sum += reinterpret_cast<unsigned*>(shared)[k] * (2u * k + 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) nanos[tile] = all;
  if (sums != nullptr) atomicAdd(sums + row * column_tiles + column, sum);
  if (kCluster > 1) meet();
}
__global__ void put(unsigned* to, size_t count) {
  for (size_t k = blockIdx.x * size_t(blockDim.x) + threadIdx.x; k < count;
       k += size_t(gridDim.x) * blockDim.x)
    to[k] = unsigned(k * 2654435761u) ^ unsigned(k >> 7);
}

CUtensorMap map_of(void* at, uint64_t rows, uint64_t blocks, uint32_t together) {
  static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (encode == nullptr)
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
                                           reinterpret_cast<void**>(&encode), 12000,
                                           cudaEnableDefault, &found));
  CUtensorMap map;
  const cuuint64_t extent[] = {64, rows, blocks}, bytes[] = {128, 128 * rows};
  const cuuint32_t box[] = {64, together, 1}, step[] = {1, 1, 1};
  CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, at, extent, bytes, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

template <int ROWS, int COLS, int BY_A, int BY_B>
void measure(int row_tiles, int column_tiles, int sets, std::vector<unsigned>& wanted,
             Way way = {}) {
  if (row_tiles % BY_B != 0 || column_tiles % BY_A != 0) return;
  constexpr int kShared = kBlocks * (ROWS + COLS) * 128, kRounds = 400;
  const int ctas = row_tiles * column_tiles;
  const bool whole =
      way.a && way.b && way.copies == 1;  // what is summed is what the other ways sum
  const size_t a_bytes = size_t(sets) * kBlocks * row_tiles * way.copies * ROWS * 128,
               b_bytes = size_t(sets) * column_tiles * kBlocks * COLS * 128;
  char *a, *b;
  long long* nanos;
  unsigned* sums;
  CHECK(cudaMalloc(&a, a_bytes));
  CHECK(cudaMalloc(&b, b_bytes));
  CHECK(cudaMalloc(&nanos, 8 * ctas));
  CHECK(cudaMalloc(&sums, 4 * ctas));
  CHECK(cudaMemset(sums, 0, 4 * ctas));
  put<<<1000, 256>>>(reinterpret_cast<unsigned*>(a), a_bytes / 4),
      put<<<1000, 256>>>(reinterpret_cast<unsigned*>(b), b_bytes / 4);
  const CUtensorMap map = map_of(a, row_tiles * way.copies * ROWS, sets * kBlocks, ROWS);
  const auto kernel = fill_tiles<ROWS, COLS, BY_A, BY_B>;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim.x = BY_A * BY_B,
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(ctas), launch.blockDim = dim3(kThreads), launch.dynamicSmemBytes = kShared,
  launch.attrs = &cluster, launch.numAttrs = 1;
  if (way.by_sm) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    launch.gridDim = dim3(device.multiProcessorCount);  // a CTA each: none has room for two
  }
  int at_once = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&at_once, kernel, &launch));
  CHECK(cudaLaunchKernelEx(&launch, kernel, map, (const char*)b, row_tiles, column_tiles, sets, 40,
                           nanos, sums, way));
  CHECK(cudaDeviceSynchronize());
  std::vector<unsigned> got(ctas);
  CHECK(cudaMemcpy(got.data(), sums, 4 * ctas, cudaMemcpyDeviceToHost));
  const bool right = !whole || wanted.empty() || wanted == got;
  if (whole) wanted = got;
  std::vector<double> runs;
  for (int run = 0; run < 7; ++run) {
    CHECK(cudaLaunchKernelEx(&launch, kernel, map, (const char*)b, row_tiles, column_tiles, sets,
                             kRounds, nanos, (unsigned*)nullptr, way));
    std::vector<long long> each(ctas);
    CHECK(cudaMemcpy(each.data(), nanos, 8 * ctas, cudaMemcpyDeviceToHost));
    double all = 0;
    for (long long one : each) all += double(one);
    runs.push_back(all / ctas / kRounds / 1000);
  }
  std::sort(runs.begin(), runs.end());
  printf(
      "%d x %d, %d CTAs, %d sets, A by %d, B by %d (%d clusters at once): %.2f us, %.0f KB and "
      "%.0f GB/s an SM, %s%s%s, copies of A %d, turn %d%s\n",
      ROWS, COLS, ctas, sets, BY_A, BY_B, at_once, runs[3], kShared / 1024.0,
      kShared / runs[3] / 1000, right ? "right" : "WRONG", way.a ? "" : ", no A",
      way.b ? "" : ", no B", way.copies, way.turn, way.by_sm ? ", by multiprocessor" : "");
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  CHECK(cudaFree(nanos));
  CHECK(cudaFree(sums));
}
template <int ROWS, int COLS>
void shape(int row_tiles, int column_tiles, int sets) {
  std::vector<unsigned> sums;
  measure<ROWS, COLS, 1, 1>(row_tiles, column_tiles, sets, sums);
  measure<ROWS, COLS, 2, 1>(row_tiles, column_tiles, sets, sums);
  measure<ROWS, COLS, 4, 1>(row_tiles, column_tiles, sets, sums);
  measure<ROWS, COLS, 1, 2>(row_tiles, column_tiles, sets, sums);
  measure<ROWS, COLS, 1, 4>(row_tiles, column_tiles, sets, sums);
}

int main() {
  CHECK(cudaFree(nullptr));
  shape<64, 48>(2, 64, 4);  // BERT-base, 128 x 3072 x 768
  shape<64, 80>(4, 28, 2);  // ViT-B/16, 197 x 2304 x 768
  shape<64, 32>(4, 24, 4);
  shape<64, 24>(2, 32, 4);
  std::vector<unsigned> sums;
  const auto near = [&](Way way) { measure<64, 48, 1, 1>(2, 64, 4, sums, way); };
  near({true, false}), near({false, true});
  for (const int copies : {2, 4, 8, 16, 64})
    near({true, true, copies}), near({true, false, copies});
  for (const int turn : {1, 3, 5}) near({true, true, 1, turn});
  near({true, true, 1, 0, true});
  return 0;
}
