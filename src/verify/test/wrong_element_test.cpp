// One wrong element of one op is found, whatever family the op is of and whatever arithmetic the
// program has; and what is right is not refused.
#include <gtest/gtest.h>

#include <cmath>

#include "verify/rows.h"

namespace obelisk::verify {
namespace {

/// A family of the op table, with an op of it that makes f32[4,6] or so of x: f32[4,6].
struct Case {
  const char* family;
  const char* lines;  // %0 is x: f32[4,6], %9 the answer
  const char* type;
};
const Case kCases[] = {
    {"elementwise", "  %9: f32[4,6] = Gelu(%0)\n", "f32[4,6]"},
    {"logic",
     "  %1: b1[4,6] = Greater(%0, %0)\n  %2: f32[4,6] = Neg(%0)\n"
     "  %9: f32[4,6] = Where(%1, %0, %2)\n",
     "f32[4,6]"},
    {"convert", "  %1: f16[4,6] = Cast(%0) {to = 10}\n  %9: f32[4,6] = Cast(%1) {to = 1}\n",
     "f32[4,6]"},
    {"reduce", "  const %1 \"axes\": i64[1] = [1]\n  %9: f32[4,1] = ReduceMean(%0, %1)\n",
     "f32[4,1]"},
    {"shape", "  %9: f32[6,4] = Transpose(%0)\n", "f32[6,4]"},
    {"slice", "  %9: f32[8,6] = Concat(%0, %0) {axis = 0}\n", "f32[8,6]"},
    {"gather", "  const %1 \"at\": i64[3] = [2, 0, 3]\n  %9: f32[3,6] = Gather(%0, %1)\n",
     "f32[3,6]"},
    {"scatter",
     "  const %1 \"at\": i64[1,6] = [2, 0, 3, 1, 1, 0]\n  const %2 \"new\": f32[1,6] = "
     "[1, 2, 3, 4, 5, 6]\n  %9: f32[4,6] = ScatterElements(%0, %1, %2) {axis = 0}\n",
     "f32[4,6]"},
    {"sort", "  const %1 \"axis\": i64[] = 1\n  %9: f32[4,6] = CumSum(%0, %1)\n", "f32[4,6]"},
    {"matmul", "  %1: f32[6,4] = Transpose(%0)\n  %9: f32[4,4] = MatMul(%0, %1)\n", "f32[4,4]"},
    {"conv",
     "  const %1 \"s\": i64[3] = [1, 4, 6]\n  %2: f32[1,4,6] = Reshape(%0, %1)\n  const %3 \"w\": "
     "f32[1,4,3] = [0.3, -0.2, 0.5, 0.1, 0.7, -0.4, 0.2, 0.6, -0.1, 0.9, -0.3, 0.25]\n"
     "  %9: f32[1,1,6] = Conv(%2, %3) {pads = [1, 1]}\n",
     "f32[1,1,6]"},
    {"pool",
     "  const %1 \"s\": i64[3] = [1, 4, 6]\n  %2: f32[1,4,6] = Reshape(%0, %1)\n"
     "  %9: f32[1,4,3] = AveragePool(%2) {kernel_shape = [2], strides = [2]}\n",
     "f32[1,4,3]"},
    {"norm",
     "  const %1 \"scale\": f32[6] = [1, 1.1, 0.9, 1, 1.2, 0.8]\n"
     "  %9: f32[4,6] = LayerNormalization(%0, %1)\n",
     "f32[4,6]"},
    {"softmax", "  %9: f32[4,6] = Softmax(%0)\n", "f32[4,6]"},
    {"attention",
     "  const %1 \"s\": i64[4] = [1, 1, 4, 6]\n  %2: f32[1,1,4,6] = Reshape(%0, %1)\n"
     "  %9: f32[1,1,4,6] = Attention(%2, %2, %2)\n",
     "f32[1,1,4,6]"},
    {"resize",
     "  const %1 \"s\": i64[3] = [1, 4, 6]\n  %2: f32[1,4,6] = Reshape(%0, %1)\n"
     "  const %3 \"scales\": f32[3] = [1, 1, 2]\n"
     "  %9: f32[1,4,12] = Resize(%2, _, %3) {mode = \"linear\"}\n",
     "f32[1,4,12]"},
};

Graph parsed(const std::string& text) {
  Result<Graph> graph = graph::parse(text);
  CHECK(graph.ok(), "{}\n{}", graph.error().text(), text);
  return std::move(*graph);
}

/// What a sound program answers: the reference in its arithmetic.
std::vector<Tensor> program(const Graph& graph, Precision precision,
                            std::span<const Tensor> inputs) {
  const auto answers =
      graph::interpret(*in_arithmetic(graph, precision), inputs, rounding_as(precision));
  CHECK(answers.ok(), "{}", answers.error().text());
  return *answers;
}

/// The same with one element of the op's answer replaced by its neighbour, as a wrong index would.
std::vector<Tensor> with_neighbour(const Tensor& right, int64_t at) {
  Tensor wrong = right.cast(right.dtype());
  wrong.set_double(at, right.get_double((at + 1) % right.count()));
  return {wrong};
}

/// Of the scale: 32 roundings of what is narrow, of f32 256. Less is no fault that an
/// arithmetic can tell from its own.
double shown_by(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return 32 * 0x1p-8;
    case Precision::kFp16:
    case Precision::kTf32:
      return 32 * 0x1p-11;
    default:
      return 256 * 0x1p-24;
  }
}

double largest(const Tensor& tensor) {
  double scale = 0;
  for (int64_t k = 0; k < tensor.count(); ++k)
    scale = std::max(scale, std::fabs(tensor.get_double(k)));
  return scale;
}

class WrongElement : public testing::TestWithParam<Case> {};

TEST_P(WrongElement, IsFoundInEveryArithmetic) {
  const Case& one = GetParam();
  const Graph op = parsed(
      fmt::format("graph \"op\" {{\n  in %0 \"x\": f32[4,6]\n{}  out %9 \"y\"\n}}\n", one.lines));
  // What reads the op: a product, so that the fault is spread.
  const std::string type = one.type;
  const int64_t inner = op.type(op.outputs()[0]).shape.back();
  std::string weights;
  for (int64_t k = 0; k < inner * 3; ++k)
    weights += fmt::format("{}{:.3f}", k ? ", " : "", std::sin(static_cast<double>(3 * k + 1)));
  Shape out = op.type(op.outputs()[0]).shape;
  out.back() = 3;
  const Graph reader = parsed(fmt::format(
      "graph \"reader\" {{\n  in %0 \"y\": {}\n  const %1 \"w\": f32[{},3] = [{}]\n  %2: f32{} = "
      "MatMul(%0, %1)\n  out %2 \"z\"\n}}\n",
      type, inner, weights, to_string(out)));
  for (const Precision precision :
       {Precision::kKeep, Precision::kTf32, Precision::kFp16, Precision::kBf16}) {
    Options options;
    options.precision = precision;
    const std::vector<Tensor> x = generate_inputs(op, 3);
    const std::vector<Tensor> y = program(op, precision, x);
    const auto judge = reference(op, x, options);
    ASSERT_TRUE(judge.ok()) << judge.error().text();
    EXPECT_TRUE(compare_outputs(op, y, *judge, precision)->ok);
    const auto reader_judge = reference(reader, y, options);
    ASSERT_TRUE(reader_judge.ok());
    EXPECT_TRUE(
        compare_outputs(reader, program(reader, precision, y), *reader_judge, precision)->ok);
    int found = 0, found_behind = 0;
    for (int64_t at = 0; at < y[0].count(); ++at) {
      const double right = y[0].get_double(at);
      const double other = y[0].get_double((at + 1) % y[0].count());
      // Neighbours that are alike in that arithmetic are no fault.
      const double shows = shown_by(precision);
      if (std::fabs(right - other) < shows * largest(y[0])) continue;
      const std::vector<Tensor> wrong = with_neighbour(y[0], at);
      const std::string where =
          fmt::format("{} in {}, element {}", one.family, passes::to_string(precision), at);
      EXPECT_FALSE(compare_outputs(op, wrong, *judge, precision)->ok) << where;
      ++found;
      const std::vector<Tensor> z = program(reader, precision, wrong);
      double moved = 0;
      for (int64_t k = 0; k < z[0].count(); ++k)
        moved =
            std::max(moved, std::fabs(z[0].get_double(k) - reader_judge->wanted[0].get_double(k)));
      if (moved < shows * largest(reader_judge->wanted[0])) continue;
      EXPECT_FALSE(compare_outputs(reader, z, *reader_judge, precision)->ok)
          << where << ", behind a product";
      ++found_behind;
    }
    EXPECT_GT(found, 1) << one.family;
    EXPECT_GT(found_behind, 1) << one.family;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WrongElement, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.family); });

}  // namespace
}  // namespace obelisk::verify
