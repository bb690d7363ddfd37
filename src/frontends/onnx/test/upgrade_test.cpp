// Every older spelling becomes the newest one: the text of the graph says which ops stand there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontends/onnx/test/make_model.h"

namespace obelisk::frontends::onnx {
namespace {

using namespace make;
using ::testing::HasSubstr;
using ::testing::Not;

/// One node over the inputs x f32[2,3,4] and y f32[3]: the graph's text, or the error's.
std::string upgraded(const std::string& one, int64_t version, const List& initializers = {},
                     const List& inputs = {value("x", kFloat, {"2", "3", "4"}),
                                           value("y", kFloat, {"3"})},
                     const List& outputs = {value("z")}) {
  const auto model = read(make::model(graph({one}, inputs, outputs, initializers), version));
  if (!model.ok()) return model.error().text();
  const auto graph = import_onnx(*model);
  return graph.ok() ? graph::print(*graph) : graph.error().text();
}

TEST(Upgrade, BroadcastAlongAnAxis) {
  const std::string text =
      upgraded(node("Add", {"x", "y"}, {"z"}, {attr("broadcast", 1), attr("axis", 1)}), 6);
  EXPECT_THAT(text, HasSubstr("[3, 1]"));
  EXPECT_THAT(text, HasSubstr("Reshape"));
  EXPECT_THAT(text, HasSubstr("f32[2,3,4] = Add("));
  EXPECT_THAT(text, Not(HasSubstr("broadcast")));
  EXPECT_THAT(upgraded(node("Add", {"x", "y"}, {"z"}, {attr("broadcast", 1), attr("axis", 3)}), 6),
              HasSubstr("axis 3 does not lay [3] along [2,3,4]"));
  EXPECT_THAT(upgraded(node("Add", {"x", "y"}, {"z"}, {attr("broadcast", 1), attr("axis", -2)}), 6),
              HasSubstr("[3, 1]"));
  for (const int64_t axis : {INT64_MIN, INT64_MIN + 2, INT64_MAX})
    EXPECT_THAT(
        upgraded(node("Add", {"x", "y"}, {"z"}, {attr("broadcast", 1), attr("axis", axis)}), 6),
        HasSubstr(fmt::format("axis {} does not lay [3] along [2,3,4]", axis)));
}

TEST(Upgrade, SetsBeyondTheNewestAreRefused) {
  EXPECT_THAT(upgraded(node("Relu", {"x"}, {"z"}), 28), HasSubstr("= Relu("));
  EXPECT_THAT(upgraded(node("Relu", {"x"}, {"z"}), 29),
              HasSubstr("operator set 29 is newer than 28"));
}

TEST(Upgrade, WhatSet28Added) {
  EXPECT_THAT(upgraded(node("SwiGLU", {"x", "x"}, {"z"}, {attr("alpha", 1.5f)}), 28),
              HasSubstr("f32[2,3,4] = SwiGLU(%0, %0) {alpha = 1.5}"));
  EXPECT_THAT(upgraded(node("SwiGLU", {"x", "y"}, {"z"}), 28),
              HasSubstr("the gate is [2,3,4], but what it scales [3]"));
  EXPECT_THAT(upgraded(node("Mod", {"x", "x"}, {"z"}), 28), HasSubstr("f32[2,3,4] = Mod("));
  EXPECT_THAT(upgraded(node("Cast", {"x"}, {"z"}, {attr("to", 27)}), 28),
              HasSubstr("casts to float6e2m3"));
}

TEST(Upgrade, PReluSlopeOfChannels) {
  EXPECT_THAT(upgraded(node("PRelu", {"x", "y"}, {"z"}), 6), HasSubstr("f32[3,1] = Reshape"));
}

TEST(Upgrade, ClipBoundsBecomeInputs) {
  const std::string text =
      upgraded(node("Clip", {"x"}, {"z"}, {attr("min", -1.0f), attr("max", 2.0f)}), 6);
  EXPECT_THAT(text, HasSubstr("f32[] = -1"));
  EXPECT_THAT(text, HasSubstr("f32[] = 2"));
  EXPECT_THAT(upgraded(node("Clip", {"x"}, {"z"}, {attr("max", 2.0f)}), 6),
              HasSubstr("Clip(%0, _, %"));
}

TEST(Upgrade, CastByNameAndToStrings) {
  EXPECT_THAT(upgraded(node("Cast", {"x"}, {"z"}, {attr("to", "DOUBLE")}), 5),
              HasSubstr("f64[2,3,4] = Cast"));
  EXPECT_THAT(upgraded(node("Cast", {"x"}, {"z"}, {attr("to", kString)}), 13),
              HasSubstr("casts to string"));
  // Of 32 bits this would be the number of f32.
  EXPECT_THAT(upgraded(node("Cast", {"x"}, {"z"}, {attr("to", (int64_t{1} << 32) + 1)}), 13),
              HasSubstr("casts to element type 4294967297"));
  EXPECT_THAT(upgraded(node("CastLike", {"x", "h"}, {"z"}), 15,
                       {tensor("h", kF16, {}, std::string(2, '\0'))}),
              HasSubstr("f16[2,3,4] = Cast(%0) {to = 10}"));
}

TEST(Upgrade, DropoutIsTheIdentity) {
  EXPECT_THAT(upgraded(node("Dropout", {"x"}, {"z", "m"}, {attr("ratio", 0.5f)}), 10),
              HasSubstr("out %0 \"z\""));
  EXPECT_THAT(upgraded(node("Dropout", {"x"}, {"z", "m"}), 7, {}, {value("x", kFloat, {"2"})},
                       {value("z"), value("m")}),
              HasSubstr("f32[2] = [1, 1]"));
  EXPECT_THAT(upgraded(node("Dropout", {"x", "r", "t"}, {"z"}), 13,
                       {floats("r", {}, {0.5f}), scalar_bool("t", true)}),
              HasSubstr("drops at random"));
  EXPECT_THAT(upgraded(node("Dropout", {"x", "r", "t"}, {"z"}), 13,
                       {floats("r", {}, {0}), scalar_bool("t", true)}),
              HasSubstr("out %0"));
}

TEST(Upgrade, AxesBecomeInputs) {
  EXPECT_THAT(upgraded(node("ReduceSum", {"x"}, {"z"},
                            {attr("axes", std::vector<int64_t>{-1}), attr("keepdims", 0)}),
                       11),
              HasSubstr("f32[2,3] = ReduceSum(%0, %2)"));
  EXPECT_THAT(
      upgraded(node("ReduceMean", {"x"}, {"z"}, {attr("axes", std::vector<int64_t>{1})}), 13),
      HasSubstr("f32[2,1,4] = ReduceMean(%0, %2)"));
  EXPECT_THAT(
      upgraded(node("Unsqueeze", {"x"}, {"z"}, {attr("axes", std::vector<int64_t>{0})}), 11),
      HasSubstr("f32[1,2,3,4] = Unsqueeze(%0, %2)"));
}

TEST(Upgrade, SlicePadSplitTopKTile) {
  EXPECT_THAT(
      upgraded(node("Slice", {"x"}, {"z"},
                    {attr("starts", std::vector<int64_t>{1}), attr("ends", std::vector<int64_t>{3}),
                     attr("axes", std::vector<int64_t>{2})}),
               9),
      HasSubstr("f32[2,3,2] = Slice("));
  EXPECT_THAT(
      upgraded(node("Pad", {"x"}, {"z"},
                    {attr("pads", std::vector<int64_t>{0, 1, 0, 0, 0, 2}), attr("value", 3.0f)}),
               2),
      HasSubstr("f32[2,4,6] = Pad("));
  EXPECT_THAT(upgraded(node("Split", {"x"}, {"z", "u"},
                            {attr("axis", 2), attr("split", std::vector<int64_t>{1, 3})}),
                       11),
              HasSubstr("f32[2,3,1]"));
  EXPECT_THAT(upgraded(node("Split", {"x"}, {"z", "u"}, {attr("axis", 2)}), 13),
              HasSubstr("num_outputs = 2"));
  EXPECT_THAT(upgraded(node("Split", {"x"}, {"z", ""}, {attr("axis", 2)}), 13),
              HasSubstr("f32[2,3,2]"));
  EXPECT_THAT(upgraded(node("TopK", {"x"}, {"z", "i"}, {attr("k", 2)}), 9),
              HasSubstr("f32[2,3,2]"));
  EXPECT_THAT(
      upgraded(node("Tile", {"x", "t", "a"}, {"z"}), 1, {scalar_int("t", 2), scalar_int("a", 1)}),
      HasSubstr("f32[2,6,4] = Tile"));
  EXPECT_THAT(
      upgraded(node("Reshape", {"x"}, {"z"}, {attr("shape", std::vector<int64_t>{6, -1})}), 1),
      HasSubstr("f32[6,4] = Reshape"));
}

TEST(Upgrade, SoftmaxOfAMatrix) {
  const std::string text = upgraded(node("Softmax", {"x"}, {"z"}), 11);
  EXPECT_THAT(text, HasSubstr("f32[2,12] = Softmax"));
  EXPECT_THAT(text, HasSubstr("f32[2,3,4] = Reshape"));
  EXPECT_THAT(upgraded(node("Softmax", {"x"}, {"z"}, {attr("axis", 2)}), 11),
              HasSubstr("f32[2,3,4] = Softmax(%0) {axis = -1}"));
  EXPECT_THAT(upgraded(node("Softmax", {"x"}, {"z"}), 13), HasSubstr("f32[2,3,4] = Softmax(%0)"));
}

TEST(Upgrade, UpsampleIsAResize) {
  const List images{value("x", kFloat, {"1", "1", "2", "2"})};
  EXPECT_THAT(upgraded(node("Upsample", {"x"}, {"z"}, {attr_floats("scales", {1, 1, 2, 3})}), 7, {},
                       images),
              HasSubstr("f32[1,1,4,6] = Resize"));
  EXPECT_THAT(upgraded(node("Resize", {"x", "s"}, {"z"}, {attr("mode", "linear")}), 10,
                       {floats("s", {4}, {1, 1, 2, 2})}, images),
              HasSubstr("coordinate_transformation_mode = \"asymmetric\""));
  EXPECT_THAT(upgraded(node("Resize", {"x", "e", "e", "s"}, {"z"}), 11,
                       {floats("e", {0}, {}), ints("s", {1, 1, 4, 4})}, images),
              HasSubstr("Resize(%0, _, _, %1)"));
}

TEST(Upgrade, PowersOfPoolsWereReal) {
  const auto pool = [&](float p) {
    return upgraded(
        node("LpPool", {"x"}, {"z"}, {attr("p", p), attr("kernel_shape", std::vector<int64_t>{2})}),
        1);
  };
  EXPECT_THAT(pool(3), HasSubstr("p = 3"));
  EXPECT_THAT(pool(1e30f), HasSubstr("p = 1.0000000150474662e+30, wanted at least 1"));
  EXPECT_THAT(pool(NAN), HasSubstr("p = nan"));
}

TEST(Upgrade, GroupNormalizationByChannel) {
  const List images{value("x", kFloat, {"1", "4", "2"})};
  const std::string text =
      upgraded(node("GroupNormalization", {"x", "s", "b"}, {"z"}, {attr("num_groups", 2)}), 18,
               {floats("s", {2}, {1, 2}), floats("b", {2}, {3, 4})}, images);
  EXPECT_THAT(text, HasSubstr("f32[4] = [1, 1, 2, 2]"));
}

TEST(Upgrade, OldScatterAndTheDft) {
  EXPECT_THAT(
      upgraded(node("Scatter", {"y", "i", "u"}, {"z"}), 9, {ints("i", {1}), floats("u", {1}, {5})}),
      HasSubstr("= ScatterElements("));
  EXPECT_THAT(upgraded(node("DFT", {"x"}, {"z"}, {attr("axis", 1)}), 17, {},
                       {value("x", kFloat, {"1", "4", "1"})}),
              HasSubstr("f32[1,4,2] = DFT(%0, _, %1)"));
}

TEST(Upgrade, NGramsOfIntegers) {
  const List tokens{value("t", kI64, {"2", "6"})};
  const auto vectorizer = [&](std::vector<int64_t> starts) {
    return upgraded(
        node("TfIdfVectorizer", {"t"}, {"z"},
             {attr("mode", "TF"), attr("min_gram_length", 2), attr("max_gram_length", 2),
              attr("max_skip_count", 1), attr("ngram_counts", starts),
              attr("ngram_indexes", std::vector<int64_t>{0, 1, 2, 5}),
              attr("pool_int64s", std::vector<int64_t>{2, 3, 5, 4, 6, 7})}),
        9, {}, tokens);
  };
  const std::string text = vectorizer({0, 2});
  EXPECT_THAT(text, HasSubstr("b1[2,2,5] = And("));  // neighbours
  EXPECT_THAT(text, HasSubstr("b1[2,2,4] = And("));  // one token skipped
  EXPECT_THAT(text, HasSubstr("f32[2,6] = Gather("));
  EXPECT_THAT(vectorizer({0, 3}), HasSubstr("ngram_counts do not fit a pool of 6"));
}

TEST(Upgrade, BatchNormalization) {
  const List parameters{floats("s", {3}, {1, 1, 1}), floats("b", {3}, {0, 0, 0}),
                        floats("m", {3}, {0, 0, 0}), floats("v", {3}, {1, 1, 1})};
  EXPECT_THAT(
      upgraded(node("BatchNormalization", {"x", "s", "b", "m", "v"}, {"z"}, {attr("spatial", 1)}),
               7, parameters),
      HasSubstr("f32[2,3,4] = BatchNormalization"));
  EXPECT_THAT(upgraded(node("BatchNormalization", {"x", "s", "b", "m", "v"}, {"z", "a", "c"}), 9,
                       parameters, {value("x", kFloat, {"2", "3", "4"})}),
              HasSubstr("as in training"));
}

TEST(Upgrade, OpsOfTheRuntimesOptimiser) {
  const auto microsoft = [&](const std::string& op, const List& inputs, const List& attrs = {}) {
    return upgraded(node(op, inputs, {"z"}, attrs, "", "com.microsoft"), 17,
                    {floats("g", {4}, {1, 1, 1, 1})});
  };
  EXPECT_THAT(microsoft("FastGelu", {"x", "g"}), HasSubstr("Gelu(%3) {approximate = \"tanh\"}"));
  EXPECT_THAT(microsoft("BiasGelu", {"x", "g"}), HasSubstr("= Gelu("));
  EXPECT_THAT(microsoft("QuickGelu", {"x"}), HasSubstr("= Swish(%0) {alpha = 1.702"));
  EXPECT_THAT(microsoft("SkipLayerNormalization", {"x", "x", "g"}),
              HasSubstr("= LayerNormalization("));
  EXPECT_THAT(microsoft("SkipSimplifiedLayerNormalization", {"x", "x", "g"}),
              HasSubstr("= RMSNormalization("));
  const auto attention = [&](int64_t heads, const std::string& past) {
    return upgraded(
        node("GroupQueryAttention", {"q", "", "", "k", "v", "l", "t"}, {"z"},
             {attr("num_heads", heads), attr("kv_num_heads", heads)}, "", "com.microsoft"),
        17, {ints("t", {1})},
        {value("q", kFloat, {"1", "1", "6"}), value("k", kFloat, {"1", "1", past, "2"}),
         value("v", kFloat, {"1", "1", past, "2"}), value("l", kI32, {"1"})});
  };
  EXPECT_THAT(attention(1, "4"), HasSubstr("= Attention("));
  EXPECT_THAT(attention(int64_t{1} << 62, "4"),
              HasSubstr("4611686018427387904 heads share 4611686018427387904"));
  EXPECT_THAT(attention(1, "4294967296"), HasSubstr("a past of 4294967296"));
  EXPECT_THAT(microsoft("QMoE", {"x"}),
              HasSubstr("the op 'QMoE' of the domain 'com.microsoft' is not known"));
}

}  // namespace
}  // namespace obelisk::frontends::onnx
