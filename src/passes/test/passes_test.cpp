#include "passes/passes.h"

#include "graph/test_cases.h"

namespace obelisk::passes {
namespace {

std::function<Result<graph::Graph>(graph::Graph)> pass(std::string_view name) {
  for (const Pass& one : table())
    if (one.name == name) return [one](graph::Graph graph) { return one.run(std::move(graph)); };
  CHECK(false, "no pass is called {}", name);
  return {};
}

}  // namespace

TEST(Passes, Expand) { graph::run_cases("src/passes/test/expand.ir", pass("expand")); }
TEST(Passes, StageConvInputs) {
  graph::run_cases("src/passes/test/stage_conv_inputs.ir", pass("stage_conv_inputs"));
}
TEST(Passes, RemoveDead) {
  graph::run_cases("src/passes/test/remove_dead.ir", pass("remove_dead"));
}
TEST(Passes, CopyEarlyPieces) {
  graph::run_cases("src/passes/test/copy_early_pieces.ir", pass("copy_early_pieces"));
}

TEST(Passes, FoldConstants) {
  graph::run_cases("src/passes/test/fold_constants.ir", pass("fold_constants"));
}
TEST(Passes, SpreadUniformWeights) {
  graph::run_cases("src/passes/test/spread_uniform_weights.ir", pass("spread_uniform_weights"));
}
TEST(Passes, SinkTransposes) {
  graph::run_cases("src/passes/test/sink_transposes.ir", pass("sink_transposes"));
}
TEST(Passes, MergeEqual) {
  graph::run_cases("src/passes/test/merge_equal.ir", pass("merge_equal"));
}
TEST(Passes, SimplifyAlgebra) {
  graph::run_cases("src/passes/test/simplify_algebra.ir", pass("simplify_algebra"));
}
TEST(Passes, FoldBatchNorm) {
  graph::run_cases("src/passes/test/fold_batch_norm.ir", pass("fold_batch_norm"));
}
TEST(Passes, RaiseLayerNorm) {
  graph::run_cases("src/passes/test/raise_layer_norm.ir", pass("raise_layer_norm"));
}
TEST(Passes, RaiseActivations) {
  graph::run_cases("src/passes/test/raise_activations.ir", pass("raise_activations"));
}

TEST(Passes, ConvertPrecision) {
  graph::run_cases("src/passes/test/convert_precision.ir", [](graph::Graph graph) {
    const Precision precision = *parse_precision(graph.name);  // a case names its graph so
    return convert_precision(std::move(graph), precision);
  });
}
TEST(Passes, RaiseRotary) {
  graph::run_cases("src/passes/test/raise_rotary.ir", pass("raise_rotary"));
}
TEST(Passes, RaiseSoftmax) {
  graph::run_cases("src/passes/test/raise_softmax.ir", pass("raise_softmax"));
}
TEST(Passes, RaiseAttention) {
  graph::run_cases("src/passes/test/raise_attention.ir", pass("raise_attention"));
}
TEST(Passes, RaiseMaskedSoftmax) {
  graph::run_cases("src/passes/test/raise_masked_softmax.ir", pass("raise_masked_softmax"));
}
TEST(Passes, SplitProducts) {
  graph::run_cases("src/passes/test/split_products.ir", [](graph::Graph graph) {
    const int64_t parts = std::stoll(graph.name);  // a case names its graph so: "2", "2 clusters of 50"
    const size_t of = graph.name.find("clusters of ");
    const int64_t clusters = of == std::string::npos ? 0 : std::stoll(graph.name.substr(of + 12));
    return split_products(std::move(graph), [&](DType, int64_t, int64_t) { return parts; }, [&](int64_t rows) { return rows == clusters; });
  });
}
TEST(Passes, MergeQkv) { graph::run_cases("src/passes/test/merge_qkv.ir", pass("merge_qkv")); }
TEST(Passes, MergeGates) {
  graph::run_cases("src/passes/test/merge_gates.ir", pass("merge_gates"));
}

}  // namespace obelisk::passes
