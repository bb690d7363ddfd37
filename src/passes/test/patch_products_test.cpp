// Convolutions of patches told as products mean the same: in f64, so that the order of a sum is all
// that differs.
#include "graph/graph.h"
#include "passes/passes.h"

#include <gtest/gtest.h>

#include <random>

namespace obelisk::passes {
namespace {

TEST(PatchProducts, MeanTheSame) {
  struct Case {
    Shape x, w;
    bool bias;
  };
  const Case cases[] = {{{2, 3, 8, 12}, {5, 3, 4, 6}, true},
                        {{1, 1, 21}, {4, 1, 7}, false},
                        {{1, 2, 4, 6, 9}, {3, 2, 2, 1, 3}, true},
                        {{3, 4, 5, 5}, {7, 4, 5, 5}, true}};
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto filled = [&](const Shape& shape) {
    Tensor tensor = Tensor::allocate({DType::f64, shape});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, uniform(random));
    return tensor;
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.w));
    graph::Graph graph;
    std::vector<graph::ValueId> inputs = {graph.add_input("x", {DType::f64, c.x}),
                                          graph.add_constant(filled(c.w))};
    if (c.bias) inputs.push_back(graph.add_constant(filled({c.w[0]})));
    graph.mark_output(graph.must_add(graph::Op::Conv, std::move(inputs),
                                     ops::Attrs().set("strides", std::vector<int64_t>(
                                                                     c.w.begin() + 2, c.w.end()))),
                      "y");
    int64_t rows = 0;
    const auto after =
        patch_products(graph, [&](DType type, int64_t m, int64_t columns, int64_t depth) {
          EXPECT_EQ(type, DType::f64);
          EXPECT_EQ(columns, c.w[0]);
          EXPECT_EQ(depth * columns, element_count(c.w));
          rows = m;
          return true;
        });
    ASSERT_TRUE(after.ok()) << after.error().text();
    const auto count = [](const graph::Graph& of, graph::Op op) {
      int found = 0;
      for (graph::NodeId id : of.order()) found += of.node(id).op == op;
      return found;
    };
    EXPECT_EQ(count(*after, graph::Op::Conv), 0);
    EXPECT_EQ(count(*after, graph::Op::MatMul), 1);
    const std::vector<Tensor> x = {filled(c.x)};
    const auto want = graph::interpret(graph, x), got = graph::interpret(*after, x);
    ASSERT_TRUE(want.ok() && got.ok());
    ASSERT_EQ((*got)[0].shape(), (*want)[0].shape());
    EXPECT_EQ(rows * c.w[0], (*want)[0].count());
    for (int64_t k = 0; k < (*want)[0].count(); ++k)
      ASSERT_NEAR((*got)[0].get_double(k), (*want)[0].get_double(k), 1e-12) << k;
  }
}

}  // namespace
}  // namespace obelisk::passes
