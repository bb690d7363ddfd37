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
    auto after = passes::split_reductions(*graph, [&](const passes::Reduction&) { return parts; });
    ASSERT_TRUE(after.ok());
    ASSERT_GT(after->node_count(), graph->node_count());
    expect_same(*graph, *after, fmt::format("{} of {} in {}", folds[k], shape, parts), 1e-3);
  }
}

TEST(SplitReductions, NormsRunAndMeanTheSame) {
  const auto last = [](const graph::Graph& graph) {
    std::vector<bool> stored;
    for (graph::ValueId v = 0; v < graph.value_count(); ++v)
      stored.push_back(graph.type(v).rank() == 4);
    return stored;
  };
  for (const auto& [op, scales] : {std::pair{"InstanceNormalization", "12"}, {"GroupNorm", "4"}})
    for (const DType type : {DType::f32, DType::f16})
      for (const int64_t parts : {2, 5, 7})
        for (const bool channels_last : {false, true}) {
          const bool groups = std::string(op) == "GroupNorm";
          const std::string in = groups ? "2,4,630" : "2,12,10,21";
          auto graph = graph::parse(graph::of_type(fmt::format(R"(graph "g" {{
  in %0 "x": FLOAT[2,12,10,21]
  in %1 "scale": FLOAT[{0}]
  in %2 "shift": FLOAT[{0}]
  const %3: i64[{1}] = [{2}]
  %4: FLOAT[{2}] = Reshape(%0, %3)
  %5: FLOAT[{2}] = InstanceNormalization(%4, %1, %2)
  out %5 "y"
}})",
                                                               scales, groups ? 3 : 4, in),
                                                   type == DType::f16 ? "f16" : "f32"));
          ASSERT_TRUE(graph.ok()) << graph.error().text();
          const auto whole = passes::expand(*graph);
          ASSERT_TRUE(whole.ok()) << whole.error().text();
          const auto of_parts = [&](const passes::Reduction&) { return parts; };
          auto after = passes::split_reductions(
              *whole, of_parts,
              channels_last ? passes::ChannelsLast(last) : passes::ChannelsLast());
          ASSERT_TRUE(after.ok());
          ASSERT_GT(after->node_count(), whole->node_count());
          expect_same(*graph, *after, fmt::format("{} in {}", op, parts),
                      type == DType::f16 ? 4e-3 : 1e-5);
        }
}

/// A convolution of one or two dimensions, and what reads it.
graph::Graph grouped(int64_t groups, int64_t of_group, int64_t outputs, Shape window, DType type) {
  std::mt19937 random(9);
  graph::Graph graph;
  const int64_t channels = groups * of_group;
  Shape in{2, channels}, weights{groups * outputs, of_group};
  for (int64_t size : window) in.push_back(size + 5), weights.push_back(size);
  const auto x = graph.add_input("x", {type, in}),
             w = graph.add_constant(random_tensor({type, weights}, random)),
             bias = graph.add_constant(random_tensor({type, {groups * outputs}}, random));
  const auto y = graph.must_add(graph::Op::Conv, {x, w, bias}, ops::Attrs().set("group", groups));
  graph.mark_output(graph.must_add(graph::Op::Relu, {y}), "y");
  return graph;
}

TEST(MergeConvGroups, RunAndMeanTheSame) {
  int cases = 0;
  for (const DType type : {DType::f32, DType::f16})
    for (const auto& [groups, of_group, outputs, left] :
         {std::array<int64_t, 4>{6, 8, 8, 1}, {6, 3, 5, 2}, {8, 4, 2, 4}, {2, 16, 1, 1}})
      for (const Shape& window : {Shape{3, 3}, Shape{1, 1}, Shape{5}}) {
        const graph::Graph graph = grouped(groups, of_group, outputs, window, type);
        auto after = passes::merge_conv_groups(
            graph, [left = left](const graph::Graph&, graph::NodeId) { return left; });
        ASSERT_TRUE(after.ok());
        ASSERT_EQ(after->node(after->order().front()).attrs.get_int("group", 1), left);
        expect_same(graph, *after, fmt::format("{} groups of {} in {}", groups, of_group, left),
                    type == DType::f16 ? 4e-3 : 1e-5);
        ++cases;
      }
  EXPECT_EQ(cases, 24);
}

}  // namespace
}  // namespace obelisk::runtime
