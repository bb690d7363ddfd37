#include "graph/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/test_texts.h"

namespace obelisk::graph {
namespace {

/// Whether a Transpose reads a concatenation.
bool turns_pieces(const Graph& graph) {
  return std::ranges::any_of(graph.order(), [&](NodeId id) {
    return graph.node(id).op == Op::Transpose &&
           graph.producer(graph.node(id).inputs[0], Op::Concat) != kNone;
  });
}

int64_t elements(const Graph& graph) {
  int64_t all = 0;
  for (const NodeId id : graph.order())
    for (const ValueId value : graph.node(id).outputs) all += graph.type(value).count();
  return all;
}

TEST(Shrink, LeavesWhatFails) {
  int tried = 0;
  int64_t before = 0, after = 0;
  for (uint64_t seed = 0; seed < 400 && tried < 20; ++seed) {
    const Graph graph = random_graph(seed, {.nodes = 30, .moves = 70});
    if (!turns_pieces(graph)) continue;
    ++tried;
    const Graph small = shrink(graph, turns_pieces, 2000);
    ASSERT_TRUE(turns_pieces(small)) << seed;
    ASSERT_TRUE(verify(small).ok()) << seed << ": " << verify(small).error().text();
    EXPECT_EQ(small.order().size(), 2u) << seed << print(small);
    EXPECT_EQ(small.outputs().size(), 1u) << seed;
    before += elements(graph), after += elements(small);
  }
  EXPECT_EQ(tried, 20);
  EXPECT_LT(20 * after, before);
}

TEST(Shrink, MakesExtentsSmall) {
  const auto graph = parse_random(R"(graph "g" {
  in %0 "x": f32[2,24,6,6]
  const %1: f32[24,1,3,3] = @random
  const %2: i64[4] = [2, 24, 4, 9]
  %3: f32[2,24,6,6] = Conv(%0, %1) {group = 24, pads = [1, 1, 1, 1]}
  %4: f32[2,24,4,9] = Reshape(%3, %2)
  %5: f32[2,24,4,9] = Relu(%4)
  out %5 "y"
})",
                                  1);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto convolves = [](const Graph& g) {
    return std::ranges::any_of(g.order(), [&](NodeId id) { return g.node(id).op == Op::Conv; });
  };
  const Graph small = shrink(*graph, convolves);
  ASSERT_EQ(small.order().size(), 1u) << print(small);
  EXPECT_LE(small.type(small.inputs()[0]).count(), 36) << print(small);
}

TEST(Shrink, AsksNoMoreOftenThanItMay) {
  int asked = 0;
  const Graph graph = random_graph(3, {.nodes = 30, .moves = 70});
  const Graph same = shrink(graph, [&](const Graph&) { return ++asked, false; }, 17);
  EXPECT_LE(asked, 17);
  EXPECT_EQ(print(same), print(graph));
}

TEST(Shrink, ATextWithRandomWeightsIsTheGraphAgain) {
  const Graph graph = random_graph(5, {.nodes = 20, .moves = 60});
  const auto again = parse_random(text_with_random_weights(graph), 1);
  ASSERT_TRUE(again.ok()) << again.error().text() << text_with_random_weights(graph);
  ASSERT_EQ(again->order().size(), graph.order().size());
  for (size_t k = 0; k < graph.outputs().size(); ++k)
    EXPECT_EQ(again->type(again->outputs()[k]), graph.type(graph.outputs()[k]));
}

}  // namespace
}  // namespace obelisk::graph
