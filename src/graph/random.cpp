#include "graph/random.h"

#include <algorithm>

#include "graph/random_maker.h"

namespace obelisk::graph {

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

int64_t Random::below(int64_t limit) {
  CHECK(limit > 0, "a random number below {}", limit);
  return static_cast<int64_t>(next() % static_cast<uint64_t>(limit));
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::normal() {
  double sum = -6;
  for (int k = 0; k < 12; ++k) sum += unit();
  return sum;
}

namespace {

// How far an integer input may count: the smallest axis that it indexes, through ops that only move
// it.
int64_t index_limit(const Graph& graph, ValueId id, int depth = 0) {
  int64_t limit = 8;
  for (const NodeId user : graph.users(id)) {
    const Node& node = graph.node(user);
    const std::string_view op = ops::to_string(node.op);
    const bool indexes = op == "Gather" || op == "GatherElements" || op == "GatherND";
    if (indexes && node.inputs[1] == id) {
      const Shape& shape = graph.type(node.inputs[0]).shape;
      const int64_t rank = std::ssize(shape);
      int64_t axis = node.attrs.get_int("axis", 0);
      axis = axis < 0 ? axis + rank : axis;
      const bool all = op == "GatherND";
      for (int64_t k = 0; k < rank; ++k) {
        if (all || k == axis) limit = std::min(limit, shape[static_cast<size_t>(k)]);
      }
    } else if (depth < 4 && (op == "Cast" || op == "Reshape" || op == "Unsqueeze" ||
                             op == "Squeeze" || op == "Identity" || op == "Transpose")) {
      limit = std::min(limit, index_limit(graph, node.outputs[0], depth + 1));
    }
  }
  return std::max<int64_t>(limit, 1);
}

}  // namespace

Graph random_graph(uint64_t seed, const RandomOptions& options) {
  if (options.moves > 0) return random_moving_graph(seed, options);
  return RandomMaker(seed, options).run();
}

std::vector<Tensor> random_inputs(const Graph& graph, uint64_t seed) {
  Random random(seed);
  std::vector<Tensor> out;
  for (const ValueId id : graph.inputs()) {
    Tensor tensor = Tensor::allocate(graph.type(id));
    const DType dtype = tensor.dtype();
    // A signed two-bit integer holds -2 to 1.
    const int64_t widest = int64_t{1} << std::min(bits(dtype) - is_signed(dtype), 30);
    const int64_t limit = is_float(dtype) ? 0 : std::min(index_limit(graph, id), widest);
    for (int64_t k = 0; k < tensor.count(); ++k) {
      if (is_float(dtype)) {
        tensor.set_double(k, random.normal());
      } else {
        tensor.set_int(k, dtype == DType::b1 ? random.below(2) : random.below(limit));
      }
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace obelisk::graph
