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

Report compared(const Tensor& got, const Tensor& wanted, bool from_floats = false) {
  Report report;
  compare(got, wanted, 1e-4, from_floats, "y", report);
  return report;
}

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
  EXPECT_TRUE(compared(floats({100, 0.005, 2}), floats({100, 0, 2})).ok);  // of the output's scale
  const Report report = compared(floats({100, 0, 2.5, 9}), floats({100, 0, 2, 8}));
  ASSERT_FALSE(report.ok);
  EXPECT_EQ(report.bad->coordinate, Shape{2});
  EXPECT_EQ(report.bad->got, 2.5);
  EXPECT_EQ(report.bad->wanted, 2);
  EXPECT_NEAR(report.max_abs, 1, 1e-6);
}

TEST(Compare, NanAnswersNanAndInfinitiesAnswerThemselves) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(compared(floats({nan, infinity, 1}), floats({nan, infinity, 1})).ok);
  EXPECT_FALSE(compared(floats({nan}), floats({1})).ok);
  EXPECT_FALSE(compared(floats({1}), floats({nan})).ok);
  EXPECT_FALSE(compared(floats({infinity}), floats({-infinity})).ok);
}

TEST(Compare, IntegersAreEqualUnlessFloatsMadeThem) {
  const Tensor got = tensor_of(std::vector<int64_t>{1, 2, 4});
  const Tensor wanted = tensor_of(std::vector<int64_t>{1, 2, 3});
  EXPECT_FALSE(compared(got, wanted).ok);
  EXPECT_TRUE(compared(got, wanted, true).ok);
}

TEST(Compare, Tf32IsJudgedByItsTenBitsWhateverTheDepth) {
  const Graph graph = parsed(R"(graph "g" {
  in %0 "x": f32[2,2]
  in %1 "w": f32[2,2]
  %2: f32[2,2] = MatMul(%0, %1)
  out %2 "y"
})");
  const std::vector<ValueId> y = graph.outputs();
  const double exact = tolerances(graph, y)[0];
  const double tf32 = tolerances(graph, y, Arithmetic(DType::f32, true))[0];
  EXPECT_EQ(exact, 1e-4);
  EXPECT_EQ(tf32, 5e-3);  // a shallow network is allowed half
  EXPECT_LT(tf32, tolerances(graph, y, Arithmetic(DType::f16))[0]);
  EXPECT_EQ(Arithmetic(DType::f32, true).text(), "tf32");
}

TEST(Compare, OutputsNameTheirNode) {
  const Graph graph = parsed(R"(graph "g" {
  in %0 "x": f32[2]
  %1: f32[2] = Relu(%0) "last/Relu"
  out %1 "y"
})");
  const std::vector<Tensor> got{floats({1, 2})}, wanted{floats({1, 3})};
  const Report report = compare_outputs(graph, got, wanted);
  ASSERT_FALSE(report.ok);
  EXPECT_EQ(report.bad->node, "last/Relu");
  EXPECT_EQ(report.error().code, Code::kAccuracy);
  EXPECT_NE(report.text().find("'y' [1] (node 'last/Relu', Relu)"), std::string::npos)
      << report.text();
}

}  // namespace
}  // namespace obelisk::verify
