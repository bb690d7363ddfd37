// What a pass leaves although it nearly fits, and the reason that it gives.
#include "passes/remarks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/passes.h"

namespace obelisk::passes {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> remarks(std::string_view pass, const std::string& text,
                                 const Options& options = {}) {
  Result<graph::Graph> graph = graph::parse("graph \"g\" {\n" + text + "}\n");
  CHECK(graph.ok(), "{}", graph.error().text());
  Remarks told;
  for (const Pass& one : table(options)) {
    if (one.name != pass) continue;
    const Result<graph::Graph> made = one.run(std::move(*graph), &told);
    CHECK(made.ok(), "{}", made.error().text());
    break;
  }
  std::vector<std::string> out;
  for (const Remark& remark : told.all()) out.push_back(remark.node + ": " + remark.why);
  return out;
}

TEST(Remarks, ConstantsBeyondTheBound) {
  EXPECT_THAT(
      remarks("fold_constants", R"(
  const %0: i64[2] = [4096, 2048]
  const %1: i64[1] = [2]
  in %2 "x": f32[2]
  %3: f32[4096,2048] = ConstantOfShape(%0) "spread"
  %4: i64[2] = Add(%0, %1) "sizes"
  %5: i64[2] = Add(%4, %1) "sizes too"
  out %3 "y"
  out %4 "z"
  out %5 "same"
)"),
      ElementsAre("ConstantOfShape 'spread': it is an output, which stays a value of its own",
                  "Add 'sizes': it is an output, which stays a value of its own"));
  EXPECT_THAT(remarks("fold_constants", R"(
  const %0: i64[2] = [4096, 2048]
  in %1 "x": f32[2048]
  %2: f32[4096,2048] = ConstantOfShape(%0) "spread"
  %3: f32[4096,2048] = Add(%2, %1) "add"
  out %3 "y"
)"),
              ElementsAre("ConstantOfShape 'spread': its 8388608 elements are more than 4194304 "
                          "and than it reads"));
}

TEST(Remarks, EqualOutputsAndWhatIsNoIdentity) {
  EXPECT_THAT(remarks("merge_equal", R"(
  in %0 "x": f32[2]
  %1: f32[2] = Exp(%0) "one"
  %2: f32[2] = Exp(%0) "two"
  out %1 "y"
  out %2 "z"
)"),
              ElementsAre("Exp 'two': a node before it computes the same, but both are outputs"));
  EXPECT_THAT(remarks("simplify_algebra", R"(
  in %0 "x": f32[2]
  const %1: f32[] = 3
  const %2: f32[] = 0
  const %3: f32[] = 2
  %4: f32[2] = Div(%0, %1) "third"
  %5: f32[2] = Add(%4, %2) "plus"
  %6: f32[2] = Div(%5, %3) "half"
  %7: f32[2] = Pow(%6, %1) "cube"
  out %7 "y"
)"),
              ElementsAre("Div 'third': the reciprocal of its divisor is rounded: it divides",
                          "Add 'plus': -0 + 0 is 0: adding 0 changes a sign"));
}

/// A decomposed norm, with lines of one's own.
std::string norm(const std::string& type, const std::string& epsilon, const std::string& sum,
                 const std::string& axes = "[1]") {
  std::string text = R"(
  in %0 "x": T[2,3]
  const %1 "axes": i64[1] = AXES
  EPSILON
  %3: T[2,1] = ReduceMean(%0, %1) {keepdims = 1} "mean"
  %4: T[2,3] = Sub(%0, %3) "centred"
  %5: T[2,3] = Mul(%4, %4) "square"
  %6: T[2,1] = ReduceMean(%5, %1) {keepdims = 1} "variance"
  %7: T[2,1] = SUM "sum"
  %8: T[2,1] = Sqrt(%7) "root"
  %9: T[2,3] = Div(%4, %8) "norm"
  out %9 "y"
)";
  const auto put = [&](const std::string& word, const std::string& by) {
    for (size_t at; (at = text.find(word)) != std::string::npos;) text.replace(at, word.size(), by);
  };
  put("AXES", axes), put("EPSILON", epsilon), put("SUM", sum), put("T[", type + "[");
  return text;
}

TEST(Remarks, NormsThatAreNotRaised) {
  const std::string scalar = "const %2 \"epsilon\": f32[] = 0.001";
  EXPECT_THAT(remarks("raise_layer_norm", norm("f32", scalar, "Add(%6, %2)")), IsEmpty());
  EXPECT_THAT(remarks("raise_layer_norm", norm("f32", "in %2 \"epsilon\": f32[]", "Add(%6, %2)")),
              ElementsAre("Div 'norm': its epsilon is not one known number"));
  EXPECT_THAT(remarks("raise_layer_norm", norm("f32", scalar, "Identity(%6)")), IsEmpty());
  EXPECT_THAT(
      remarks("raise_layer_norm", norm("f16", "const %2 \"e\": f16[] = 0.001", "Add(%6, %2)")),
      ElementsAre("Div 'norm': it computes in f16: the whole op would round less"));
}

TEST(Remarks, ActivationsAndSoftmaxes) {
  EXPECT_THAT(
      remarks("raise_activations", R"(
  in %0 "x": f32[4]
  in %1 "gate": f32[4]
  const %2: f32[] = 0.70710678
  const %3: f32[] = 1
  const %4: f32[] = 0.7
  %5: f32[4] = Mul(%0, %2) "scaled"
  %6: f32[4] = Erf(%5) "erf"
  %7: f32[4] = Add(%6, %3) "one more"
  %8: f32[4] = Mul(%0, %7) "gated"
  %9: f32[4] = Mul(%8, %4) "no gelu"
  %10: f32[4] = Sigmoid(%1) "sigmoid"
  %11: f32[4] = Mul(%0, %10) "unit"
  out %9 "y"
  out %11 "z"
)"),
      ElementsAre(testing::StartsWith("Mul 'gated': its factor is 1, that of a GELU 0.5"),
                  testing::StartsWith("Mul 'no gelu': its factor is 0.69"),
                  "Mul 'unit': its Sigmoid is of another value than it multiplies: a gate"));
  EXPECT_THAT(
      remarks("raise_softmax", R"(
  in %0 "x": f32[2,3]
  const %1: i64[1] = [1]
  %2: f32[2,3] = Exp(%0) "exp"
  %3: f32[2,1] = ReduceSum(%2, %1) {keepdims = 1} "sum"
  %4: f32[2,3] = Div(%2, %3) "div"
  out %4 "y"
)"),
      ElementsAre("Div 'div': no maximum is subtracted: its exponentials overflow where the "
                  "op's do not"));
  EXPECT_THAT(remarks("raise_masked_softmax", R"(
  in %0 "x": f32[2,3]
  in %1 "mask": f32[3]
  const %2: f32[3] = [1, 2, 3]
  %3: f32[2,3] = Add(%0, %1) "masked"
  %4: f32[2,3] = Softmax(%3) {axis = -1} "read twice"
  %5: f32[2,3] = Add(%4, %2) "biased"
  %6: f32[2,3] = Softmax(%5) {axis = -1} "of a bias"
  out %3 "y"
  out %6 "z"
)"),
              ElementsAre("Softmax 'read twice': the masked scores have another reader",
                          "Softmax 'of a bias': what is added is a bias: it forbids nothing"));
}

TEST(Remarks, PartsOfWhatIsRaisedAreNotTold) {
  EXPECT_THAT(remarks("raise_activations", R"(
  in %0 "x": f32[4]
  const %1: f32[] = 0.70710678
  const %2: f32[] = 1
  const %3: f32[] = 0.5
  %4: f32[4] = Mul(%0, %1) "scaled"
  %5: f32[4] = Erf(%4) "erf"
  %6: f32[4] = Add(%5, %2) "one more"
  %7: f32[4] = Mul(%0, %6) "gated"
  %8: f32[4] = Mul(%7, %3) "gelu"
  out %8 "y"
)"),
              IsEmpty());
}

TEST(Remarks, AttentionThatStaysInParts) {
  const std::string parts = R"(
  in %0 "q": f32[1,2,3,4]
  in %1 "k": f32[1,2,4,3]
  in %2 "v": f32[1,2,3,4]
  in %3 "factor": f32[3]
  %4: f32[1,2,3,3] = MatMul(%0, %1) "scores"
  %5: f32[1,2,3,3] = SCALED
  %6: f32[1,2,3,3] = Softmax(%5) {axis = AXIS} "softmax"
  %7: f32[1,2,3,4] = MatMul(%6, %2) "answer"
  out %7 "y"
)";
  const auto with = [&](std::string scaled, std::string axis, std::string outputs = "") {
    std::string text = parts + outputs;
    text.replace(text.find("SCALED"), 6, scaled);
    text.replace(text.find("AXIS"), 4, axis);
    return remarks("raise_attention", text);
  };
  EXPECT_THAT(with("Relu(%4) \"relu\"", "3"),
              ElementsAre("MatMul 'answer': its scores come from Relu 'relu'"));
  EXPECT_THAT(with("Add(%4, %3) \"masked\"", "-1"), IsEmpty());
  EXPECT_THAT(
      with("Add(%4, %3) \"masked\"", "-1", "  out %4 \"scores\"\n"),
      ElementsAre("MatMul 'answer': its scores have another reader, behind MatMul 'scores'"));
  EXPECT_THAT(with("Add(%4, %3) \"masked\"", "-1", "  out %6 \"weights\"\n"),
              ElementsAre("MatMul 'answer': its weights have another reader"));
  EXPECT_THAT(with("Add(%4, %3) \"masked\"", "1"),
              ElementsAre("MatMul 'answer': its softmax is over axis 1, not the last one"));
  EXPECT_THAT(
      with("Mul(%4, %3) \"scaled\"", "-1"),
      ElementsAre("MatMul 'answer': Mul 'scaled' scales its scores by what is not one known "
                  "number"));
}

TEST(Remarks, RotationsWhoseHalvesDiffer) {
  EXPECT_THAT(remarks("raise_rotary", R"(
  in %0 "x": f32[1,2,3,4]
  in %1 "cos": f32[3,4]
  in %2 "sin": f32[3,4]
  const %3: i64[1] = [0]
  const %4: i64[1] = [2]
  const %5: i64[1] = [4]
  const %6: i64[1] = [3]
  %7: f32[1,2,3,2] = Slice(%0, %3, %4, %6)
  %8: f32[1,2,3,2] = Slice(%0, %4, %5, %6)
  %9: f32[1,2,3,2] = Neg(%8)
  %10: f32[1,2,3,4] = Concat(%9, %7) {axis = -1}
  %11: f32[1,2,3,4] = Mul(%0, %1)
  %12: f32[1,2,3,4] = Mul(%10, %2)
  %13: f32[1,2,3,4] = Add(%11, %12) "rotated"
  out %13 "y"
)"),
              ElementsAre("Add 'rotated': the halves of its cosines or sines are not known to be "
                          "equal"));
}

TEST(Remarks, TransposesThatStay) {
  EXPECT_THAT(remarks("sink_transposes", R"(
  in %0 "x": f32[2,3]
  const %1: f32[3,2] = [1, 2, 3, 4, 5, 6]
  %2: f32[3,2] = Transpose(%0) {perm = [1, 0]} "of an input"
  %3: f32[3,3] = MatMul(%2, %0) "product"
  %4: f32[3,3] = Transpose(%3) {perm = [1, 0]} "of a product"
  %5: f32[3,3] = Relu(%3) "relu"
  %6: f32[3,3] = Transpose(%5) {perm = [1, 0]} "of an elementwise op"
  out %4 "a"
  out %6 "b"
)"),
              ElementsAre("Transpose 'of an input': it turns what the network is given",
                          "Transpose 'of a product': it turns what MatMul gives, which is no "
                          "elementwise op",
                          "Transpose 'of an elementwise op': the op before it would read as many "
                          "transposes or more"));
}

TEST(Remarks, ProductsThatStayApart) {
  EXPECT_THAT(remarks("merge_qkv", R"(
  in %0 "x": f32[2,2]
  const %1: f32[2,2] = [1, 2, 3, 4]
  const %2: f32[2,2] = [5, 6, 7, 8]
  %3: f32[2,2] = MatMul(%0, %1) "gate"
  %4: f32[2,2] = MatMul(%0, %2) "up"
  %5: f32[2,2] = Sigmoid(%3) "sigmoid"
  %6: f32[2,2] = Mul(%5, %4) "gated"
  out %6 "y"
)"),
              ElementsAre("MatMul 'gate': its answer meets that of another product in one "
                          "elementwise op",
                          "MatMul 'up': its answer meets that of another product in one "
                          "elementwise op"));
}

TEST(Remarks, NormsThatAreNotFolded) {
  const std::string body = R"(
  in %0 "x": f32[1,2,3,3]
  const %1: f32[2,2,1,1] = [1, 2, 3, 4]
  const %2: f32[2] = [1, 2]
  in %3 "scale": f32[2]
  %4: f32[1,2,3,3] = Conv(%0, %1) "conv"
  %5: f32[1,2,3,3] = BatchNormalization(%4, SCALE, %2, %2, %2) "norm"
  out %5 "y"
)";
  const auto with = [&](const std::string& scale, const std::string& outputs = "") {
    std::string text = body + outputs;
    text.replace(text.find("SCALE"), 5, scale);
    return remarks("fold_batch_norm", text);
  };
  EXPECT_THAT(with("%2"), IsEmpty());
  EXPECT_THAT(with("%2", "  out %4 \"conv too\"\n"),
              ElementsAre("BatchNormalization 'norm': the product before it has another reader"));
  EXPECT_THAT(with("%3"), ElementsAre("BatchNormalization 'norm': its parameters are not known, or "
                                      "not one number a channel"));
}

TEST(Remarks, WhatStaysInWideNumbers) {
  EXPECT_THAT(remarks("convert_precision", R"(
  in %0 "x": f32[2,3]
  %1: f32[2,3] = Softmax(%0) {axis = -1} "weights"
  %2: f32[2,3] = Relu(%0) "relu"
  %3: f32[2,3] = Mul(%2, %2) "square"
  out %1 "y"
  out %3 "z"
)",
                      {.precision = Precision::kFp16}),
              ElementsAre("Softmax 'weights': it overflows, or loses digits, in 16 bits",
                          "Mul 'square': a square may be large"));
}

}  // namespace
}  // namespace obelisk::passes
