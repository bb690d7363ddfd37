// Products and reductions in parts of their sum, run as programs: the parts' weights packed one
// after another, and what the next body adds up.
#include "graph/test_texts.h"
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
  const auto x = graph.add_input("x", {DType::f16, {2, rows, depth}}),
             residual = graph.add_input("residual", {DType::f16, {2, rows, columns}});
  const auto product =
      graph.must_add(graph::Op::MatMul, {x, constant({depth, columns})}, {}, "down");
  const auto biased = graph.must_add(graph::Op::Add, {product, constant({columns})});
  const auto sum = graph.must_add(graph::Op::Add, {biased, residual});
  const auto axes = graph.add_constant(tensor_of(std::vector<int64_t>{-1}));
  const auto mean =
      graph.must_add(graph::Op::ReduceMean, {sum, axes}, ops::Attrs().set("keepdims", int64_t{1}));
  graph.mark_output(graph.must_add(graph::Op::Sub, {sum, mean}), "y");
  return graph;
}

TEST(SplitProducts, RunAndMeanTheSame) {
  for (const auto& [rows, depth, columns, parts] :
       {std::array<int64_t, 4>{9, 256, 40, 4}, {33, 128, 72, 2}, {1, 192, 64, 3}}) {
    const graph::Graph graph = network(rows, depth, columns);
    auto after =
        passes::split_products(graph, [&](DType, int64_t, int64_t, int64_t) { return parts; });
    ASSERT_TRUE(after.ok());
    ASSERT_GT(after->node_count(), graph.node_count());
    expect_same(graph, *after, fmt::format("{} x {} x {} in {}", rows, columns, depth, parts),
                4e-3);
  }
}

TEST(SplitReductions, RunAndMeanTheSame) {
  const std::string folds[] = {"ReduceSum", "ReduceMean",      "ReduceMax",
                               "ReduceMin", "ReduceProd",      "ReduceL1",
                               "ReduceL2",  "ReduceSumSquare", "ReduceLogSum"};
  const std::array<std::string, 3> shapes[] = {
      {"3,1000", "1", "3,1"}, {"997,5", "0", "1,5"}, {"4,6,50,3", "0,2", "1,6,1,3"}};
  for (size_t k = 0; k < std::size(folds); ++k) {
    const auto& [shape, axes, out] = shapes[k % 3];
    const int64_t parts = std::array{2, 7, 24}[k / 3];
    const std::string text =
        fmt::format(R"(graph "g" {{
  in %0 "x": FLOAT[{0}]
  const %1: i64[{4}] = [{1}]
  %2: FLOAT[{0}] = Abs(%0)
  %3: FLOAT[{2}] = {3}(%2, %1) {{keepdims = 1}}
  out %3 "y"
}})",
                    shape, axes, out, folds[k], std::count(axes.begin(), axes.end(), ',') + 1);
    auto graph = graph::parse(graph::of_type(text, k % 2 ? "f16" : "f32"));
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    auto after =
        passes::split_reductions(*graph, [&](const Type&, int64_t, int64_t) { return parts; });
    ASSERT_TRUE(after.ok());
    ASSERT_GT(after->node_count(), graph->node_count());
    expect_same(*graph, *after, fmt::format("{} of {} in {}", folds[k], shape, parts), 1e-3);
  }
}

}  // namespace
}  // namespace obelisk::runtime
