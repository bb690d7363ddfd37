#include "graph/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "graph/compare.h"

namespace obelisk::graph {
namespace {

TEST(RandomGraphs, AreSoundDeterministicAndPrintable) {
  std::set<std::string_view> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomOptions options{.steps = seed % 2 == 0};
    const Graph graph = random_graph(seed, options);
    ASSERT_TRUE(verify(graph).ok()) << verify(graph).error().text() << print(graph);
    const std::string text = print(graph, {.all_data = true});
    ASSERT_EQ(print(random_graph(seed, options), {.all_data = true}), text);
    const Result<Graph> again = parse(text);
    ASSERT_TRUE(again.ok()) << again.error().text() << text;
    ASSERT_EQ(print(*again, {.all_data = true}), text);
    Graph copy = graph;
    ASSERT_EQ(copy.remove_dead(), 0);
    for (NodeId id : graph.order()) seen.insert(ops::to_string(graph.node(id).op));
  }
  EXPECT_GE(seen.size(), 35u);
}

// Text, weights and all, of graphs without moves is what older versions made: seeds in reports stay
// what they are.
TEST(RandomGraphs, WithoutMovesStayWhatTheyWere) {
  std::string all;
  for (uint64_t seed = 0; seed < 50; ++seed)
    all += print(random_graph(seed, {.steps = seed % 2 == 0}), {.all_data = true});
  EXPECT_EQ(to_string(hash_text(all)), "8475a764b926c044329dbf3b579f522a");
}

TEST(RandomGraphs, WithMovesAreTheSameOnEveryMachine) {
  std::string all;
  for (uint64_t seed = 0; seed < 50; ++seed)
    all += print(random_graph(seed, {.moves = 60}), {.all_data = true});
  EXPECT_EQ(to_string(hash_text(all)), "922bffe7141fd53625a3c3682e17b02f");
}

TEST(RandomGraphs, MoveInManyWays) {
  std::set<std::string_view> seen;
  int pieces = 0, inside = 0, shared = 0,
      read_outputs =
          0;  // concatenations of three pieces and more, of concatenations, of what others read
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomOptions options{.nodes = 5 + static_cast<int>(seed % 36),
                                .steps = seed % 2 == 0,
                                .elements = seed % 7 == 0 ? 9000 : 1500,
                                .moves = 30 + static_cast<int>(seed % 60)};
    const Graph graph = random_graph(seed, options);
    ASSERT_TRUE(verify(graph).ok()) << seed << ": " << verify(graph).error().text() << print(graph);
    Graph copy = graph;
    ASSERT_EQ(copy.remove_dead(), 0);
    for (const NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      seen.insert(ops::to_string(node.op));
      for (const ValueId value : node.outputs) {
        EXPECT_LE(graph.type(value).count(), std::max<int64_t>(options.elements, 1))
            << seed << print(graph, id);
        read_outputs += graph.is_output(value) && !graph.users(value).empty();
      }
      if (node.op != Op::Concat) continue;
      pieces += node.inputs.size() >= 3;
      for (const ValueId piece : node.inputs) {
        inside += graph.producer(piece, Op::Concat) != kNone;
        shared += graph.users(piece).size() > 1;
      }
    }
  }
  for (const char* op : {"Reshape",
                         "Transpose",
                         "Slice",
                         "Split",
                         "Concat",
                         "Pad",
                         "Expand",
                         "Tile",
                         "Gather",
                         "SpaceToDepth",
                         "DepthToSpace",
                         "Squeeze",
                         "Unsqueeze",
                         "Flatten",
                         "Resize",
                         "Conv",
                         "MatMul",
                         "Gemm",
                         "MaxPool",
                         "AveragePool",
                         "GlobalAveragePool",
                         "Softmax",
                         "LayerNormalization",
                         "GroupNormalization",
                         "InstanceNormalization",
                         "BatchNormalization",
                         "ReduceSum"})
    EXPECT_TRUE(seen.count(op)) << op;
  EXPECT_GE(seen.size(), 60u);
  EXPECT_GE(pieces, 100);
  EXPECT_GE(inside, 50);
  EXPECT_GE(shared, 50);
  EXPECT_GE(read_outputs, 100);
}

TEST(RandomGraphs, InterpretToFiniteAnswersNearTheExactOnes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = random_graph(seed / 2, {.moves = seed % 2 == 0 ? 0 : 60});
    const std::vector<Tensor> inputs = random_inputs(graph, seed);
    const auto plain = interpret(graph, inputs), exact = interpret(graph, inputs, {.exact = true});
    ASSERT_TRUE(plain.ok()) << plain.error().text();
    ASSERT_TRUE(exact.ok()) << exact.error().text();
    for (const Tensor& answer : *exact) {
      for (int64_t k = 0; k < answer.count(); ++k) {
        ASSERT_TRUE(std::isfinite(answer.get_double(k))) << print(graph);
      }
    }
    const ops::Tolerance tolerance{1e-2, 1e-2};
    const Comparison same = compare(*plain, *exact, {&tolerance, 1}, graph.output_names());
    EXPECT_TRUE(same.ok) << "seed " << seed << ": " << same.text() << "\n" << print(graph);
  }
}

TEST(RandomInputs, StayInsideWhatTheyIndex) {
  const Result<Graph> graph = parse(R"(graph "g" {
    in %0 "ids": i64[50]
    in %1 "flag": b1[10]
    in %2 "small": i2[10]
    const %3: f32[3,2] = [1, 2, 3, 4, 5, 6]
    const %5: i64[1] = [1]
    %4: i64[50,1] = Unsqueeze(%0, %5)
    %6: f32[50,1,2] = Gather(%3, %4)
    out %6 "y"
  })");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const std::vector<Tensor> inputs = random_inputs(*graph, 1);
  const auto range = [](const Tensor& tensor) {
    const std::vector<int64_t> values = to_ints(tensor);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return std::pair(*low, *high);
  };
  EXPECT_EQ(range(inputs[0]), std::pair(int64_t{0}, int64_t{2}));
  EXPECT_EQ(range(inputs[1]), std::pair(int64_t{0}, int64_t{1}));
  EXPECT_EQ(range(inputs[2]), std::pair(int64_t{0}, int64_t{1}));
}

const ops::Tolerance kTight{0.01, 0.1};

std::string compared(const Tensor& got, const Tensor& want, ops::Tolerance tolerance = kTight) {
  const std::vector<std::string> names = {"y"};
  return compare({&got, 1}, {&want, 1}, {&tolerance, 1}, names).text();
}

TEST(Compare, NamesTheFirstBadValue) {
  const Tensor want = tensor_of(DType::f64, {2, 2}, {1, 2, 0.001, -4});
  EXPECT_EQ(compared(tensor_of(DType::f32, {2, 2}, {1, 2, 0, -4.25}), want),
            "max abs 0.25, max rel 0.0625");
  EXPECT_EQ(compared(tensor_of(DType::f32, {2, 2}, {1, 2, 0.5, -8}), want),
            "output 'y' at [1,0]: got 0.5, wanted 0.001; 2 bad values, max abs 4, max rel 1");
  EXPECT_EQ(compared(tensor_of(DType::f32, {2}, {1, 2}), want),
            "output 'y': f32[2] instead of f64[2,2]");
  EXPECT_EQ(compared(Tensor(), want), "output 'y': nothing, but it is wanted");
}

TEST(Compare, NanAndInfinity) {
  const double inf = INFINITY;
  const Tensor want = tensor_of(DType::f64, {3}, {NAN, inf, 1e39});
  EXPECT_EQ(compared(tensor_of(DType::f32, {3}, {NAN, inf, inf}), want), "max abs 0, max rel 0");
  EXPECT_EQ(compared(tensor_of(DType::f32, {3}, {NAN, -inf, inf}), want),
            "output 'y' at [1]: got -inf, wanted inf; 1 bad value, max abs 0, max rel 0");
  EXPECT_EQ(compared(tensor_of(DType::f32, {3}, {0, inf, inf}), want),
            "output 'y' at [0]: got 0, wanted nan; 1 bad value, max abs 0, max rel 0");
}

TEST(Compare, IntegersAreExact) {
  const int64_t big = int64_t{1} << 60;
  EXPECT_EQ(compared(tensor_of({big}), tensor_of({big + 1}), {}),
            "output 'y' at [0]: got 1.1529215e+18, wanted 1.1529215e+18; 1 bad value, max abs 0, "
            "max rel 0");
  EXPECT_EQ(compared(tensor_of({3}), tensor_of({3}), {}), "max abs 0, max rel 0");
  EXPECT_EQ(compared(tensor_of({3}), tensor_of({4}), {1, 0}), "max abs 1, max rel 0.25");
}

}  // namespace
}  // namespace obelisk::graph
