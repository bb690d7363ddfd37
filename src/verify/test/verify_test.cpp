// What verification looks at: inputs that fit the network, and values that are too far off.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace obelisk::verify {
namespace {

Graph parsed(const std::string& text) {
  Result<Graph> graph = graph::parse(text);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

Tensor floats(const std::vector<double>& values) {
  return tensor_of(DType::f32, {static_cast<int64_t>(values.size())}, values);
}

/// `rounding`: what the program's arithmetic costs the reference, of its first element.
Report compared(const Tensor& got, const Tensor& wanted, Nature nature = {}, double rounding = 0) {
  Tensor rounded = wanted.cast(is_float(wanted.dtype()) ? DType::f64 : wanted.dtype());
  if (rounding != 0) rounded.set_double(0, rounded.get_double(0) + rounding);
  Report report;
  compare(got, wanted, rounded, nature, "y", report);
  return report;
}
const Nature kF32{.unit = 0x1p-24, .cap = 0x1p-6, .from_floats = true};
const Nature kF16{.unit = 0x1p-11, .cap = 0x1p-4, .from_floats = true};

TEST(GenerateInputs, IndicesStayInsideOfWhatTheyIndex) {
  // The index goes through a sum and a reshape before it is one; the mask becomes a float.
  const Graph graph = parsed(R"(graph "g" {
  in %0 "ids": i64[4,8]
  in %1 "mask": i64[4,8]
  in %2 "table": f32[7,3]
  const %3 "two": i64[] = 2
  const %4 "flat": i64[1] = [32]
  %5: i64[4,8] = Add(%0, %3)
  %6: i64[32] = Reshape(%5, %4)
  %7: f32[32,3] = Gather(%2, %6)
  %8: f32[4,8] = Cast(%1) {to = 1}
  out %7 "rows"
  out %8 "kept"
})");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<Tensor> inputs = generate_inputs(graph, seed);
    ASSERT_EQ(inputs.size(), 3u);
    for (int64_t k = 0; k < 32; ++k) {
      EXPECT_LT(inputs[0].get_int(k) + 2, 7);
      EXPECT_GE(inputs[0].get_int(k) + 2, -7);
      EXPECT_TRUE(inputs[1].get_int(k) == 0 || inputs[1].get_int(k) == 1);
    }
    EXPECT_TRUE(graph::interpret(graph, inputs).ok());
    const std::vector<Tensor> again = generate_inputs(graph, seed);
    for (int64_t k = 0; k < 21; ++k) EXPECT_EQ(inputs[2].get_double(k), again[2].get_double(k));
  }
}

TEST(Compare, TheFirstValueThatIsTooFarOffIsNamed) {
  // 32 units of the output's scale
  EXPECT_TRUE(compared(floats({100, 0.0001, 2}), floats({100, 0, 2}), kF32).ok);
  EXPECT_FALSE(compared(floats({100, 0.0003, 2}), floats({100, 0, 2}), kF32).ok);
  const Report report = compared(floats({100, 0, 2.5, 9}), floats({100, 0, 2, 8}), kF32);
  ASSERT_FALSE(report.ok);
  EXPECT_EQ(report.bad->coordinate, Shape{2});
  EXPECT_EQ(report.bad->got, 2.5);
  EXPECT_EQ(report.bad->wanted, 2);
  EXPECT_NEAR(report.max_abs, 1, 1e-6);
}

TEST(Compare, NanAnswersNanAndInfinitiesAnswerThemselves) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(compared(floats({nan, infinity, 1}), floats({nan, infinity, 1}), kF32).ok);
  EXPECT_FALSE(compared(floats({nan}), floats({1}), kF32).ok);
  EXPECT_FALSE(compared(floats({1}), floats({nan}), kF32).ok);
  EXPECT_FALSE(compared(floats({infinity}), floats({-infinity}), kF32).ok);
}

TEST(Compare, IntegersAreEqualUnlessFloatsMadeThem) {
  const Tensor got = tensor_of(std::vector<int64_t>{1, 2, 4});
  const Tensor wanted = tensor_of(std::vector<int64_t>{1, 2, 3});
  EXPECT_FALSE(compared(got, wanted).ok);
  EXPECT_TRUE(compared(got, wanted, kF32).ok);
  // Tie after tie: as many as rounding alone makes, times four, but no more.
  const Tensor ties = tensor_of({10, 20, 30, 40, 50, 60, 70, 80});
  const Tensor six = tensor_of({14, 24, 34, 44, 54, 64, 70, 80});
  EXPECT_FALSE(compared(six, ties, kF32).ok);
  EXPECT_FALSE(compared(six, ties, kF32, 4).ok);
  EXPECT_TRUE(compared(tensor_of({14, 24, 34, 44, 50, 60, 70, 80}), ties, kF32, 4).ok);
}

TEST(Compare, WhatRoundingCostsIsAllowedEightTimesAndNoMoreThanTheCap) {
  const Tensor wanted = floats({1, 0.5});
  EXPECT_FALSE(compared(floats({1, 0.5001}), wanted, kF32).ok);
  EXPECT_TRUE(compared(floats({1, 0.5001}), wanted, kF32, 2e-5).ok);
  EXPECT_FALSE(compared(floats({1, 0.5002}), wanted, kF32, 2e-5).ok);
  // Where rounding costs more than the cap, what it explains is neither right nor wrong.
  const Report ill = compared(floats({1, 0.6}), wanted, kF32, 0.1);
  EXPECT_TRUE(ill.ok);
  EXPECT_EQ(ill.rows, "");
  EXPECT_NE(ill.text().find("ill-conditioned"), std::string::npos) << ill.text();
  const Report wrong = compared(floats({1, 5}), wanted, kF32, 0.1);
  EXPECT_FALSE(wrong.ok);
  EXPECT_NE(wrong.error().message.find("ill-conditioned"), std::string::npos);
  // Four roundings to f16, whatever the one sample says.
  EXPECT_TRUE(compared(floats({1, 0.5019}), wanted, kF16).ok);
  EXPECT_FALSE(compared(floats({1, 0.503}), wanted, kF16).ok);
}

TEST(Compare, MasksAreNoPartOfTheScale) {
  // Once the scale was that of the masks, and whatever stood between them passed.
  const double huge = -3.4e38;
  EXPECT_TRUE(compared(floats({huge, 1, 2, huge}), floats({huge, 1, 2, huge}), kF32).ok);
  EXPECT_FALSE(compared(floats({huge, 1, 2.1, huge}), floats({huge, 1, 2, huge}), kF32).ok);
  EXPECT_FALSE(compared(floats({-1e9, 1, 2.1}), floats({-1e9, 1, 2}), kF32).ok);
  EXPECT_FALSE(compared(floats({huge, 1, 2, 0}), floats({huge, 1, 2, huge}), kF32).ok);
  // A large value near others is one of them.
  EXPECT_TRUE(compared(floats({1e5, 3000, 20.05}), floats({1e5, 3000, 20}), kF32).ok);
}

TEST(Compare, TheArithmeticThatLeadsToAValueIsItsNature) {
  const Graph graph = parsed(R"(graph "g" {
  in %0 "x": f32[2,2]
  in %1 "w": f32[2,2]
  %2: f32[2,2] = MatMul(%0, %1)
  %3: f32[2,2] = Transpose(%0)
  %4: f16[2,2] = Cast(%2) {to = 10}
  %5: f32[2,2] = Cast(%4) {to = 1}
  %6: i64[2] = ArgMax(%5) {axis = 1, keepdims = 0}
  out %2 "y"
  out %3 "t"
  out %5 "z"
  out %6 "best"
})");
  const std::vector<Nature> of = natures(graph), tf32 = natures(graph, Precision::kTf32);
  const std::vector<ValueId>& outputs = graph.outputs();
  EXPECT_EQ(of[outputs[0]].unit, 0x1p-24);
  EXPECT_FALSE(of[outputs[0]].exact);
  EXPECT_TRUE(of[outputs[1]].exact);
  EXPECT_EQ(of[outputs[2]].unit, 0x1p-11);
  EXPECT_TRUE(of[outputs[3]].from_floats && !of[outputs[3]].exact);
  EXPECT_EQ(tf32[outputs[0]].unit, 0x1p-11);
  EXPECT_EQ(tf32[outputs[1]].unit, 0x1p-24);
}

TEST(Compare, OutputsNameTheirNode) {
  const Graph graph = parsed(R"(graph "g" {
  in %0 "x": f32[2]
  %1: f32[2] = Relu(%0) "last/Relu"
  out %1 "y"
})");
  const std::vector<Tensor> got{floats({1, 2})}, wanted{floats({1, 3})};
  const Result<Report> made = compare_outputs(graph, got, {wanted, wanted, {{}}});
  ASSERT_TRUE(made.ok());
  const Report& report = *made;
  ASSERT_FALSE(report.ok);
  EXPECT_EQ(report.bad->node, "last/Relu");
  EXPECT_EQ(report.error().code, Code::kAccuracy);
  EXPECT_NE(report.text().find("'y' [1] (node 'last/Relu', Relu)"), std::string::npos)
      << report.text();
}

}  // namespace
}  // namespace obelisk::verify
