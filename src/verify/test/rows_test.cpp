// Some rows of the outputs, interpreted from what they depend on: the same as in whole answers.
#include "verify/rows.h"

#include <gtest/gtest.h>

#include <cmath>

namespace obelisk::verify {
namespace {

/// How much of the whole graph's work `count` rows take.
double share(const Graph& graph, int64_t count) {
  const std::vector<Rows> all(graph.outputs().size());
  return Demand(graph, spread_rows(graph, count)).flops() / Demand(graph, all).flops();
}

void expect_same_rows(const Graph& graph, int64_t count) {
  const std::vector<Tensor> inputs = generate_inputs(graph, 7);
  const std::vector<Rows> rows = spread_rows(graph, count);
  for (const bool exact : {true, false}) {
    graph::Interpretation how =
        exact ? graph::Interpretation{.exact = true} : rounding_as(Precision::kKeep);
    const auto whole = graph::interpret(graph, inputs, how);
    ASSERT_TRUE(whole.ok()) << whole.error().text();
    const auto some = Demand(graph, rows).interpret(inputs, how);
    ASSERT_TRUE(some.ok()) << some.error().text() << "\n" << graph::print(graph);
    for (size_t k = 0; k < rows.size(); ++k) {
      const Tensor wanted = rows_of((*whole)[k], rows[k]);
      ASSERT_EQ((*some)[k].type(), wanted.type());
      for (int64_t at = 0; at < wanted.count(); ++at) {
        const double a = is_float(wanted.dtype()) ? wanted.get_double(at)
                                                  : static_cast<double>(wanted.get_int(at));
        const double b = is_float(wanted.dtype()) ? (*some)[k].get_double(at)
                                                  : static_cast<double>((*some)[k].get_int(at));
        if (std::isnan(a) && std::isnan(b)) continue;
        ASSERT_NEAR(a, b, (exact ? 1e-12 : 1e-5) * (1 + std::fabs(a)))
            << "output " << k << " element " << at << ", " << count << " rows\n"
            << graph::print(graph);
      }
    }
  }
}

const char* const kEncoder = R"(graph "encoder" {
  in %0 "x": f32[6,8,16]
  const %1 "w": f32[16,48] = #w
  const %2 "scale": f32[16] = #s
  const %3 "parts": i64[3] = [16, 16, 16]
  const %4 "heads": i64[4] = [6, 8, 2, 8]
  const %5 "flat": i64[3] = [6, 8, 16]
  %6: f32[6,8,16] = LayerNormalization(%0, %2) {axis = -1}
  %7: f32[6,8,48] = MatMul(%6, %1)
  %8: f32[6,8,16], %9: f32[6,8,16], %10: f32[6,8,16] = Split(%7, %3) {axis = 2}
  %11: f32[6,8,2,8] = Reshape(%8, %4)
  %12: f32[6,2,8,8] = Transpose(%11) {perm = [0, 2, 1, 3]}
  %13: f32[6,8,2,8] = Reshape(%9, %4)
  %14: f32[6,2,8,8] = Transpose(%13) {perm = [0, 2, 3, 1]}
  %15: f32[6,2,8,8] = MatMul(%12, %14)
  %16: f32[6,2,8,8] = Softmax(%15) {axis = -1}
  %17: f32[6,8,2,8] = Reshape(%10, %4)
  %18: f32[6,2,8,8] = Transpose(%17) {perm = [0, 2, 1, 3]}
  %19: f32[6,2,8,8] = MatMul(%16, %18)
  %20: f32[6,8,2,8] = Transpose(%19) {perm = [0, 2, 1, 3]}
  %21: f32[6,8,16] = Reshape(%20, %5)
  %22: f32[6,8,16] = Add(%21, %0)
  out %22 "y"
})";

const char* const kPictures = R"(graph "pictures" {
  in %0 "x": f32[5,3,12,10]
  const %1 "w": f32[4,3,3,3] = #a
  const %2 "b": f32[4] = #b
  const %3 "w2": f32[4,1,3,3] = #c
  const %4 "classes": f32[4,7] = #d
  const %5 "flat": i64[2] = [5, 4]
  %6: f32[5,4,6,5] = Conv(%0, %1, %2) {pads = [1, 1, 1, 1], strides = [2, 2]}
  %7: f32[5,4,6,5] = Relu(%6)
  %8: f32[5,4,6,5] = Conv(%7, %3) {group = 4, pads = [1, 1, 1, 1]}
  %9: f32[5,8,6,5] = Concat(%8, %7) {axis = 1}
  %10: f32[5,8,3,2] = MaxPool(%9) {kernel_shape = [2, 2], strides = [2, 2]}
  %11: f32[5,4,3,2], %12: f32[5,4,3,2] = Split(%10) {axis = 1, num_outputs = 2}
  %13: f32[5,4,3,2] = Mul(%11, %12)
  %14: f32[5,4,1,1] = GlobalAveragePool(%13)
  %15: f32[5,4] = Reshape(%14, %5)
  %16: f32[5,7] = MatMul(%15, %4)
  out %16 "y"
})";

/// Constants that a text names by a hash get numbers.
Graph filled(const std::string& text) {
  std::string out;
  size_t at = 0;
  uint64_t seed = 1;
  graph::Weights weights;
  for (size_t found = text.find(" = #"); found != std::string::npos;
       found = text.find(" = #", at)) {
    const size_t end = text.find('\n', found), colon = text.rfind(": f32[", found);
    Shape shape;
    for (size_t p = colon + 6; p < found && text[p - 1] != ']'; p = text.find_first_of(",]", p) + 1)
      shape.push_back(std::stoll(text.substr(p)));
    graph::Random random(seed++);
    Tensor tensor = Tensor::allocate({DType::f32, shape});
    for (int64_t k = 0; k < tensor.count(); ++k) tensor.set_double(k, random.normal() * 0.3);
    const Hash hash = hash_bytes(tensor.data(), static_cast<size_t>(tensor.bytes()));
    weights[hash] = tensor;
    out += text.substr(at, found + 4 - at) + to_string(hash);
    at = end;
  }
  Result<Graph> graph = graph::parse(out + text.substr(at), weights);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

TEST(Rows, OfABatchThroughAnEncoder) {
  const Graph graph = filled(kEncoder);
  for (int64_t count : {1, 2, 3}) expect_same_rows(graph, count);
  EXPECT_NEAR(share(graph, 1), 1.0 / 6, 0.01);
}

TEST(Rows, OfABatchThroughConvolutionsAndPools) {
  const Graph graph = filled(kPictures);
  for (int64_t count : {1, 2, 4}) expect_same_rows(graph, count);
  EXPECT_NEAR(share(graph, 2), 2.0 / 5, 0.01);
}

TEST(Rows, OfPixelsTakeTheirWindows) {
  const Graph graph = filled(R"(graph "pixels" {
  in %0 "x": f32[1,3,40,10]
  const %1 "w": f32[4,3,3,3] = #a
  const %2 "one": f32[1,4,1,1] = #b
  const %6 "axes": i64[2] = [0, 1]
  %3: f32[1,4,20,10] = Conv(%0, %1) {pads = [2, 1, 2, 1], strides = [2, 1], dilations = [2, 1]}
  %4: f32[1,1,20,10] = Conv(%3, %2)
  %5: f32[20,10] = Squeeze(%4, %6)
  out %5 "y"
})");
  for (int64_t count : {1, 2}) expect_same_rows(graph, count);
  EXPECT_LT(share(graph, 1), 0.1);
}

TEST(Rows, OfATableOfVeryManyRowsTakeNoListOfThem) {
  const Graph graph = filled(R"(graph "lookup" {
  in %0 "table": f32[500000000000,2]
  in %1 "ids": i64[5]
  %2: f32[5,2] = Gather(%0, %1)
  out %2 "rows"
})");
  const Demand demand(graph, spread_rows(graph, 2));
  EXPECT_EQ(demand.elements(), 4);
}

TEST(Rows, OfRandomGraphs) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Graph graph = graph::random_graph(seed);
    expect_same_rows(graph, 1 + static_cast<int64_t>(seed % 3));
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Rows, TheReferenceKeepsToItsTime) {
  const Graph graph = filled(kEncoder);
  const std::vector<Tensor> inputs = generate_inputs(graph, 0);
  Options options;
  options.seconds = 1e-9;
  const auto none = reference(graph, inputs, options);
  ASSERT_TRUE(none.ok());
  EXPECT_NE(none->why_not.find("one row"), std::string::npos) << none->why_not;
  const std::vector<Tensor> got = graph::interpret(graph, inputs).ok()
                                      ? *graph::interpret(graph, inputs)
                                      : std::vector<Tensor>();
  const auto report = compare_outputs(graph, got, *none);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->rows, "");
  EXPECT_EQ(report->text(), none->why_not);
  options.seconds = 100;
  const auto all = reference(graph, inputs, options);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->text(graph), "every row");
}

TEST(Rows, AWrongElementIsNamedByItsOwnCoordinate) {
  const Graph graph = filled(kPictures);
  const std::vector<Tensor> inputs = generate_inputs(graph, 0);
  const std::vector<Rows> rows = spread_rows(graph, 2);  // 0 and 4
  Reference known;
  known.rows = rows;
  known.wanted = *Demand(graph, rows).interpret(inputs, {.exact = true});
  known.rounded = *Demand(graph, rows).interpret(inputs, rounding_as(Precision::kKeep));
  std::vector<Tensor> got = *graph::interpret(graph, inputs);
  EXPECT_TRUE(compare_outputs(graph, got, known)->ok);
  got[0].set_double(4 * 7 + 3, 9);
  const auto report = compare_outputs(graph, got, known);
  ASSERT_FALSE(report->ok);
  EXPECT_EQ(report->bad->coordinate, (Shape{4, 3}));
  EXPECT_EQ(report->rows, "2 of 5 rows of 'y'");
}

}  // namespace
}  // namespace obelisk::verify
