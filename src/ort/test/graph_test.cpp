// Groups, models of groups and what the importer says of them, on graphs made by hand: no ONNX
// Runtime is here. tests/python/onnxruntime_test.py runs sessions.
#include "ort/graph.h"

#include <gmock/gmock.h>

#include "frontends/frontends.h"
#include "ort/options.h"

namespace obelisk::ort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kF32 = 1;

ValueType f32(std::vector<int64_t> extents) {
  ValueType type{.element = kF32, .has_shape = true, .extents = std::move(extents)};
  for (size_t d = 0; d < type.extents.size(); ++d)
    type.symbols.push_back(type.extents[d] < 0 ? "n" : "");
  return type;
}

/// Nodes "name op inputs -> output"; all values have one type.
Graph graph_of(const std::vector<std::vector<std::string>>& nodes, const ValueType& type) {
  Graph graph;
  graph.opsets = {{"", 20}};
  for (const auto& words : nodes) {
    Node node{.name = words[0], .op = words[1]};
    node.inputs.assign(words.begin() + 2, words.end() - 1);
    node.outputs = {words.back()};
    for (size_t k = 2; k < words.size(); ++k) graph.values[words[k]] = type;
    graph.nodes.push_back(node);
  }
  graph.outputs = {graph.nodes.back().outputs[0]};
  return graph;
}

TEST(Groups, AreAllOfAGraphWhereNothingIsRefused) {
  const Graph graph = graph_of({{"a", "Relu", "x", "p"}, {"b", "Abs", "p", "y"}}, f32({2, 3}));
  EXPECT_THAT(groups_of(graph, {false, false}), ElementsAre(ElementsAre(0, 1)));
}

TEST(Groups, DoNotReachAroundARefusedNode) {
  //   x ─ a ─┬─ refused ─┬─ c      a and c may not be one: c waits for what waits for a.
  //          └───── b ───┘         b goes with a, for it waits for nothing refused.
  const Graph graph = graph_of({{"a", "Relu", "x", "p"},
                                {"refused", "Strange", "p", "q"},
                                {"b", "Abs", "p", "r"},
                                {"c", "Add", "q", "r", "y"}},
                               f32({2, 3}));
  EXPECT_THAT(groups_of(graph, {false, true, false, false}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(3)));
}

TEST(Groups, FollowWhatInnerGraphsRead) {
  Graph graph = graph_of(
      {{"a", "Relu", "x", "p"}, {"loop", "Loop", "x", "q"}, {"b", "Abs", "q", "y"}}, f32({2, 3}));
  graph.nodes[1].outer = {"p"};
  EXPECT_THAT(groups_of(graph, {false, true, false}), ElementsAre(ElementsAre(0), ElementsAre(2)));
}

TEST(Groups, OfShapesAloneAreNotTaken) {
  const Graph graph =
      graph_of({{"a", "Shape", "x", "p"}, {"b", "Concat", "p", "p", "y"}}, f32({2, 3}));
  EXPECT_TRUE(groups_of(graph, {false, false}).empty());
}

TEST(Part, IsAModelWithTheValuesThatOthersRead) {
  Graph graph = graph_of({{"a", "Add", "x", "w", "p"},
                          {"b", "Abs", "p", "q"},
                          {"c", "Strange", "p", "r"},
                          {"d", "Add", "q", "r", "y"}},
                         f32({4, 100}));
  const std::vector<float> numbers(400, 1.5f);
  graph.weights["w"] = {f32({4, 100}), std::as_bytes(std::span(numbers))};
  const Part part = write_part(graph, {0, 1});
  ASSERT_EQ(part.inputs.size(), 1u);
  EXPECT_EQ(part.inputs[0].first, "x");
  EXPECT_THAT(part.outputs, ElementsAre("p", "q"));
  ASSERT_EQ(part.memory.size(), 1u);
  EXPECT_EQ(part.memory.begin()->second.data(), std::as_bytes(std::span(numbers)).data());
  EXPECT_TRUE(check_part(graph, part).empty());

  const auto model = frontends::onnx::read_model_bytes(part.model, nullptr, "", "part",
                                                       {part.memory.begin(), part.memory.end()});
  ASSERT_TRUE(model.ok()) << model.error().text();
  EXPECT_EQ(model->opsets.at(""), 20);
  const auto weight = frontends::onnx::decode(*model, model->graph.initializers.at(0));
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight->as<float>()[399], 1.5f);
}

TEST(Part, NamesTheNodesThatTheImporterRefuses) {
  const Graph graph = graph_of({{"a", "Relu", "x", "p"}, {"b", "Strange", "p", "y"}}, f32({2, 3}));
  const auto refusals = check_part(graph, write_part(graph, {0, 1}));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].node, 1u);
  EXPECT_THAT(refusals[0].reason, HasSubstr("Strange"));
}

TEST(Part, IsTriedAtLikelyExtentsWhereTheyAreNotKnown) {
  const Graph graph = graph_of({{"a", "MatMul", "x", "w", "y"}}, f32({-1, -1}));
  const Part part = write_part(graph, {0});
  EXPECT_FALSE(part.known_shapes());
  EXPECT_TRUE(check_part(graph, part).empty());
}

TEST(Part, IsRefusedWhereARankIsNotKnown) {
  Graph graph = graph_of({{"a", "Relu", "x", "y"}}, f32({2, 3}));
  graph.values["x"].has_shape = false;
  const auto refusals = check_part(graph, write_part(graph, {0}));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].reason, HasSubstr("'x'"));
}

TEST(Options, AreTextByName) {
  const CompileOptions options = options_of(
      {{"precision", "fp16"}, {"threads", "3"}, {"verify", "0"}, {"verify_seconds", "1.5"}});
  EXPECT_EQ(options.precision, "fp16");
  EXPECT_EQ(options.threads, 3);
  EXPECT_FALSE(options.verify);
  EXPECT_EQ(options.verify_seconds, 1.5);
  EXPECT_FALSE(options.host_tail);
}

TEST(Options, ThatAreNoneAreRefused) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"speed", "high"}, {"threads", "3x"}, {"threads", ""}, {"verify", "yes"}}) {
    try {
      options_of({{name, value}});
      FAIL() << name;
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kUsage);
      EXPECT_THAT(failure.what(), HasSubstr("'" + name + "'"));
    }
  }
}

}  // namespace
}  // namespace obelisk::ort
