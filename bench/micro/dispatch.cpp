// How long lanes and launch orders take (schedule/dispatch.h), of random orders of 1,000 and 10,000
// kernels: the fastest of several turns.
//
//   build/bin/bench_dispatch
#include <algorithm>
#include <chrono>
#include <random>

#include "schedule/dispatch.h"

using namespace obelisk::schedule;

namespace {

template <typename Work>
double fastest_ms(Work work) {
  double best = 1e9;
  for (int turn = 0; turn < 7; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                  .count());
  }
  return best;
}

void measure(int count) {
  std::mt19937 random(1);
  Dag dag(count);
  for (int to = 1; to < count; ++to)  // as networks are: what is read was stored not long ago
    for (int k = 0; k < 2; ++k) dag.add(std::max(0, to - 1 - static_cast<int>(random() % 12)), to);
  std::vector<Kernel> kernels;
  for (int k = 0; k < count; ++k)
    kernels.push_back({"k",
                       {.shared_bytes = static_cast<int64_t>(random() % 5) * 16384,
                        .threads = 256,
                        .registers = 64,
                        .blocks = 1 + static_cast<int64_t>(random() % 300),
                        .nanos = 1000.0 + static_cast<double>(random() % 20000)},
                       random() % 2 == 0 ? KernelClass::kMemory : KernelClass::kCompute,
                       "",
                       true});
  std::vector<int> topological(static_cast<size_t>(count));
  for (int k = 0; k < count; ++k) topological[static_cast<size_t>(k)] = k;
  const auto tell = [&](const char* what, double ms) {
    fmt::print("{:6} kernels {:6} edges  {:34} {:8.3f} ms\n", count, dag.edges(), what, ms);
  };
  tell("lanes, Opara (algorithm 1)", fastest_ms([&] { (void)allocate_opara(dag, topological); }));
  tell("order, Opara (algorithm 2)", fastest_ms([&] { (void)order_opara(dag, kernels); }));
  tell("order, critical", fastest_ms([&] { (void)order_critical(dag, kernels, 132); }));
  tell("reachability", fastest_ms([&] { (void)Reachability::make(dag); }));
  if (count > 2000) return;
  const auto reaches = Reachability::make(dag);
  tell("lanes, Nimble", fastest_ms([&] { (void)allocate_nimble(dag, *reaches); }));
}

}  // namespace

int main() {
  measure(1000);
  measure(10000);
}
