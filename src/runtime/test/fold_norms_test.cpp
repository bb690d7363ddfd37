// Norms that go through products, run as programs: beside the graph before, whose norms stand for
// themselves.
#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

using graph::Op;
using graph::ValueId;

/// s = x A + r, n = norm(s), y = n W + b, z = n + tanh(n V); with gates: y = sigmoid(n G) * (n U),
/// both halves of one product. `moved`: one image; the first product is a Gemm of its rows, whose
/// answer is reshaped and transposed past a dimension of one.
graph::Graph network(DType type, int64_t rows, bool centred, bool gated, double offset,
                     bool moved = false) {
  constexpr int64_t kDepth = 48, kWidth = 128, kColumns = 72;
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape, double scale, double shift = 0) {
    return graph.add_constant(random_tensor({type, shape}, random, scale, shift));
  };
  const int64_t images = moved ? 1 : 2;
  const auto x = graph.add_input("x", {type, {images, rows, kDepth}}),
             r = graph.add_input("r", {type, {images, rows, kWidth}});
  const auto shifted = graph.must_add(Op::Add, {r, constant({kWidth}, 0, offset)});
  const auto shape_of = [&](std::vector<int64_t> shape) {
    return graph.add_constant(tensor_of(std::move(shape)));
  };
  ValueId product;
  if (moved) {
    const auto all = graph.must_add(Op::Reshape, {x, shape_of({rows, kDepth})});
    const auto gemm =
        graph.must_add(Op::Gemm, {all, constant({kWidth, kDepth}, 0.1), constant({kWidth}, 0.1)},
                       ops::Attrs().set("transB", int64_t{1}));
    const auto apart = graph.must_add(Op::Reshape, {gemm, shape_of({rows, 1, kWidth})});
    product = graph.must_add(Op::Transpose, {apart},
                             ops::Attrs().set("perm", std::vector<int64_t>{1, 0, 2}));
  } else {
    product = graph.must_add(Op::MatMul, {x, constant({kDepth, kWidth}, 0.1)});
  }
  const auto sum = graph.must_add(Op::Add, {shifted, product});
  std::vector<ValueId> inputs = {sum, constant({kWidth}, 0.2, 1)};
  if (centred) inputs.push_back(constant({kWidth}, 0.2));
  const auto norm = graph.must_add(centred ? Op::LayerNormalization : Op::RMSNormalization, inputs,
                                   ops::Attrs().set("epsilon", 1e-4), "norm");
  if (gated) {
    const auto both = graph.must_add(Op::MatMul, {norm, constant({kWidth, 2 * kColumns}, 0.1)});
    const auto sizes = graph.add_constant(tensor_of(std::vector<int64_t>{kColumns, kColumns}));
    const auto split =
        graph.add_node(Op::Split, {both, sizes}, ops::Attrs().set("axis", int64_t{2}), "gates", 2);
    CHECK(split.ok());
    const std::vector<ValueId> halves = graph.node(*split).outputs;
    graph.mark_output(
        graph.must_add(Op::Mul, {graph.must_add(Op::Sigmoid, {halves[0]}), halves[1]}), "y");
  } else {
    const auto y = graph.must_add(Op::MatMul, {norm, constant({kWidth, kColumns}, 0.1)});
    graph.mark_output(graph.must_add(Op::Add, {y, constant({kColumns}, 1)}), "y");
    const auto v = graph.must_add(
        Op::Tanh, {graph.must_add(Op::MatMul, {norm, constant({kWidth, kWidth}, 0.1)})});
    graph.mark_output(graph.must_add(Op::Add, {norm, v}), "z");
  }
  return graph;
}

TEST(FoldNorms, RunAndMeanTheSame) {
  const auto takes = [](DType, int64_t, int64_t, int64_t) { return true; };
  const auto never = [](DType, int64_t, int64_t, int64_t) { return false; };
  for (const DType type : {DType::f16, DType::bf16})
    for (const bool centred : {true, false})
      for (const bool gated : {false, true})
        for (const auto& [offset, moved] :
             {std::pair{0.0, false},
              {8.0, false},
              {8.0, true}}) {  // a mean far from 0 cancels in the product
          const std::string what =
              fmt::format("{} {} {} offset {} {}", to_string(type), centred ? "layer" : "rms",
                          gated ? "gated" : "plain", offset, moved ? "moved" : "");
          SCOPED_TRACE(what);
          const graph::Graph graph = network(type, 19, centred, gated, offset, moved);
          auto after = passes::fold_norms(graph, takes, never);
          ASSERT_TRUE(after.ok()) << after.error().text();
          int statistics = 0;
          for (graph::NodeId id : after->order()) {
            statistics += after->node(id).op == Op::NormStatistics;
            EXPECT_NE(after->node(id).op, centred ? Op::LayerNormalization : Op::RMSNormalization);
          }
          EXPECT_EQ(statistics, gated ? 1 : 2);  // a product each
          const std::vector<Tensor> inputs = random_inputs(graph);
          auto wanted = graph::interpret(graph, inputs);
          ASSERT_TRUE(wanted.ok()) << wanted.error().text();
          for (const bool vectors : {false, true})
            expect_outputs(run_program(*after, inputs, 3, true, true, vectors), *wanted, what,
                           type == DType::f16 ? 2e-2 : 1.5e-1);
        }
}

// The body that stores the norm's rows leaves their partial statistics where moves between touch
// dimensions of one alone; where rows change places or are counted anew the norm stays.
TEST(FoldNorms, PartialStatisticsAreLeft) {
  const auto takes = [](DType, int64_t, int64_t, int64_t) { return true; };
  const auto never = [](DType, int64_t, int64_t, int64_t) { return false; };
  const machine::Machine device = *machine::gpu("sm_90a");
  for (const auto& [images, turns] : {std::pair{1, true}, {2, true}, {2, false}}) {
    constexpr int64_t kRows = 40, kWidth = 128;
    graph::Graph graph;
    const auto weights = [&](int64_t depth, int64_t columns) {
      return graph.add_constant(Tensor::allocate({DType::f16, {depth, columns}}));
    };
    const auto x =
        graph.must_add(Op::Tanh, {graph.add_input("x", {DType::f16, {kRows * images, kWidth}})});
    const auto gemm = graph.must_add(Op::Gemm, {x, weights(kWidth, kWidth)});
    const auto reshaped = [&](std::vector<int64_t> shape) {
      return graph.must_add(Op::Reshape, {gemm, graph.add_constant(tensor_of(std::move(shape)))});
    };
    const auto moved = turns
                           ? graph.must_add(Op::Transpose, {reshaped({kRows, images, kWidth})},
                                            ops::Attrs().set("perm", std::vector<int64_t>{1, 0, 2}))
                           : reshaped({images, kRows, kWidth});
    const auto sum = graph.must_add(
        Op::Add, {moved, graph.add_input("r", {DType::f16, {images, kRows, kWidth}})});
    const auto norm =
        graph.must_add(Op::LayerNormalization,
                       {sum, graph.add_constant(Tensor::allocate({DType::f16, {kWidth}}))});
    graph.mark_output(graph.must_add(Op::MatMul, {norm, weights(kWidth, 2 * kWidth)}), "y");
    auto after = passes::fold_norms(graph, takes, never);
    ASSERT_TRUE(after.ok()) << after.error().text();
    int statistics = 0, of_partials = 0;
    for (const stitch::Group& group : stitch::plan(*after, device, {.own_kernels = true}).groups)
      statistics += group.product.statistics.wanted,
          of_partials += group.product.statistics.of_partials;
    EXPECT_EQ(statistics, images == 1 ? 1 : 0) << images << turns;
    EXPECT_EQ(of_partials, images == 1 ? 1 : 0) << images << turns;
  }
}

// What does not fit stays: a norm whose rows no product stores, one whose product adds parts in
// planes, one that a move reads.
TEST(FoldNorms, StaysWhereItDoesNotFit) {
  const auto yes = [](DType, int64_t, int64_t, int64_t) { return true; };
  const auto no = [](DType, int64_t, int64_t, int64_t) { return false; };
  const graph::Graph graph = network(DType::f16, 5, true, false, 0);
  const auto norms = [](const Result<graph::Graph>& of) {
    int count = 0;
    CHECK(of.ok());
    for (graph::NodeId id : of->order()) count += of->node(id).op == Op::LayerNormalization;
    return count;
  };
  EXPECT_EQ(norms(passes::fold_norms(graph, yes, no)), 0);
  EXPECT_EQ(norms(passes::fold_norms(graph, no, no)), 1);
  EXPECT_EQ(norms(passes::fold_norms(graph, yes, yes)), 1);
  graph::Graph alone;
  const auto x = alone.add_input("x", {DType::f16, {4, 64}});
  const auto ones = alone.add_constant(Tensor::allocate({DType::f16, {64}}));
  const auto norm = alone.must_add(Op::LayerNormalization, {alone.must_add(Op::Tanh, {x}), ones});
  alone.mark_output(
      alone.must_add(Op::MatMul,
                     {norm, alone.add_constant(Tensor::allocate({DType::f16, {64, 8}}))}),
      "y");
  EXPECT_EQ(norms(passes::fold_norms(alone, yes, no)), 1);
  graph::Graph transposed;  // rows of the norm are columns of the product
  const auto a = transposed.add_input("a", {DType::f16, {64, 8}});
  const auto product = transposed.must_add(
      Op::MatMul, {a, transposed.add_constant(Tensor::allocate({DType::f16, {8, 64}}))});
  const auto columns = transposed.must_add(Op::Transpose, {product},
                                           ops::Attrs().set("perm", std::vector<int64_t>{1, 0}));
  const auto of_columns =
      transposed.must_add(Op::LayerNormalization,
                          {columns, transposed.add_constant(Tensor::allocate({DType::f16, {64}}))});
  transposed.mark_output(
      transposed.must_add(Op::MatMul, {of_columns, transposed.add_constant(
                                                       Tensor::allocate({DType::f16, {64, 8}}))}),
      "y");
  EXPECT_EQ(norms(passes::fold_norms(transposed, yes, no)), 1);
}

}  // namespace
}  // namespace obelisk::runtime
