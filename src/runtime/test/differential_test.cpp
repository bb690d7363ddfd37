// Programs against the interpreter: graphs as text, run on one, two and seven virtual SMs.
#include "runtime/test/run_program.h"

#include "graph/test_texts.h"
#include "passes/passes.h"

namespace obelisk::runtime {
namespace {

constexpr double kMost = 0.25;  // of constants that are random

/// After all passes, as a program is made of it.
Result<graph::Graph> compiled_graph(const std::string& text) {
  Result<graph::Graph> graph = graph::parse_random(text, kMost);
  for (const passes::Pass& pass : passes::table()) {
    if (!graph.ok()) return graph;
    graph = pass.run(std::move(*graph));
  }
  return graph;
}

class Differential : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Differential, ProgramEqualsInterpreter) {
  auto graph = graph::parse_random(GetParam().second, kMost);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const bool halves = std::string_view(GetParam().first) ==
                      "gru_steps";  // a state meets R in 16 bits: a unit in the last place
  expect_same(*graph, *graph, GetParam().first, halves ? 0x1p-11 : 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Differential,
                         testing::Values(std::pair{"add_relu", R"(graph "g" {
  in %0 "x": f32[5,37]
  in %1 "y": f32[37]
  %2: f32[5,37] = Add(%0, %1)
  %3: f32[5,37] = Relu(%2)
  out %3 "z"
})"},
                                         std::pair{"softmax_parts", R"(graph "g" {
  in %0 "x": f32[3,4,33]
  const %9: i64[1] = [-1]
  %1: f32[3,4,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: f32[3,4,33] = Sub(%0, %1)
  %3: f32[3,4,33] = Exp(%2)
  %4: f32[3,4,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: f32[3,4,33] = Div(%3, %4)
  out %5 "z"
})"},
                                         // Long enough for rows, points, columns and squares that
                                         // are requested some batches ahead of their use.
                                         std::pair{"many_rows", R"(graph "g" {
  in %0 "x": f32[2051,128]
  in %1 "y": f32[128]
  const %9: i64[1] = [-1]
  %2: f32[2051,1] = ReduceMax(%0, %9) {keepdims = 1}
  %3: f32[2051,128] = Sub(%0, %2)
  %4: f32[2051,128] = Mul(%3, %1)
  %5: f32[2051,1] = ReduceSum(%4, %9) {keepdims = 1}
  %6: f32[2051,128] = Add(%4, %5)
  out %6 "z"
})"},
                                         std::pair{"many_ragged_rows", R"(graph "g" {
  in %0 "x": f32[2051,143]
  const %9: i64[1] = [-1]
  %1: f32[2051,1] = ReduceMax(%0, %9) {keepdims = 1}
  out %1 "z"
})"},
                                         std::pair{"many_points", R"(graph "g" {
  in %0 "x": f16[1031,640]
  in %1 "y": f16[1031,640]
  in %2 "b": f16[640]
  %3: f16[1031,640] = Max(%0, %1)
  %4: f16[1031,640] = Max(%3, %2)
  out %4 "z"
})"},
                                         std::pair{"many_columns", R"(graph "g" {
  in %0 "x": f32[1500,264]
  const %9: i64[1] = [0]
  %1: f32[1,264] = ReduceMax(%0, %9) {keepdims = 1}
  out %1 "z"
})"},
                                         std::pair{"many_squares", R"(graph "g" {
  in %0 "x": f32[388,776]
  in %1 "y": f32[776,388]
  %2: f32[776,388] = Transpose(%0) {perm = [1, 0]}
  %3: f32[776,388] = Add(%2, %1)
  out %3 "z"
})"},
                                         std::pair{"rows_looked_up", R"(graph "g" {
  in %0 "i": i64[60,39]
  in %1 "table": f16[6,16]
  %2: f16[60,39,16] = Gather(%1, %0) {axis = 0}
  const %9: i64[1] = [1]
  %3: f16[60,16] = ReduceSum(%2, %9) {keepdims = 0}
  out %2 "y"
  out %3 "z"
})"},
                                         std::pair{"transpose_add", R"(graph "g" {
  in %0 "x": f32[3,4,33]
  in %1 "y": f32[33,3,4]
  %2: f32[33,3,4] = Transpose(%0) {perm = [2, 0, 1]}
  %3: f32[33,3,4] = Add(%2, %1)
  const %9: i64[2] = [99, 4]
  %4: f32[99,4] = Reshape(%3, %9)
  %5: f32[99,4] = Exp(%4)
  out %5 "z"
})"},
                                         std::pair{"rotary", R"(graph "g" {
  in %0 "x": f32[2,5,3,8]
  in %1 "cos": f32[2,5,4]
  in %2 "sin": f32[2,5,4]
  %3: f32[2,5,3,8] = Tanh(%0)
  %4: f32[2,3,5,8] = Transpose(%3) {perm = [0, 2, 1, 3]}
  %5: f32[2,3,5,8] = RotaryEmbedding(%4, %1, %2)
  %6: f32[2,3,5,8] = Add(%5, %5)
  out %6 "z"
})"},
                                         // Light ops of a product's columns, read elsewhere than
                                         // they are made; and a cast of which readers take slices.
                                         std::pair{"rotary_by_hand", R"(graph "g" {
  in %0 "x": f32[5,24]
  in %1 "w": f32[24,16]
  in %2 "cos": f32[5,8]
  in %3 "sin": f32[5,8]
  in %4 "cache": f16[2,3,2,8]
  const %5: i64[3] = [5, 2, 8]
  const %6: i64[1] = [0]
  const %7: i64[1] = [4]
  const %8: i64[1] = [8]
  const %9: i64[1] = [2]
  const %10: i64[3] = [5, 1, 8]
  const %11: i64[] = 1
  %12: f32[5,16] = MatMul(%0, %1)
  %13: f32[5,2,8] = Reshape(%12, %5)
  %14: f32[5,1,8] = Reshape(%2, %10)
  %15: f32[5,1,8] = Reshape(%3, %10)
  %16: f32[5,2,8] = Mul(%13, %14)
  %17: f32[5,2,4] = Slice(%13, %7, %8, %9)
  %18: f32[5,2,4] = Neg(%17)
  %19: f32[5,2,4] = Slice(%13, %6, %7, %9)
  %20: f32[5,2,8] = Concat(%18, %19) {axis = -1}
  %21: f32[5,2,8] = Mul(%20, %15)
  %22: f32[5,2,8] = Add(%16, %21)
  %23: f32[2,3,2,8] = Cast(%4) {to = 1}
  %24: f32[3,2,8] = Gather(%23, %11) {axis = 0}
  %25: f32[8,2,8] = Concat(%24, %22) {axis = 0}
  out %25 "z"
})"},
                                         std::pair{"matmul_bias", R"(graph "g" {
  in %0 "x": f32[2,9,40]
  in %1 "w": f32[40,24]
  in %2 "b": f32[24]
  %3: f32[2,9,24] = MatMul(%0, %1)
  %4: f32[2,9,24] = Add(%3, %2)
  %5: f32[2,9,24] = Tanh(%4)
  out %5 "z"
})"},
                                         std::pair{"norm_products_residual", R"(graph "g" {
  in %0 "x": f32[2,9,40]
  const %1: f32[40,150] = @random
  const %2: f32[40,40] = @random
  in %3 "s": f32[40]
  const %9: i64[1] = [-1]
  %4: f32[2,9,1] = ReduceMean(%0, %9) {keepdims = 1}
  %5: f32[2,9,40] = Sub(%0, %4)
  %6: f32[2,9,40] = Mul(%5, %5)
  %7: f32[2,9,1] = ReduceMean(%6, %9) {keepdims = 1}
  %8: f32[2,9,1] = Sqrt(%7)
  %10: f32[2,9,40] = Div(%5, %8)
  %11: f32[2,9,40] = Mul(%10, %3)
  %12: f32[2,9,150] = MatMul(%11, %1)
  %13: f32[2,9,150] = Tanh(%12)
  %14: f32[2,9,40] = MatMul(%11, %2)
  %15: f32[2,9,40] = Tanh(%14)
  %16: f32[2,9,40] = Mul(%15, %15)
  %17: f32[2,9,40] = Add(%16, %11)
  out %13 "y"
  out %16 "t"
  out %17 "z"
})"},
                                         std::pair{"softmax_product", R"(graph "g" {
  in %0 "x": f32[30,64]
  const %1: f32[64,48] = @random
  %2: f32[30,64] = Softmax(%0) {axis = -1}
  %3: f32[30,48] = MatMul(%2, %1)
  out %3 "z"
})"},
                                         std::pair{"gemm_of_ones", R"(graph "g" {
  in %0 "x": f32[1,40]
  in %1 "b": f32[90]
  const %2: i64[2] = [40, 90]
  %3: f32[40,90] = ConstantOfShape(%2)
  %4: f32[40,90] = Exp(%3)
  %5: f32[1,90] = Gemm(%0, %4, %1)
  out %5 "z"
})"},
                                         std::pair{"column_sum_then_bias", R"(graph "g" {
  in %0 "x": f32[7,90]
  in %1 "b": f32[90]
  const %2: i64[1] = [0]
  %3: f32[90] = ReduceSum(%0, %2) {keepdims = 0}
  %4: f32[90] = Add(%3, %1)
  out %4 "z"
})"},
                                         std::pair{"conv_relu", R"(graph "g" {
  in %0 "x": f32[2,6,9,11]
  const %1: f32[5,6,3,3] = @random
  in %2 "b": f32[5]
  %3: f32[2,6,9,11] = Identity(%0)
  %4: f32[2,5,5,6] = Conv(%3, %1, %2) {pads = [1, 1, 1, 1], strides = [2, 2]}
  %5: f32[2,5,5,6] = Relu(%4)
  out %5 "z"
})"},
                                         std::pair{"conv_chain", R"(graph "g" {
  in %0 "x": f32[1,3,14,14]
  const %1: f32[70,3,3,3] = @random
  const %2: f32[70,1,3,3] = @random
  const %3: f32[70,35,1,1] = @random
  const %4: f32[8,70,1,1] = @random
  %5: f32[1,3,14,14] = Identity(%0)
  %6: f32[1,70,14,14] = Conv(%5, %1) {pads = [1, 1, 1, 1]}
  %7: f32[1,70,14,14] = Relu(%6)
  %8: f32[1,70,14,14] = Conv(%7, %2) {group = 70, pads = [1, 1, 1, 1]}
  %9: f32[1,70,14,14] = Add(%8, %7)
  %10: f32[1,70,14,14] = Conv(%9, %3) {group = 2}
  %11: f32[1,8,14,14] = Conv(%10, %4)
  %12: f32[1,8,7,7] = MaxPool(%11) {kernel_shape = [2, 2], strides = [2, 2]}
  %13: f32[1,8,1,1] = GlobalAveragePool(%12)
  %14: f32[1,16,7,7] = Concat(%12, %12) {axis = 1}
  out %13 "z"
  out %14 "y"
})"}));

const std::pair<const char*, const char*> kMovedCases[] = {
    // The sum of nothing reads no element of the convolution, whose group then has nothing to
    // store.
    std::pair{"sum_before_the_first_element", R"(graph "g" {
  in %0 "x": f32[1,1,4]
  const %1: f32[1,1,1] = @random
  const %2: i64[] = 0
  %3: f32[1,1,4] = Conv(%0, %1)
  %4: f32[1,1,4] = CumSum(%3, %2) {exclusive = 1}
  out %4 "y"
})"},
    // The second half of a channel shuffle is stored in the concatenation that follows it:
    // what reads the shuffled channels reads both pieces of the first concatenation.
    std::pair{"channel_shuffle", R"(graph "g" {
  in %0 "a": f32[1,4,3,3]
  in %1 "b": f32[1,4,3,3]
  %2: f32[1,4,3,3] = Relu(%0)
  %3: f32[1,4,3,3] = Relu(%1)
  %4: f32[1,8,3,3] = Concat(%2, %3) {axis = 1}
  const %5: i64[5] = [1, 2, 4, 3, 3]
  %6: f32[1,2,4,3,3] = Reshape(%4, %5)
  %7: f32[1,4,2,3,3] = Transpose(%6) {perm = [0, 2, 1, 3, 4]}
  const %8: i64[4] = [1, 8, 3, 3]
  %9: f32[1,8,3,3] = Reshape(%7, %8)
  const %10: i64[2] = [4, 4]
  %11: f32[1,4,3,3], %12: f32[1,4,3,3] = Split(%9, %10) {axis = 1}
  %13: f32[1,4,3,3] = Relu(%12)
  const %14: f32[] = 2
  %15: f32[1,4,3,3] = Mul(%13, %14)
  %16: f32[1,8,3,3] = Concat(%11, %15) {axis = 1}
  out %16 "z"
})"},
    // The rows and columns of a convolution's pixels change places behind it.
    std::pair{"conv_of_pixels_transposed", R"(graph "g" {
  in %0 "x": f32[2,8,6,4]
  const %1: f32[8,8,1,1] = @random
  %2: f32[2,8,6,4] = Relu(%0)
  %3: f32[2,8,6,4] = Conv(%2, %1)
  %4: f32[2,4,6,8] = Transpose(%3) {perm = [0, 3, 2, 1]}
  out %4 "z"
})"},
    std::pair{"conv_of_one_row_transposed", R"(graph "g" {
  in %0 "x": f32[1,8,1,5]
  const %1: f32[8,8,3,3] = @random
  %2: f32[1,8,1,5] = Relu(%0)
  %3: f32[1,8,1,5] = Conv(%2, %1) {pads = [1, 1, 1, 1]}
  %4: f32[5,1,1,8] = Transpose(%3) {perm = [3, 2, 0, 1]}
  out %4 "z"
})"},
    std::pair{"conv_of_one_column_transposed", R"(graph "g" {
  in %0 "x": f32[3,8,5,1]
  const %1: f32[8,8,3,3] = @random
  %2: f32[3,8,5,1] = Relu(%0)
  %3: f32[3,8,5,1] = Conv(%2, %1) {pads = [1, 1, 1, 1]}
  %4: f32[5,1,3,8] = Transpose(%3) {perm = [2, 3, 0, 1]}
  out %4 "z"
})"},
    std::pair{"conv_of_a_line_transposed", R"(graph "g" {
  in %0 "x": f32[3,8,5]
  const %1: f32[8,8,3] = @random
  %2: f32[3,8,5] = Relu(%0)
  %3: f32[3,8,5] = Conv(%2, %1) {pads = [1, 1]}
  %4: f32[5,3,8] = Transpose(%3) {perm = [2, 0, 1]}
  out %4 "z"
})"}};

INSTANTIATE_TEST_SUITE_P(Moved, Differential, testing::ValuesIn(kMovedCases));

const std::pair<const char*, const char*> kBlockCases[] = {
    std::pair{"top_k_of_a_sum", R"(graph "g" {
  in %0 "x": f32[3,500,2]
  in %1 "y": f32[3,500,2]
  const %2: i64[1] = [7]
  %3: f32[3,500,2] = Add(%0, %1)
  %4: f32[3,7,2], %5: i64[3,7,2] = TopK(%3, %2) {axis = 1}
  %6: f32[3,7,2] = Exp(%4)
  out %6 "z"
  out %5 "i"
})"},
    std::pair{"long_scan", R"(graph "g" {
  in %0 "x": f32[3,2000,2]
  const %1: i64[] = [1]
  %2: f32[3,2000,2] = CumSum(%0, %1) {exclusive = 1, reverse = 1}
  %3: f32[3,2000,2] = Abs(%2)
  out %3 "z"
})"},
    std::pair{"scan_of_integers", R"(graph "g" {
  in %0 "x": i32[70000]
  const %1: i64[] = [0]
  %2: i32[70000] = CumSum(%0, %1)
  out %2 "z"
})"},
    std::pair{"scatter_elements", R"(graph "g" {
  in %0 "x": f32[6,900]
  in %1 "i": i64[3,400]
  in %2 "u": f32[3,400]
  %3: f32[6,900] = Relu(%0)
  %4: f32[6,900] = ScatterElements(%3, %1, %2) {axis = 0, reduction = "add"}
  %5: f32[6,900] = Neg(%4)
  out %5 "z"
})"},
    std::pair{"scatter_nd", R"(graph "g" {
  in %0 "x": f32[6,6,300]
  in %1 "i": i64[11,2]
  in %2 "u": f32[11,300]
  %3: f32[6,6,300] = ScatterND(%0, %1, %2)
  out %3 "z"
})"},
    std::pair{"scatter_of_a_transpose", R"(graph "g" {
  in %0 "x": f32[300,6]
  in %1 "i": i64[11,1]
  in %2 "u": f32[11,300]
  %3: f32[6,300] = Transpose(%0) {perm = [1, 0]}
  %4: f32[6,300] = ScatterND(%3, %1, %2) {reduction = "max"}
  %5: f32[300,6] = Transpose(%4) {perm = [1, 0]}
  %6: f32[300,6] = Add(%5, %0)
  out %6 "z"
})"},
    std::pair{"scatter_into_itself", R"(graph "g" {
  in %0 "x": f32[6,300]
  in %1 "i": i64[6,1]
  %2: f32[6,300] = ScatterND(%0, %1, %0) {reduction = "mul"}
  out %2 "z"
})"},
    std::pair{"max_unpool", R"(graph "g" {
  in %0 "x": f32[2,3,9,11]
  %1: f32[2,3,4,5], %2: i64[2,3,4,5] = MaxPool(%0) {kernel_shape = [2, 2], strides = [2, 2]}
  %3: f32[2,3,8,10] = MaxUnpool(%1, %2) {kernel_shape = [2, 2], strides = [2, 2]}
  out %3 "z"
})"},
    std::pair{"roi_align", R"(graph "g" {
  in %0 "x": f32[6,3,9,11]
  in %1 "r": f32[5,4]
  in %2 "b": i64[5]
  %3: f32[5,3,4,2] = RoiAlign(%0, %1, %2) {output_height = 4, output_width = 2, sampling_ratio = 2}
  out %3 "z"
})"},
    std::pair{"determinants", R"(graph "g" {
  in %0 "x": f32[40,4,4]
  %1: f32[40] = Det(%0)
  out %1 "z"
})"},
    std::pair{"lstm_steps", R"(graph "g" {
  in %0 "x": f32[9,11,8]
  in %1 "w": f32[8,240]
  in %2 "r": f32[2,120,30]
  in %3 "h": f32[2,11,30]
  in %4 "c": f32[2,11,30]
  const %5: f32[] = [0.2]
  %6: f32[9,11,240] = MatMul(%0, %1)
  %7: f32[2,120,30] = Mul(%2, %5)
  %8: f32[9,2,11,30], %9: f32[2,11,30], %10: f32[2,11,30] = Recurrence(%6, %7, _, _, %3, %4) {cell = "lstm", direction = "bidirectional"}
  %11: f32[9,2,11,30] = Exp(%8)
  out %11 "y"
  out %9 "h1"
  out %10 "c1"
})"},
    std::pair{"gru_steps", R"(graph "g" {
  in %0 "x": f32[5,3,99]
  in %1 "r": f16[1,99,33]
  in %2 "b": f32[1,33]
  const %3: f16[] = [0.2]
  const %4: i32[3] = [5, 0, 3]
  %5: f16[1,99,33] = Mul(%1, %3)
  %6: f16[5,1,3,33], %7: f16[1,3,33] = Recurrence(%0, %5, %2, %4) {cell = "gru", direction = "reverse"}
  out %6 "y"
  out %7 "h1"
})"},
    std::pair{"rnn_steps", R"(graph "g" {
  in %0 "x": f32[5,3,7]
  in %1 "r": f32[1,7,7]
  %2: f32[5,1,3,7] = Recurrence(%0, %1) {cell = "rnn", direction = "forward"}
  out %2 "y"
})"},
    std::pair{"bits", R"(graph "g" {
  in %0 "x": f32[3,40]
  %1: i32[3,40] = BitCast(%0) {to = 6}
  out %1 "z"
})"}};

// The passes' answer is compared with what the reference says of the graph before them.
class Compiled : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Compiled, ProgramEqualsInterpreter) {
  auto graph = graph::parse_random(GetParam().second, kMost),
       after = compiled_graph(GetParam().second);
  ASSERT_TRUE(graph.ok() && after.ok()) << (graph.ok() ? after : graph).error().text();
  expect_same(*graph, *after, GetParam().first);
}

INSTANTIATE_TEST_SUITE_P(Blocks, Differential, testing::ValuesIn(kBlockCases));

class AdaptedGroups : public testing::TestWithParam<graph::TextCase> {};
TEST_P(AdaptedGroups, ProgramEqualsInterpreter) {
  auto graph = graph::parse(graph::of_type(GetParam().text, "f32"));
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  expect_same(*graph, *graph, GetParam().name, 1e-4);
}
INSTANTIATE_TEST_SUITE_P(Graphs, AdaptedGroups, testing::ValuesIn(graph::kAdaptedGroups),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Blocks, StepsAreTheSameOn132VirtualSms) {
  for (const auto& [name, text] : kBlockCases) {
    if (std::string_view(text).find("Recurrence") == std::string_view::npos) continue;
    auto graph = graph::parse(text);
    ASSERT_TRUE(graph.ok()) << name << ": " << graph.error().text();
    const std::vector<Tensor> inputs = graph::random_inputs(*graph, 5);
    const auto one = run_program(*graph, inputs, 1, true, true),
               many = run_program(*graph, inputs, 132, true, true);
    ASSERT_EQ(one.outputs.size(), many.outputs.size());
    for (size_t k = 0; k < one.outputs.size(); ++k)
      EXPECT_EQ(std::memcmp(one.outputs[k].data(), many.outputs[k].data(), one.outputs[k].bytes()),
                0)
          << name << " output " << k;
  }
}

// None of these ops is left to its reference, and each is cut for several workers where it is
// large.
TEST(Blocks, NoReferenceIsCalled) {
  for (const auto& [name, text] : kBlockCases) {
    auto graph = graph::parse(text);
    ASSERT_TRUE(graph.ok()) << name << ": " << graph.error().text();
    const machine::Machine device = machine::cpu(4);
    const stitch::Plan plan = stitch::plan(*graph, device);
    int blocks = 0;
    for (const stitch::Group& group : plan.groups) {
      EXPECT_NE(group.kind, stitch::GroupKind::kCustom) << name;
      blocks += group.kind == stitch::GroupKind::kBlock;
    }
    EXPECT_EQ(blocks, 1) << name;
    const schedule::TaskGraph tasks = schedule::build(*graph, plan, device);
    if (std::string_view(name) == "long_scan") {
      EXPECT_GE(tasks.task_count(), 4);
    }
  }
}

const std::pair<const char*, const char*> kMemoryCases[] = {
    std::pair{"positions_read_under_a_guard", R"(graph "g" {
  in %0 "x": f32[3]
  const %1: i64[4] = [0, -1, 2, 1]
  const %2: i64[4] = [-1, 0, -1, -1]
  const %3: i64[1] = [2]
  const %4: i64[1] = [3]
  const %5: i64[1] = [0]
  %6: f32[3] = Mul(%0, %0) "square"
  %7: f32[4] = Gather(%0, %1) {axis = 0} "some"
  %8: f32[7] = Concat(%6, %7) {axis = 0} "both"
  %9: f32[1] = Slice(%8, %3, %4, %5) "one"
  %11: f32[4] = Gather(%9, %2) {axis = 0} "spread"
  %10: f32[3] = Tanh(%6) "tanh"
  out %11 "y"
  out %10 "z"
})"},
    std::pair{"joined_moves_joined_again", R"(graph "g" {
  in %0 "x": f32[2,3]
  in %1 "y": f32[2,3]
  %2: f32[2,3] = Tanh(%0)
  %3: f32[2,3] = Exp(%1)
  const %4: i64[4] = [1, 1, 2, 3]
  %5: f32[1,1,2,3] = Reshape(%2, %4)
  %6: f32[1,1,2,3] = Reshape(%3, %4)
  %7: f32[2,1,2,3] = Concat(%5, %6) {axis = 0}
  %8: f32[2,3] = Sin(%0)
  %9: f32[2,3] = Cos(%1)
  %10: f32[1,1,2,3] = Reshape(%8, %4)
  %11: f32[1,1,2,3] = Reshape(%9, %4)
  %12: f32[2,1,2,3] = Concat(%11, %10) {axis = 0}
  %13: f32[2,2,2,3] = Concat(%7, %12) {axis = 1}
  out %13 "z"
})"},
    std::pair{"squares_transposed", R"(graph "g" {
  in %0 "x": f32[3,100,72]
  in %1 "y": f32[3,72,100]
  %2: f32[3,72,100] = Transpose(%0) {perm = [0, 2, 1]}
  %3: f32[3,72,100] = Add(%2, %1)
  out %3 "z"
})"},
    std::pair{"halves_transposed", R"(graph "g" {
  in %0 "x": f16[130,67]
  %2: f16[67,130] = Transpose(%0) {perm = [1, 0]}
  out %2 "z"
})"},
    std::pair{"halves_transposed_in_packs", R"(graph "g" {
  in %0 "x": bf16[2,136,200]
  in %1 "y": f16[2,200,136]
  %2: bf16[2,200,136] = Transpose(%0) {perm = [0, 2, 1]}
  %3: f16[2,200,136] = CastLike(%2, %1)
  %4: f16[2,200,136] = Add(%3, %1)
  out %4 "z"
})"},
    std::pair{"means_of_long_columns", R"(graph "g" {
  in %0 "x": f32[200,96]
  const %1: i64[1] = [0]
  %2: f32[1,96] = ReduceMean(%0, %1) {keepdims = 1}
  %3: f32[200,96] = Sub(%0, %2)
  %4: f32[200,96] = Mul(%3, %3)
  %5: f32[1,96] = ReduceMean(%4, %1) {keepdims = 1}
  %6: f32[1,96] = Sqrt(%5)
  out %6 "z"
})"},
    std::pair{"rows_longer_than_a_warp_holds", R"(graph "g" {
  in %0 "x": f32[37,4096]
  const %1: i64[1] = [1]
  %2: f32[37,1] = ReduceMean(%0, %1) {keepdims = 1}
  %3: f32[37,4096] = Sub(%0, %2)
  %4: f32[37,4096] = Exp(%3)
  out %4 "z"
})"},
    std::pair{"many_short_rows", R"(graph "g" {
  in %0 "x": f32[5000,12]
  const %1: i64[1] = [1]
  %2: f32[5000,1] = ReduceMax(%0, %1) {keepdims = 1}
  %3: f32[5000,12] = Sub(%0, %2)
  out %3 "z"
})"}};

INSTANTIATE_TEST_SUITE_P(Memory, Compiled, testing::ValuesIn(kMemoryCases));

const std::pair<const char*, const char*> kProductCases[] = {
    std::pair{"transposed_conv_of_a_unet", R"(graph "g" {
  in %0 "x": f32[2,6,5,7]
  const %1: f32[6,4,2,2] = @random
  in %2 "b": f32[4]
  %3: f32[2,6,5,7] = Relu(%0)
  %4: f32[2,4,10,14] = ConvTranspose(%3, %1, %2) {strides = [2, 2]}
  %5: f32[2,4,10,14] = Relu(%4)
  out %5 "z"
})"},
    std::pair{"transposed_conv_that_overlaps", R"(graph "g" {
  in %0 "x": f32[1,6,5,7]
  const %1: f32[6,2,4,5] = @random
  in %2 "b": f32[4]
  %3: f32[1,4,10,21] = ConvTranspose(%0, %1, %2) {group = 2, output_padding = [0, 1], pads = [1, 1, 1, 2], strides = [2, 3]}
  out %3 "z"
})"},
    std::pair{"transposed_conv_dilated", R"(graph "g" {
  in %0 "x": f32[1,3,9]
  const %1: f32[3,2,3] = @random
  %3: f32[1,2,11] = ConvTranspose(%0, %1) {dilations = [2], pads = [1, 1]}
  const %4: f32[2,3,3] = @random
  %5: f32[1,3,25] = ConvTranspose(%3, %4) {dilations = [2], strides = [2]}
  out %5 "z"
})"},
    std::pair{"transposed_conv_of_channels", R"(graph "g" {
  in %0 "x": f32[1,70,5,5]
  const %1: f32[70,1,4,4] = @random
  %3: f32[1,70,10,10] = ConvTranspose(%0, %1) {group = 70, pads = [1, 1, 1, 1], strides = [2, 2]}
  out %3 "z"
})"},
    std::pair{"product_of_merged_heads", R"(graph "g" {
  in %0 "x": f32[2,3,9,8]
  in %1 "w": f32[24,40]
  %2: f32[2,3,9,8] = Exp(%0)
  %3: f32[2,9,3,8] = Transpose(%2) {perm = [0, 2, 1, 3]}
  const %4: i64[3] = [2, 9, 24]
  %5: f32[2,9,24] = Reshape(%3, %4)
  %6: f32[2,9,40] = MatMul(%5, %1)
  out %6 "z"
  out %2 "y"
})"},
    std::pair{"gemm_transposed", R"(graph "g" {
  in %0 "x": f32[24,9]
  in %1 "w": f32[40,24]
  in %2 "b": f32[40]
  %3: f32[9,40] = Gemm(%0, %1, %2) {transA = 1, transB = 1}
  out %3 "z"
})"},
    std::pair{"product_over_two_dimensions", R"(graph "g" {
  in %0 "x": f32[5,6,7]
  in %1 "y": f32[6,7,40]
  %2: f32[5,40] = Einsum(%0, %1) {equation = "akl,klb->ab"}
  out %2 "z"
})"},
    std::pair{"product_with_two_column_dimensions", R"(graph "g" {
  in %0 "x": f32[5,6]
  in %1 "y": f32[6,3,20]
  %2: f32[5,3,20] = Einsum(%0, %1) {equation = "ak,kbc->abc"}
  out %2 "z"
})"}};

INSTANTIATE_TEST_SUITE_P(Products, Compiled, testing::ValuesIn(kProductCases));

// Products and transposed convolutions of any form are computed by tiles.
TEST(Products, AllHaveTiles) {
  for (const auto& [name, text] : kProductCases) {
    auto graph = compiled_graph(text);
    ASSERT_TRUE(graph.ok()) << name << ": " << graph.error().text();
    int tiles = 0;
    for (const stitch::Group& group : stitch::plan(*graph, machine::cpu(2)).groups) {
      tiles += group.kind == stitch::GroupKind::kProduct || group.kind == stitch::GroupKind::kConv;
      for (graph::NodeId n : group.nodes)
        if (group.kind == stitch::GroupKind::kStitched) {
          EXPECT_NE(ops::row(graph->node(n).op).kind, ops::Kind::kCompute) << name;
        }
    }
    EXPECT_GE(tiles, 1) << name;
  }
}

// A convolution of single pixels could be told as products of one image row each; its own tile
// spans the whole image.
TEST(Products, ConvolutionsOfPixelsStayConvolutions) {
  auto graph = compiled_graph(R"(graph "g" {
  in %0 "x": f32[1,8,5,7]
  const %1: f32[24,8,3,3] = @random
  const %2: f32[40,24,1,1] = @random
  %3: f32[1,24,5,7] = Conv(%0, %1) {pads = [1, 1, 1, 1]}
  %4: f32[1,40,5,7] = Conv(%3, %2)
  out %4 "z"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  int convs = 0;
  for (const stitch::Group& group : stitch::plan(*graph, machine::cpu(2)).groups)
    convs += group.kind == stitch::GroupKind::kConv;
  EXPECT_EQ(convs, 2);
}

}  // namespace
}  // namespace obelisk::runtime
