/// graph/random.h — small valid graphs and inputs from a seed, for tests that hold over any graph.
///
/// Deterministic: the same seed and options give the same graph on every machine. Only ops of the
/// table are used. Values stay of moderate size (operands that could grow are first squeezed by
/// Tanh), so that answers can be compared with a tolerance.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace obelisk::graph {

/// SplitMix64. Its own generator and distributions, because those of the standard library differ
/// between machines.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t limit);  // uniform in [0, limit)
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  double unit();    // uniform in [0, 1)
  double normal();  // about standard normal: the sum of twelve uniforms less six

 private:
  uint64_t state_;
};

struct RandomOptions {
  int nodes = 12;            // about; helpers such as squeezing Tanh come on top
  DType dtype = DType::f32;  // of the floating values
  bool compute = true;       // matrix products, convolutions and pooling too
  bool steps = false;        // floors, comparisons and the like, whose answers jump
  int64_t elements = 2000;   // at most, of any value
  /// Percent of the steps that move elements or cut and join values: chains of reshapes,
  /// transposes, slices, pads and the like, concatenations of several pieces, channel shuffles.
  /// With any, there are convolutions, pooling and norms of all kinds between them (`compute`), and
  /// many values are outputs and read further. 0: the graphs of the other options, as ever.
  int moves = 0;
};
Graph random_graph(uint64_t seed, const RandomOptions& options = {});

/// Normal floats, and integers in [0, 8), or in the range of what they index where the graph shows
/// it; booleans with equal probability.
std::vector<Tensor> random_inputs(const Graph& graph, uint64_t seed);

}  // namespace obelisk::graph
