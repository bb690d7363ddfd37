#include "passes/passes.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "graph/test_cases.h"
#include "passes/beside.h"

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
// No text cases, whose graphs are run.
TEST(Passes, ExpandLeavesWhatWouldBeLargerThanTensors) {
  const char* graphs[] = {
      R"(graph "a step [a,b,c]" {
  in %0 "a": f32[1048576]
  in %1 "b": f32[1048576]
  in %2 "c": f32[1048576]
  in %3 "x": f32[1048576,2]
  in %4 "y": f32[1048576,2]
  in %5 "z": f32[1048576,2]
  %6: f32[] = Einsum(%0, %1, %2, %3, %4, %5) {equation = "a,b,c,ad,bd,cd->"} "e"
  out %6 "s"
}
)",
      R"(graph "matrices of long signals" {
  in %0 "x": f32[1,17179869184,1]
  const %1: i64[] = 1
  %2: f32[1,17179869184,2] = DFT(%0, _, %1) "dft"
  %3: f32[1,1,8589934593,2] = STFT(%0, %1) "stft"
  out %2 "y"
  out %3 "z"
}
)"};
  for (const char* text : graphs) {
    const auto graph = graph::parse(text);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    const auto made = pass("expand")(*graph);
    ASSERT_TRUE(made.ok()) << made.error().text();
    EXPECT_EQ(print(*made), print(*graph));
  }
}
TEST(Passes, ExpandForMachine) {
  graph::run_cases("src/passes/test/expand_for_machine.ir", [](graph::Graph graph) {
    const bool takes = graph.name == "a tile";  // a case names its graph so
    return expand_for_machine(
        std::move(graph), [=](const graph::Graph&, graph::NodeId, std::string*) { return takes; });
  });
}
// The tables name what --disable and --to take; without a machine whose tiles are asked nothing has
// anything to do.
TEST(Passes, WithoutTilesNoMachinePassDoesAnything) {
  const auto graph = graph::parse(
      "graph \"g\" {\n  in %0 \"x\": f32[3,4]\n  %1: f32[3,4] = Softmax(%0) {axis = -1}\n  out %1 "
      "\"y\"\n}\n");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  std::vector<std::string_view> names;
  for (const Pass& pass : machine_passes()) {
    names.push_back(pass.name);
    EXPECT_TRUE(pass.idle) << pass.name;
    const auto made = pass.run(*graph);
    ASSERT_TRUE(made.ok()) << pass.name;
    EXPECT_EQ(print(*made), print(*graph)) << pass.name;
  }
  EXPECT_EQ(names,
            (std::vector<std::string_view>{
                "unflatten_gemm", "hoist_halves", "hoist_maps", "merge_rotary_norms", "fold_norms",
                "raise_squeeze_excite", "expand_for_machine", "sink_concatenations",
                "fold_channel_moves", "patch_products", "merge_conv_groups", "pad_channels",
                "split_reductions", "split_products", "split_batches", "copy_ready_pieces"}));
}
TEST(Passes, StageConvInputs) {
  graph::run_cases("src/passes/test/stage_conv_inputs.ir", pass("stage_conv_inputs"));
}
TEST(Passes, RemoveDead) {
  graph::run_cases("src/passes/test/remove_dead.ir", pass("remove_dead"));
}
TEST(Passes, CopyEarlyPieces) {
  graph::run_cases("src/passes/test/copy_early_pieces.ir", pass("copy_early_pieces"));
}

TEST(Passes, RaiseAxisUpdate) {
  graph::run_cases("src/passes/test/raise_axis_update.ir", pass("raise_axis_update"));
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
TEST(Passes, HoistRowMoves) {
  graph::run_cases("src/passes/test/hoist_row_moves.ir", pass("hoist_row_moves"));
}
TEST(Passes, MergeEqual) {
  graph::run_cases("src/passes/test/merge_equal.ir", pass("merge_equal"));
}
TEST(Passes, SimplifyAlgebra) {
  graph::run_cases("src/passes/test/simplify_algebra.ir", pass("simplify_algebra"));
}
TEST(Passes, SlicePools) {
  graph::run_cases("src/passes/test/slice_pools.ir", pass("slice_pools"));
}
TEST(Passes, FoldPads) { graph::run_cases("src/passes/test/fold_pads.ir", pass("fold_pads")); }
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
TEST(Passes, FoldNorms) {
  graph::run_cases("src/passes/test/fold_norms.ir", [](graph::Graph graph) {
    const bool takes = graph.name != "no statistics",
               planes = graph.name == "in planes";  // a case names its graph so
    return fold_norms(
        std::move(graph), [=](DType, int64_t, int64_t, int64_t) { return takes; },
        [=](DType, int64_t, int64_t, int64_t) { return planes; });
  });
}
// Weights of more than a part of those that cores take, with values that 16 bits do not hold, or
// not as a mask, in odd places: told from the values one by one.
TEST(Passes, ConvertPrecisionOfLongConstants) {
  constexpr int64_t kCount = (1 << 20) + 1037;  // whole parts, whole blocks and a rest
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    float special;
    Op op;
    bool narrow;  // the op, in f16
  };
  for (const Case& each :
       {Case{1.5f, Op::Add, true}, Case{40000.0f, Op::Add, true}, Case{-40000.0f, Op::Mul, true},
        Case{-3.4e38f, Op::Add, true}, Case{1e6f, Op::Mul, false}, Case{-inf, Op::Add, true},
        Case{-inf, Op::Mul, true}, Case{65519.0f, Op::Mul, false}}) {
    for (const int64_t at : {int64_t{0}, int64_t{(1 << 19) - 1}, kCount - 1}) {
      // at an odd address, as in a model's file
      auto raw = std::make_shared<std::vector<char>>(kCount * 4 + 1);
      std::vector<float> values(kCount);
      for (int64_t k = 0; k < kCount; ++k) values[k] = static_cast<float>(k % 977) * 0.37f - 100;
      values[at] = each.special;
      std::memcpy(raw->data() + 1, values.data(), kCount * 4);
      graph::Graph graph;
      const auto x = graph.add_input("x", {DType::f32, {kCount}});
      const auto w =
          graph.add_constant(Tensor::view({DType::f32, {kCount}}, raw->data() + 1, raw), "w");
      graph.mark_output(graph.must_add(each.op, {x, w}, {}, "y"), "y");
      const Result<graph::Graph> made = convert_precision(std::move(graph), Precision::kFp16);
      ASSERT_TRUE(made.ok()) << made.error().text();
      const graph::Node* node = nullptr;
      for (graph::NodeId id : made->order())
        if (made->node(id).op == each.op) node = &made->node(id);
      ASSERT_NE(node, nullptr);
      const Tensor& weight = made->value(node->inputs[1]).constant;
      ASSERT_EQ(weight.dtype(), each.narrow ? DType::f16 : DType::f32)
          << each.special << " at " << at;
      for (int64_t k = 0; k < kCount; ++k) {
        const float most = each.op == Op::Add ? 65504.0f / 2 : 65504.0f;
        const float want = std::isfinite(values[k]) && each.narrow
                               ? std::clamp(values[k], -most, most)
                               : values[k];
        ASSERT_EQ(weight.get_double(k), each.narrow ? f16_to_f32(f32_to_f16(want)) : want)
            << each.special << " at " << at << ": " << k;
      }
    }
  }
}

TEST(Passes, MatricesAreBesideEachOther) {
  constexpr int64_t kRows = 517;
  const int64_t columns[] = {300, 1, 77};
  std::vector<Tensor> parts;
  for (const int64_t many : columns) {
    parts.push_back(Tensor::allocate({DType::f32, {kRows, many}}));
    for (int64_t k = 0; k < kRows * many; ++k)
      parts.back().set_double(k, static_cast<double>(k + many * 1000000));
  }
  const Tensor all = beside({&parts[0], &parts[1], &parts[2]});
  ASSERT_EQ(all.shape(), (Shape{kRows, 378}));
  for (int64_t row = 0; row < kRows; ++row) {
    int64_t at = row * 378;
    for (const Tensor& part : parts)
      for (int64_t k = 0; k < part.shape()[1]; ++k, ++at)
        ASSERT_EQ(all.get_double(at), part.get_double(row * part.shape()[1] + k)) << at;
  }
  const Tensor none = Tensor::allocate({DType::f32, {0, 4}});
  EXPECT_EQ(beside({&none, &none}).shape(), (Shape{0, 8}));
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
TEST(Passes, PatchProducts) {
  graph::run_cases("src/passes/test/patch_products.ir", [](graph::Graph graph) {
    return patch_products(std::move(graph),
                          [](DType type, int64_t, int64_t, int64_t) { return type == DType::f16; });
  });
}
TEST(Passes, PadChannels) {
  graph::run_cases("src/passes/test/pad_channels.ir", [](graph::Graph graph) {
    return pad_channels(std::move(graph), [](DType type, int64_t channels) {
      return type == DType::f16 ? (channels + 1) / 2 * 2 : channels;
    });
  });
}
TEST(Passes, SplitProducts) {
  graph::run_cases("src/passes/test/split_products.ir", [](graph::Graph graph) {
    const int64_t parts =
        std::stoll(graph.name);  // a case names its graph so: "2", "2 clusters of 50"
    const size_t of = graph.name.find("clusters of ");
    const int64_t clusters = of == std::string::npos ? 0 : std::stoll(graph.name.substr(of + 12));
    return split_products(
        std::move(graph), [&](DType, int64_t, int64_t, int64_t) { return parts; },
        [&](int64_t rows, int64_t, int64_t) { return rows == clusters; });
  });
}
TEST(Passes, SplitBatches) {
  graph::run_cases("src/passes/test/split_batches.ir", [](graph::Graph graph) {
    const int64_t first = std::stoll(graph.name);  // a case's name: so many in the first part
    return split_batches(std::move(graph), [&](const BatchOfProducts&) { return first; });
  });
}
TEST(Passes, MergeConvGroups) {
  graph::run_cases("src/passes/test/merge_conv_groups.ir", [](graph::Graph graph) {
    const int64_t groups = std::stoll(graph.name);  // a case's name: so many are wished
    return merge_conv_groups(std::move(graph),
                             [&](const graph::Graph&, graph::NodeId) { return groups; });
  });
}
TEST(Passes, RaiseSqueezeExcite) {
  graph::run_cases("src/passes/test/raise_squeeze_excite.ir", [](graph::Graph graph) {
    const auto all = [](const graph::Graph&, graph::NodeId, std::string*) { return true; };
    return raise_squeeze_excite(std::move(graph), all);
  });
}
TEST(Passes, SplitReductions) {
  graph::run_cases("src/passes/test/split_reductions.ir", [](graph::Graph graph) {
    const int64_t parts = std::stoll(graph.name);  // a case's name: so many parts
    const bool last = graph.name.ends_with("last");
    const auto channels_last = [&](const graph::Graph& of) {
      std::vector<bool> stored;
      for (graph::ValueId v = 0; v < of.value_count(); ++v)
        stored.push_back(last && of.type(v).rank() == 4);
      return stored;
    };
    return split_reductions(
        std::move(graph), [&](const Reduction&) { return parts; }, channels_last);
  });
}
TEST(Passes, UnflattenGemm) {
  graph::run_cases("src/passes/test/unflatten_gemm.ir",
                   [](graph::Graph graph) { return unflatten_gemm(std::move(graph)); });
}
TEST(Passes, HoistHalves) {
  graph::run_cases("src/passes/test/hoist_halves.ir", [](graph::Graph graph) {
    const bool pays = graph.name != "two products";  // a case names its graph so
    return hoist_halves(std::move(graph), [=](DType, int64_t, int64_t, int64_t) { return pays; });
  });
}
TEST(Passes, HoistMaps) {
  graph::run_cases("src/passes/test/hoist_maps.ir",
                   [](graph::Graph graph) { return hoist_maps(std::move(graph)); });
}
TEST(Passes, MergeRotaryNorms) {
  graph::run_cases("src/passes/test/merge_rotary_norms.ir",
                   [](graph::Graph graph) { return merge_rotary_norms(std::move(graph)); });
}
TEST(Passes, SinkConcatenations) {
  graph::run_cases("src/passes/test/sink_concatenations.ir",
                   [](graph::Graph graph) { return sink_concatenations(std::move(graph)); });
}
TEST(Passes, FoldChannelMoves) {
  graph::run_cases("src/passes/test/fold_channel_moves.ir",
                   [](graph::Graph graph) { return fold_channel_moves(std::move(graph)); });
}
TEST(Passes, CopyReadyPieces) {
  graph::run_cases("src/passes/test/copy_ready_pieces.ir", [](graph::Graph graph) {
    const auto by_name = [](const graph::Graph& of) {  // a place has what is called so
      std::map<graph::NodeId, std::vector<bool>> out;
      for (graph::NodeId id : of.order()) {
        if (of.node(id).op != graph::Op::Concat) continue;
        for (graph::ValueId v : of.node(id).inputs) {
          const graph::NodeId maker = of.value(v).producer;
          out[id].push_back(maker != graph::kNone && of.node(maker).name.starts_with("placed"));
        }
      }
      return out;
    };
    return copy_ready_pieces(std::move(graph), by_name);
  });
}
TEST(Passes, MergeQkv) { graph::run_cases("src/passes/test/merge_qkv.ir", pass("merge_qkv")); }
TEST(Passes, MergeGates) {
  graph::run_cases("src/passes/test/merge_gates.ir", pass("merge_gates"));
}

}  // namespace obelisk::passes
