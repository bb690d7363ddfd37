// One step of a decoder as programs: a cache whose past is copied by itself and whose new row is
// stored in place, beside the interpreter.
#include "graph/test_decoder.h"
#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

using graph::Graph;
using graph::ValueId;
using ops::Attrs;
using ops::Op;

enum class Past { kOwn, kOfAllLayers };

/// y = Attention(q, [past k, k], [past v, v]) where q, k, v are parts of one value; the
/// concatenations go out too, or not.
Graph step(DType cache, Past past, bool presents) {
  constexpr int64_t kHeads = 8, kSize = 64, kBefore = 259;
  Graph graph;
  const auto ints = [&](std::vector<int64_t> values) {
    return graph.add_constant(tensor_of(values));
  };
  const auto x = graph.add_input("x", {DType::f32, {1, 3 * kHeads, 1, kSize}});
  const auto parts =
      graph.add_node(Op::Split, {graph.must_add(Op::Tanh, {x}), ints({kHeads, kHeads, kHeads})},
                     Attrs().set("axis", int64_t{1}), "", 3);
  std::vector<ValueId> operands{graph.node(*parts).outputs[0]};
  for (int which = 1; which <= 2; ++which) {
    ValueId added = graph.node(*parts).outputs[which];
    if (which == 1) added = graph.must_add(Op::Neg, {added});  // of a key its rotation
    ValueId before;
    if (past == Past::kOwn) {
      before = graph.add_input(fmt::format("past{}", which), {cache, {1, kHeads, kBefore, kSize}});
    } else {
      before = graph.add_input(fmt::format("past{}", which), {cache, {2, kHeads, kBefore, kSize}});
      before = graph.must_add(Op::Slice, {before, ints({1}), ints({2}), ints({0})}, {});
    }
    if (cache != DType::f32)
      before = graph.must_add(Op::Cast, {before}, Attrs().set("to", int64_t{1}));
    operands.push_back(
        graph.must_add(Op::Concat, {before, added}, Attrs().set("axis", int64_t{2})));
    if (presents) graph.mark_output(operands.back(), fmt::format("present{}", which));
  }
  graph.mark_output(graph.must_add(Op::Attention, std::move(operands), Attrs().set("scale", 0.125)),
                    "y");
  return graph;
}

TEST(Decode, ACacheGrowsByARow) {
  struct {
    DType cache;
    Past past;
    bool presents;
  } cases[] = {{DType::f32, Past::kOwn, true},
               {DType::f32, Past::kOfAllLayers, false},
               {DType::f16, Past::kOfAllLayers, true}};
  for (const auto& [cache, past, presents] : cases) {
    const Graph graph = step(cache, past, presents);
    auto after = passes::copy_early_pieces(graph);
    ASSERT_TRUE(after.ok());
    ASSERT_GT(after->node_count(), graph.node_count());
    expect_same(graph, *after,
                fmt::format("{} {} {}", to_string(cache), static_cast<int>(past), presents));
  }
}

/// y = (SiLU(x G + bias) * (x U)) D, also with what is gated as an answer.
Graph gated(DType dtype, int64_t rows, int64_t depth, int64_t columns, bool answers) {
  std::mt19937 random(3);
  Graph graph;
  const auto constant = [&](Shape shape) {
    Tensor tensor = random_tensor({dtype, shape}, random);
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, tensor.get_double(k) / 8);
    return graph.add_constant(std::move(tensor));
  };
  const auto x = graph.add_input("x", {dtype, {1, rows, depth}});
  const auto gate = graph.must_add(
      Op::Add, {graph.must_add(Op::MatMul, {x, constant({depth, columns})}), constant({columns})});
  const auto up = graph.must_add(Op::MatMul, {x, constant({depth, columns})});
  const auto both = graph.must_add(Op::Mul, {graph.must_add(Op::Swish, {gate}), up});
  if (answers) graph.mark_output(graph.must_add(Op::Neg, {gate}), "gate");
  graph.mark_output(graph.must_add(Op::MatMul, {both, constant({columns, 24})}), "y");
  return graph;
}

TEST(Decode, AGateAndWhatItGatesAreOneWork) {
  struct {
    DType dtype;
    int64_t rows, depth, columns;
    bool answers;
  } cases[] = {{DType::f16, 1, 64, 176, false},
               {DType::f32, 5, 40, 72, true},
               {DType::bf16, 70, 72, 208, false}};
  for (const auto& [dtype, rows, depth, columns, answers] : cases) {
    const Graph graph = gated(dtype, rows, depth, columns, answers);
    auto after = passes::merge_gates(graph);
    ASSERT_TRUE(after.ok());
    const stitch::Plan plan = stitch::plan(*after, machine::cpu(2));
    EXPECT_EQ(plan.groups.size(), 2u) << stitch::print(*after, plan);
    expect_same(graph, *after, fmt::format("{} x {} x {}", rows, depth, columns),
                dtype == DType::f32 ? 1e-4 : 2e-2);
  }
}

// The table without barriers, of virtual SMs: what each has for itself, cut as it reads it, gives
// the answers of the table with them.
TEST(Decode, ATokenByDataflowAnswersAsWithBarriers) {
  auto graph = passes::copy_early_pieces(graph::decoder_step(
      DType::f16, {.width = 128, .heads = 4, .size = 32, .keys = 40, .inner = 192}));
  ASSERT_TRUE(graph.ok());
  const std::vector<Tensor> inputs = random_inputs(*graph);
  auto wanted = graph::interpret(*graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  for (const int sms : {2, 7, 132}) {
    const runtime::Run barriers = run_program(*graph, inputs, sms, true, true);
    const runtime::Run dataflow = run_program(*graph, inputs, sms, true, true, false, {}, true);
    expect_outputs(dataflow, *wanted, fmt::format("{} SMs", sms), 3e-2);
    EXPECT_EQ(memcmp(dataflow.outputs[0].data(), barriers.outputs[0].data(),
                     static_cast<size_t>(dataflow.outputs[0].bytes())),
              0)
        << sms << " SMs";
  }
}

}  // namespace
}  // namespace obelisk::runtime
