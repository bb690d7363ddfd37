// How a CUDA graph of many independent kernels runs on an idle GPU, in a row, and where its launch
// is queued behind other work: the time, and how many of its kernels are under way at once.
//
//   nvcc -O3 -std=c++17 -arch=native -o graph_roots graph_roots.cu && ./graph_roots
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t code = (call);                                     \
    if (code != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

constexpr int kKernels = 50, kCtas = 16, kThreads = 256, kShared = 100 << 10;
constexpr unsigned long long kNanos = 20000;

__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

/// Runs for `nanos`; where `stamps` is not null, its first CTA says when.
__global__ void spin(unsigned long long nanos, unsigned long long* stamps) {
  extern __shared__ int room[];
  const unsigned long long start = now();
  while (now() - start < nanos) {
  }
  if (stamps && threadIdx.x == 0 && blockIdx.x == 0) stamps[0] = start, stamps[1] = now();
}

struct Shape {
  std::string name;
  int lanes = 0;  // 0: none follows another
  int root = 0;   // 1: all follow an empty node, 2: a kernel
  int fan = 0;    // > 0: empty nodes between, each before so many kernels
  bool priorities = false;
  int nested = 0;  // > 0: so many times as child graphs of one graph, one after another
};

cudaGraph_t build(const Shape& shape, unsigned long long* stamps) {
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t root = nullptr, between = nullptr;
  const auto kernel = [&](unsigned ctas, unsigned long long nanos, unsigned long long* at,
                          std::vector<cudaGraphNode_t> before) {
    void* parameters[] = {&nanos, &at};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void*>(spin);
    params.gridDim = dim3(ctas), params.blockDim = dim3(kThreads);
    params.sharedMemBytes = kShared, params.kernelParams = parameters;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, before.data(), before.size(), &params));
    return node;
  };
  if (shape.root == 1) CHECK(cudaGraphAddEmptyNode(&root, graph, nullptr, 0));
  if (shape.root == 2) root = kernel(1, 1000, nullptr, {});
  std::vector<cudaGraphNode_t> last(std::max(1, shape.lanes), nullptr);
  for (int k = 0; k < kKernels; ++k) {
    std::vector<cudaGraphNode_t> before;
    if (shape.fan > 0 && k % shape.fan == 0)
      CHECK(cudaGraphAddEmptyNode(&between, graph, root ? &root : nullptr, root ? 1 : 0));
    if (between)
      before.push_back(between);
    else if (root)
      before.push_back(root);
    cudaGraphNode_t& tail = last[shape.lanes ? k % shape.lanes : 0];
    if (shape.lanes && tail) before = {tail};
    tail = kernel(kCtas, kNanos, stamps + 2 * k, before);
    if (shape.priorities) {
      cudaKernelNodeAttrValue value = {};
      value.priority = -(k % 6);
      CHECK(cudaGraphKernelNodeSetAttribute(tail, cudaLaunchAttributePriority, &value));
    }
  }
  if (!shape.nested) return graph;
  cudaGraph_t outer;
  CHECK(cudaGraphCreate(&outer, 0));
  cudaGraphNode_t previous = nullptr;
  for (int k = 0; k < shape.nested; ++k) {
    cudaGraphNode_t node;
    CHECK(cudaGraphAddChildGraphNode(&node, outer, previous ? &previous : nullptr, previous ? 1 : 0,
                                     graph));
    previous = node;
  }
  return outer;
}

int main() {
  CHECK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned long long* stamps;
  CHECK(cudaMallocManaged(&stamps, 2 * kKernels * sizeof(*stamps)));
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<Shape> shapes = {{"independent"},
                               {"independent, priorities", 0, 0, 0, true},
                               {"after an empty node", 0, 1},
                               {"after a kernel", 0, 2},
                               {"after empty nodes of 8", 0, 0, 8},
                               {"after a kernel and empty nodes of 8", 0, 2, 8},
                               {"independent, two child graphs", 0, 0, 0, false, 2},
                               {"8 lanes, two child graphs", 8, 0, 0, false, 2}};
  for (int lanes : {2, 4, 6, 8, 12, 16, 24, 32})
    shapes.push_back({std::to_string(lanes) + " lanes", lanes}),
        shapes.push_back({std::to_string(lanes) + " lanes after a kernel", lanes, 2});
  std::printf("%d kernels of %d CTAs, two of which fit on an SM, %.0f us each: us a launch\n",
              kKernels, kCtas, kNanos / 1e3);
  std::printf("%-40s %8s %8s %8s %8s   %s\n", "", "idle", "ten", "behind", "ten",
              "kernels at once, behind");
  for (const Shape& shape : shapes) {
    cudaGraphExec_t ready;
    CHECK(cudaGraphInstantiate(&ready, build(shape, stamps),
                               shape.priorities ? cudaGraphInstantiateFlagUseNodePriority : 0));
    const auto time = [&](int runs, bool behind) {
      std::vector<float> all;
      for (int round = 0; round < 5; ++round) {
        CHECK(cudaStreamSynchronize(stream));
        if (behind) spin<<<1, 32, 0, stream>>>(4000000, nullptr);
        CHECK(cudaEventRecord(from, stream));
        for (int k = 0; k < runs; ++k) CHECK(cudaGraphLaunch(ready, stream));
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        all.push_back(ms * 1000 / runs / std::max(1, shape.nested));
      }
      std::sort(all.begin(), all.end());
      return all[2];
    };
    const float idle = time(1, false), row = time(10, false), behind_row = time(10, true),
                behind = time(1, true);
    std::vector<std::pair<unsigned long long, int>> events;
    for (int k = 0; k < kKernels; ++k)
      events.push_back({stamps[2 * k], 1}), events.push_back({stamps[2 * k + 1], -1});
    std::sort(events.begin(), events.end());
    int alive = 0, most = 0;
    double area = 0;
    for (size_t k = 0; k < events.size(); ++k) {
      if (k) area += alive * static_cast<double>(events[k].first - events[k - 1].first);
      most = std::max(most, alive += events[k].second);
    }
    std::printf("%-40s %8.1f %8.1f %8.1f %8.1f   mean %.1f most %d; began at (us)",
                shape.name.c_str(), idle, row, behind, behind_row,
                area / (events.back().first - events.front().first), most);
    for (int k = 0; k < 18; ++k) std::printf(" %.0f", (stamps[2 * k] - events[0].first) / 1e3);
    std::printf("\n");
  }
  return 0;
}
