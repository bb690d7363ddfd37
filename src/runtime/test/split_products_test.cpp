// Products in parts of their sum, run as programs: the parts' weights packed one after another, and what the next body adds up.
#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

/// y = norm(x W + bias + residual), which also goes out before the norm.
graph::Graph network(int64_t rows, int64_t depth, int64_t columns) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape) {
    Tensor tensor = random_tensor({DType::f16, shape}, random);
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, tensor.get_double(k) / 16);
    return graph.add_constant(std::move(tensor));
  };
  const auto x = graph.add_input("x", {DType::f16, {2, rows, depth}}), residual = graph.add_input("residual", {DType::f16, {2, rows, columns}});
  const auto product = graph.must_add(graph::Op::MatMul, {x, constant({depth, columns})}, {}, "down");
  const auto biased = graph.must_add(graph::Op::Add, {product, constant({columns})});
  const auto sum = graph.must_add(graph::Op::Add, {biased, residual});
  const auto axes = graph.add_constant(tensor_of(std::vector<int64_t>{-1}));
  const auto mean = graph.must_add(graph::Op::ReduceMean, {sum, axes}, ops::Attrs().set("keepdims", int64_t{1}));
  graph.mark_output(graph.must_add(graph::Op::Sub, {sum, mean}), "y");
  return graph;
}

TEST(SplitProducts, RunAndMeanTheSame) {
  for (const auto& [rows, depth, columns, parts] : {std::array<int64_t, 4>{9, 256, 40, 4}, {33, 128, 72, 2}, {1, 192, 64, 3}}) {
    const graph::Graph graph = network(rows, depth, columns);
    auto after = passes::split_products(graph, [&](DType, int64_t, int64_t, int64_t) { return parts; });
    ASSERT_TRUE(after.ok());
    ASSERT_GT(after->node_count(), graph.node_count());
    expect_same(graph, *after, fmt::format("{} x {} x {} in {}", rows, columns, depth, parts), 4e-3);
  }
}

}  // namespace
}  // namespace obelisk::runtime
