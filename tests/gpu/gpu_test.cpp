// The CUDA target against the interpreter: graphs as text become one kernel, a graph of stitched
// kernels, a kernel an op; what contexts promise. Where no device compiler is found everything is
// skipped; where no GPU is, the kernels are compiled for sm_90a and not run.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "graph/test_decoder.h"
#include "graph/test_texts.h"
#include "passes/passes.h"
#include "programs.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/cuda/source.h"
#include "sample.h"

namespace obelisk::runtime::cuda {
namespace {

using Case = graph::TextCase;

const Case kCases[] = {
    {"softmax", R"(graph "g" {
  in %0 "x": FLOAT[3,70,333]
  const %9: i64[1] = [-1]
  %1: FLOAT[3,70,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[3,70,333] = Sub(%0, %1)
  %3: FLOAT[3,70,333] = Exp(%2)
  %4: FLOAT[3,70,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: FLOAT[3,70,333] = Div(%3, %4)
  out %5 "z"
})"},
    {"softmax_long_rows", R"(graph "g" {
  in %0 "x": FLOAT[133,9000]
  const %9: i64[1] = [-1]
  %1: FLOAT[133,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[133,9000] = Sub(%0, %1)
  %3: FLOAT[133,9000] = Exp(%2)
  %4: FLOAT[133,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: FLOAT[133,9000] = Div(%3, %4)
  out %5 "z"
})"},
    {"layer_norm", R"(graph "g" {
  in %0 "x": FLOAT[2,128,768]
  in %1 "s": FLOAT[768]
  in %2 "b": FLOAT[768]
  const %9: i64[1] = [-1]
  const %20: FLOAT[] = [0.00001]
  %3: FLOAT[2,128,1] = ReduceMean(%0, %9) {keepdims = 1}
  %4: FLOAT[2,128,768] = Sub(%0, %3)
  %5: FLOAT[2,128,768] = Mul(%4, %4)
  %6: FLOAT[2,128,1] = ReduceMean(%5, %9) {keepdims = 1}
  %7: FLOAT[2,128,1] = Add(%6, %20)
  %8: FLOAT[2,128,1] = Sqrt(%7)
  %10: FLOAT[2,128,768] = Div(%4, %8)
  %11: FLOAT[2,128,768] = Mul(%10, %1)
  %12: FLOAT[2,128,768] = Add(%11, %2)
  out %12 "z"
})"},
    {"gelu_chain", R"(graph "g" {
  in %0 "x": FLOAT[128,1030]
  in %1 "b": FLOAT[1030]
  in %2 "y": FLOAT[128,1030]
  %3: FLOAT[128,1030] = Add(%0, %1)
  %4: FLOAT[128,1030] = Gelu(%3)
  %5: FLOAT[128,1030] = Add(%4, %2)
  %6: FLOAT[128,1030] = Tanh(%5)
  out %6 "z"
})"},
    {"transpose_add", R"(graph "g" {
  in %0 "x": FLOAT[13,40,33]
  in %1 "y": FLOAT[33,13,40]
  %2: FLOAT[33,13,40] = Transpose(%0) {perm = [2, 0, 1]}
  %3: FLOAT[33,13,40] = Add(%2, %1)
  %4: FLOAT[33,13,40] = Exp(%3)
  out %4 "z"
})"},
    {"transposes", R"(graph "g" {
  in %0 "x": FLOAT[264,136]
  in %1 "y": FLOAT[3,130,67]
  %2: FLOAT[136,264] = Transpose(%0) {perm = [1, 0]}
  %3: FLOAT[3,67,130] = Transpose(%1) {perm = [0, 2, 1]}
  out %2 "z"
  out %3 "w"
})"},
    {"rows_that_registers_hold", R"(graph "g" {
  in %0 "x": FLOAT[5,8192]
  in %1 "y": FLOAT[3,24576]
  const %9: i64[1] = [1]
  const %7: FLOAT[] = [4096]
  %2: FLOAT[5,1] = ReduceMax(%0, %9) {keepdims = 1}
  %3: FLOAT[5,8192] = Sub(%0, %2)
  %4: FLOAT[5,8192] = Exp(%3)
  %5: FLOAT[5,1] = ReduceSum(%4, %9) {keepdims = 1}
  %8: FLOAT[5,8192] = Div(%4, %5)
  %6: FLOAT[5,8192] = Mul(%8, %7)
  %10: FLOAT[3,1] = ReduceMean(%1, %9) {keepdims = 1}
  %11: FLOAT[3,24576] = Sub(%1, %10)
  %12: FLOAT[3,24576] = Mul(%11, %11)
  %13: FLOAT[3,1] = ReduceMean(%12, %9) {keepdims = 1}
  %14: FLOAT[3,1] = Sqrt(%13)
  %15: FLOAT[3,24576] = Div(%11, %14)
  out %6 "p"
  out %15 "q"
})"},
    // Rows whose sums have an inverse that no float holds, one that is no normal number, a plain
    // one, and none.
    {"divisors_of_all_sizes", R"(graph "g" {
  in %0 "x": FLOAT[4,300]
  const %1: f32[4,1] = [2e-42, 3e35, 1, 0]
  const %9: i64[1] = [-1]
  %2: f32[4,300] = Cast(%0) {to = 1}
  %3: f32[4,300] = Exp(%2)
  %4: f32[4,300] = Mul(%3, %1)
  %5: f32[4,1] = ReduceSum(%4, %9) {keepdims = 1}
  %6: f32[4,300] = Div(%4, %5)
  const %8: f32[] = [300]
  %10: f32[4,300] = Mul(%6, %8)
  %7: FLOAT[4,300] = CastLike(%10, %0)
  out %7 "z"
})"},
    {"column_sum", R"(graph "g" {
  in %0 "x": FLOAT[700,519]
  const %9: i64[1] = [0]
  %1: FLOAT[1,519] = ReduceSum(%0, %9) {keepdims = 1}
  %2: FLOAT[1,519] = Abs(%1)
  out %2 "z"
})"},
    {"column_mean_sub", R"(graph "g" {
  in %0 "x": FLOAT[5,90,61]
  const %9: i64[1] = [1]
  %1: FLOAT[5,1,61] = ReduceMean(%0, %9) {keepdims = 1}
  %2: FLOAT[5,90,61] = Sub(%0, %1)
  out %2 "z"
})"},
    {"max_all", R"(graph "g" {
  in %0 "x": FLOAT[2,3,50000]
  const %9: i64[1] = [2]
  %1: FLOAT[2,3,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[2,3,1] = ReduceMin(%0, %9) {keepdims = 1}
  %3: FLOAT[2,3,1] = Sub(%1, %2)
  out %3 "z"
})"},
    {"gather", R"(graph "g" {
  in %0 "x": FLOAT[40,96]
  in %1 "i": i64[7,11]
  %2: FLOAT[7,11,96] = Gather(%0, %1) {axis = 0}
  %3: FLOAT[7,11,96] = Sigmoid(%2)
  out %3 "z"
})"},
    {"top_k", R"(graph "g" {
  in %0 "x": FLOAT[300,700]
  const %1: i64[1] = [5]
  %2: FLOAT[300,5], %3: i64[300,5] = TopK(%0, %1)
  %4: FLOAT[300,5] = Abs(%2)
  out %4 "z"
})"},
    {"long_scan", R"(graph "g" {
  in %0 "x": FLOAT[3,600,70]
  const %1: i64[] = [1]
  %2: FLOAT[3,600,70] = CumSum(%0, %1) {exclusive = 1}
  out %2 "z"
})"},
    {"scatter", R"(graph "g" {
  in %0 "x": FLOAT[40,900]
  in %1 "i": i64[31,400]
  in %2 "u": FLOAT[31,400]
  %3: FLOAT[40,900] = ScatterElements(%0, %1, %2) {axis = 0, reduction = "add"}
  %4: FLOAT[40,900] = Abs(%3)
  out %4 "z"
})"},
    {"update_in_place", R"(graph "g" {
  in %0 "past": FLOAT[2,8,512,64]
  in %1 "i": i64[2,8,1,64]
  in %2 "u": FLOAT[2,8,1,64]
  const %9: i64[1] = [2]
  %4: FLOAT[2,8,1,64] = ReduceMax(%0, %9) {keepdims = 1}
  %5: FLOAT[2,8,512,64] = ScatterElements(%0, %1, %2) {axis = 2}
  %6: FLOAT[2,8,1,64] = ReduceMin(%5, %9) {keepdims = 1}
  %7: FLOAT[2,8,1,64] = Sub(%6, %4)
  out %5 "now" in_place_of "past"
  out %7 "z"
})"},
    {"update_slices_in_place", R"(graph "g" {
  in %0 "past": FLOAT[6,6,300]
  in %1 "i": i64[11,2]
  in %2 "u": FLOAT[11,300]
  %3: FLOAT[6,6,300] = ScatterND(%0, %1, %2)
  %4: FLOAT[6,6,300] = Abs(%3)
  out %3 "now" in_place_of "past"
  out %4 "z"
})"},
    {"determinants", R"(graph "g" {
  in %0 "x": FLOAT[400,5,5]
  %1: FLOAT[400] = Det(%0)
  out %1 "z"
})"},
    {"lstm_of_one", R"(graph "g" {
  in %0 "fed": f32[30,3,512]
  in %1 "r": FLOAT[2,256,64]
  in %3 "n": i32[3]
  in %4 "h": FLOAT[2,3,64]
  in %5 "c": FLOAT[2,3,64]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[2,256,64] = Mul(%1, %8)
  %10: FLOAT[30,2,3,64], %11: FLOAT[2,3,64], %12: FLOAT[2,3,64] = Recurrence(%0, %9, _, %3, %4, %5) {cell = "lstm", direction = "bidirectional"}
  out %10 "y"
  out %11 "h"
  out %12 "c"
})"},
    {"lstm_gang", R"(graph "g" {
  in %0 "fed": f32[9,1,2048]
  in %1 "r": FLOAT[2,1024,256]
  in %4 "h": FLOAT[2,1,256]
  in %5 "c": FLOAT[2,1,256]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[2,1024,256] = Mul(%1, %8)
  %10: FLOAT[9,2,1,256], %11: FLOAT[2,1,256], %12: FLOAT[2,1,256] = Recurrence(%0, %9, _, _, %4, %5) {cell = "lstm", direction = "bidirectional"}
  out %10 "y"
  out %11 "h"
  out %12 "c"
})"},
    {"squeeze_excite_images", R"(graph "g" {
  in %0 "x": FLOAT[2,240,14,14]
  in %1 "w1": FLOAT[12,240]
  in %2 "b1": FLOAT[12]
  in %3 "w2": FLOAT[12,240]
  in %4 "b2": FLOAT[240]
  %5: FLOAT[2,240,14,14] = Abs(%0)
  %6: FLOAT[2,240,14,14] = SqueezeExcite(%5, %1, %2, %3, %4) {activation = "Swish", gate = "Sigmoid"}
  %7: FLOAT[2,240,14,14] = Neg(%6)
  out %7 "y"
})"},
    {"squeeze_excite_channels", R"(graph "g" {
  in %0 "x": FLOAT[1,1152,7,7]
  in %1 "w1": FLOAT[48,1152]
  in %2 "b1": FLOAT[48]
  in %3 "w2": FLOAT[48,1152]
  in %4 "b2": FLOAT[1152]
  %5: FLOAT[1,1152,7,7] = Abs(%0)
  %6: FLOAT[1,1152,7,7] = SqueezeExcite(%5, %1, %2, %3, %4) {activation = "Relu", gate = "HardSigmoid"}
  %7: FLOAT[1,1152,7,7] = Neg(%6)
  out %7 "y"
})"},
    {"squeeze_excite_pixels", R"(graph "g" {
  in %0 "x": FLOAT[1,48,56,56]
  in %1 "w1": FLOAT[12,48]
  in %2 "b1": FLOAT[12]
  in %3 "w2": FLOAT[12,48]
  in %4 "b2": FLOAT[48]
  %5: FLOAT[1,48,56,56] = Abs(%0)
  %6: FLOAT[1,48,56,56] = SqueezeExcite(%5, %1, %2, %3, %4) {activation = "HardSwish", gate = "Sigmoid"}
  %7: FLOAT[1,48,56,56] = Neg(%6)
  out %7 "y"
})"},
    {"lstm_beyond_registers", R"(graph "g" {
  in %0 "fed": f32[5,1,2048]
  in %1 "r": FLOAT[1,2048,512]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[1,2048,512] = Mul(%1, %8)
  %10: FLOAT[5,1,1,512], %11: FLOAT[1,1,512], %12: FLOAT[1,1,512] = Recurrence(%0, %9) {cell = "lstm", direction = "forward"}
  out %10 "y"
  out %12 "c"
})"},
    {"lstm_batch", R"(graph "g" {
  in %0 "fed": f32[5,11,800]
  in %1 "r": FLOAT[1,800,200]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[1,800,200] = Mul(%1, %8)
  %10: FLOAT[5,1,11,200], %11: FLOAT[1,11,200], %12: FLOAT[1,11,200] = Recurrence(%0, %9) {cell = "lstm", direction = "reverse"}
  out %10 "y"
  out %11 "h"
  out %12 "c"
})"},
    {"gru_gang", R"(graph "g" {
  in %0 "fed": f32[30,2,768]
  in %1 "r": FLOAT[1,768,256]
  in %2 "b": f32[1,256]
  in %3 "n": i32[2]
  in %4 "h": FLOAT[1,2,256]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[1,768,256] = Mul(%1, %8)
  %10: FLOAT[30,1,2,256], %11: FLOAT[1,2,256] = Recurrence(%0, %9, %2, %3, %4) {cell = "gru", direction = "forward"}
  out %10 "y"
  out %11 "h"
})"},
    {"gru_few_steps", R"(graph "g" {
  in %0 "fed": f32[4,2,768]
  in %1 "r": FLOAT[1,768,256]
  in %2 "b": f32[1,256]
  in %4 "h": FLOAT[1,2,256]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[1,768,256] = Mul(%1, %8)
  %10: FLOAT[4,1,2,256], %11: FLOAT[1,2,256] = Recurrence(%0, %9, %2, _, %4) {cell = "gru", direction = "forward"}
  out %10 "y"
  out %11 "h"
})"},
    {"rnn_odd", R"(graph "g" {
  in %0 "fed": f32[7,1,154]
  in %1 "r": FLOAT[2,77,77]
  const %8: FLOAT[] = [0.0625]
  %9: FLOAT[2,77,77] = Mul(%1, %8)
  %10: FLOAT[7,2,1,77], %11: FLOAT[2,1,77] = Recurrence(%0, %9) {cell = "rnn", direction = "bidirectional"}
  out %10 "y"
  out %11 "h"
})"},
    {"product", R"(graph "g" {
  in %0 "x": FLOAT[2,9,40]
  in %1 "w": FLOAT[40,24]
  in %2 "b": FLOAT[24]
  %3: FLOAT[2,9,24] = MatMul(%0, %1)
  %4: FLOAT[2,9,24] = Add(%3, %2)
  %5: FLOAT[2,9,24] = Tanh(%4)
  out %5 "z"
})"},
};

/// y = tanh(tanh(x) W + b) + residual V, with weights that do not depend on the rows.
graph::Graph two_products(DType type, int64_t rows, int64_t depth, int64_t columns) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape) {
    return graph.add_constant(random_tensor({type, shape}, random, 1.0 / 16));
  };
  const auto x = graph.add_input("x", {type, {rows, depth}});
  const auto a = graph.must_add(graph::Op::Tanh, {x});
  const auto product = graph.must_add(graph::Op::MatMul, {a, constant({depth, columns})});
  const auto biased = graph.must_add(graph::Op::Add, {product, constant({columns})});
  const auto curved = graph.must_add(graph::Op::Tanh, {biased});
  const auto back = graph.must_add(graph::Op::MatMul, {curved, constant({columns, depth})});
  graph.mark_output(graph.must_add(graph::Op::Add, {back, a}), "y");
  return graph;
}

/// y = x W.
graph::Graph one_product(DType type, int64_t rows, int64_t depth, int64_t columns) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto x = graph.add_input("x", {type, {rows, depth}}),
             w = graph.add_constant(random_tensor({type, {depth, columns}}, random, 1.0 / 16));
  graph.mark_output(graph.must_add(graph::Op::MatMul, {x, w}), "y");
  return graph;
}

/// r = (tanh(x) W in parts) + b + residual, y = r - mean(r), as the compiler fits it for graphs of
/// kernels.
graph::Graph long_sum(DType type, int64_t rows, int64_t depth, int64_t columns, int64_t parts) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape) {
    return graph.add_constant(random_tensor({type, shape}, random, 1.0 / 16));
  };
  const auto x = graph.add_input("x", {type, {rows, depth}});
  const auto a = graph.must_add(graph::Op::Tanh, {x});
  const auto product = graph.must_add(graph::Op::MatMul, {a, constant({depth, columns})});
  const auto biased = graph.must_add(graph::Op::Add, {product, constant({columns})});
  const auto zero = graph.add_constant(tensor_of(std::vector<int64_t>{0})),
             end = graph.add_constant(tensor_of(std::vector<int64_t>{columns}));
  const auto residual = graph.must_add(
      graph::Op::Slice, {x, zero, end, graph.add_constant(tensor_of(std::vector<int64_t>{1}))});
  const auto sum = graph.must_add(graph::Op::Add, {biased, residual});
  const auto wide = graph.must_add(graph::Op::Cast, {sum},
                                   ops::Attrs().set("to", ops::number_of_dtype(DType::f32)));
  const auto mean = graph.must_add(graph::Op::ReduceMean,
                                   {wide, graph.add_constant(tensor_of(std::vector<int64_t>{-1}))},
                                   ops::Attrs().set("keepdims", int64_t{1}));
  graph.mark_output(sum, "r");
  graph.mark_output(graph.must_add(graph::Op::Sub, {wide, mean}), "y");
  auto split = passes::split_products(
      std::move(graph), [&](DType, int64_t, int64_t, int64_t) { return parts; },
      [](int64_t of, int64_t, int64_t) {
        return of >= stitch::kFewestPipelinedRows && of < stitch::kMostPipelinedRows;
      });
  CHECK(split.ok(), "{}", split.error().text());
  return std::move(*split);
}

/// `layers` times a = tanh(a W + b) V + a, of weights that do not depend on the rows; then z = a[:,
/// :depth / 2] U, whose k is half as long.
graph::Graph chain_of_products(DType type, int64_t rows, int64_t depth, int64_t columns,
                               int layers) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape) {
    return graph.add_constant(random_tensor({type, shape}, random, 1.0 / 24));
  };
  const auto number = [&](int64_t value) {
    return graph.add_constant(tensor_of(std::vector<int64_t>{value}));
  };
  auto a = graph.must_add(graph::Op::Tanh, {graph.add_input("x", {type, {rows, depth}})});
  for (int layer = 0; layer < layers; ++layer) {
    const auto product = graph.must_add(graph::Op::MatMul, {a, constant({depth, columns})});
    const auto curved = graph.must_add(
        graph::Op::Tanh, {graph.must_add(graph::Op::Add, {product, constant({columns})})});
    a = graph.must_add(
        graph::Op::Add,
        {graph.must_add(graph::Op::MatMul, {curved, constant({columns, depth})}), a});
    const auto half =
        graph.must_add(graph::Op::Slice, {a, number(0), number(depth / 2), number(1)});
    graph.mark_output(graph.must_add(graph::Op::MatMul, {half, constant({depth / 2, columns})}),
                      fmt::format("z{}", layer));
  }
  graph.mark_output(a, "y");
  return graph;
}

/// Of a test that is compiled where no GPU is: with the device compiler only, and in f16 alone, for
/// bf16 differs from it by names of instructions.
#define SKIP_WITHOUT(type)                                                          \
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text(); \
  if (type != DType::f16 && !first_gpu().ok()) GTEST_SKIP() << "no GPU is here; f16 is compiled"

/// Whether a program's tables are checked and it is not compiled, because another one of its kind
/// is: where there is no GPU, unless it is the `sample` of its kind.
bool is_not_compiled(bool sample) { return !sample && !compiles_all() && !first_gpu().ok(); }
constexpr const char* kNotCompiled = "no GPU is here; OBELISK_TEST_ALL compiles the others";

class AsyncRows : public testing::TestWithParam<const char*> {};
class PipelinedGemm : public testing::TestWithParam<const char*> {};
class TallGemm : public testing::TestWithParam<const char*> {};

/// Graphs of so many rows, whose first output's rows are the same however many there are, and all
/// bits from run to run (OBELISK_GPU_RUNS of them). `pipelined`: kernels of their own that one of
/// more than 32 rows has, in clusters of `parts`.
void expect_pipelined(const std::function<graph::Graph(DType, int64_t rows)>& graph_of,
                      const std::string& name, const std::vector<int64_t>& all_rows, int pipelined,
                      int parts) {
  const DType type = name == "f16" ? DType::f16 : DType::bf16;
  SKIP_WITHOUT(type);
  std::vector<Tensor> before;
  std::string skipped;
  for (const int64_t rows : all_rows) {
    SCOPED_TRACE(rows);
    const graph::Graph graph = graph_of(type, rows);
    auto program = program_of(graph, "stitch", true, false, true);
    int found = 0, clusters = 0;
    for (const auto& body : program->bodies) found += body.traits.gemm.has_value();
    const auto source = device_source(*program);
    ASSERT_TRUE(source.ok()) << source.error().text();
    const std::string numbers = fmt::format("split_k = {}, share", parts);
    for (size_t at = source->find(numbers); at != std::string::npos;
         at = source->find(numbers, at + 1))
      ++clusters;
    EXPECT_EQ(found, rows > 32 ? pipelined : 0);
    EXPECT_EQ(clusters, rows > 32 ? parts > 1 ? 1 : pipelined : 0);
    if (is_not_compiled(rows == all_rows.back())) {
      skipped = kNotCompiled;
      continue;
    }
    auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
    ASSERT_TRUE(executable.ok()) << executable.error().text();
    for (const KernelReport& kernel : (*(*executable)->device()).kernels)
      EXPECT_LE(kernel.spill_bytes, rows > 32 ? 0 : 512) << kernel.name;
    auto context = (*executable)->context();
    if (!context.ok()) {
      ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
      skipped = context.error().text();
      continue;
    }
    std::mt19937 random(7);  // the first rows are the same
    const std::vector<Tensor> inputs = {random_tensor(graph.type(graph.inputs()[0]), random)};
    auto wanted = graph::interpret(graph, inputs);
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    auto got = run(**context, *program, inputs);
    ASSERT_TRUE(got.ok()) << got.error().text();
    const char* wished = getenv("OBELISK_GPU_RUNS");
    const int runs = wished ? atoi(wished) : 3;
    for (int repeat = 0; repeat < runs; ++repeat) {
      auto again = run(**context, *program, inputs);
      ASSERT_TRUE(again.ok()) << again.error().text();
      ASSERT_TRUE(same_bits(*got, *again)) << "the same input gave other bits";
    }
    const double step = type == DType::f16 ? 2e-3 : 1.6e-2;
    for (size_t output = 0; output < got->size(); ++output)
      for (int64_t k = 0; k < (*got)[output].count(); ++k) {
        const double a = (*got)[output].get_double(k), b = (*wanted)[output].get_double(k);
        ASSERT_LE(std::fabs(a - b), 4 * step * (1 + std::fabs(b)))
            << "output " << output << " element " << k;
      }
    if (!before.empty()) {
      const int64_t bytes = std::min(before[0].bytes(), (*got)[0].bytes());
      EXPECT_EQ(memcmp(before[0].data(), (*got)[0].data(), static_cast<size_t>(bytes)), 0)
          << "rows have other bits beside more rows";
    }
    before = std::move(*got);
  }
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}

// Products of some rows have kernels of their own in a graph of kernels: right, the same bits from
// run to run, and a row's bits do not depend on how many rows there are, below and above the number
// where such kernels begin.
TEST_P(PipelinedGemm, EqualInterpreterAndRowsKeepTheirBits) {
  expect_pipelined([](DType type, int64_t rows) { return two_products(type, rows, 192, 320); },
                   GetParam(), {24, 50, 197}, 2, 1);
}

// A may be an input of the program, whose address a run gives.
TEST_P(PipelinedGemm, ReadAnInput) {
  expect_pipelined([](DType type, int64_t rows) { return one_product(type, rows, 192, 320); },
                   GetParam(), {24, 50, 197}, 1, 1);
}

// Of 512 rows and more and a long k, where each CTA has one tile, they have those of fewer rows.
TEST_P(PipelinedGemm, OfManyRowsAndALongK) {
  expect_pipelined([](DType type, int64_t rows) { return one_product(type, rows, 1088, 320); },
                   GetParam(), {200, 520, 1000}, 1, 1);
}

// So have those of a long k, whose parts a cluster computes: one round of clusters, several, a last
// tile of few rows, one of few columns.
TEST_P(PipelinedGemm, ClustersAddPartsInOrder) {
  expect_pipelined([](DType type, int64_t rows) { return long_sum(type, rows, 3072, 768, 4); },
                   GetParam(), {24, 50, 197}, 1, 4);
  expect_pipelined([](DType type, int64_t rows) { return long_sum(type, rows, 1024, 1024, 4); },
                   GetParam(), {128, 500}, 1, 4);
  expect_pipelined([](DType type, int64_t rows) { return long_sum(type, rows, 1024, 96, 2); },
                   GetParam(), {24, 50, 70}, 1, 2);
  expect_pipelined([](DType type, int64_t rows) { return long_sum(type, rows, 1152, 200, 3); },
                   GetParam(), {24, 33, 150}, 1, 3);
}
/// a = tanh(x) A + r, y = gelu(norm(a) U + b), z = y V + norm(a): the norm goes through U and is
/// told again for the residual.
graph::Graph folded_norm(DType type, int64_t rows, int64_t width, int64_t columns, bool centred) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape, double scale, double shift = 0) {
    return graph.add_constant(random_tensor({type, shape}, random, scale, shift));
  };
  const auto x = graph.add_input("x", {type, {rows, width}});
  const auto a = graph.must_add(graph::Op::Tanh, {x});
  const auto sum = graph.must_add(
      graph::Op::Add, {graph.must_add(graph::Op::MatMul, {a, constant({width, width}, 0.06)}),
                       constant({width}, 1, 2)});
  std::vector<graph::ValueId> inputs = {sum, constant({width}, 0.2, 1)};
  if (centred) inputs.push_back(constant({width}, 0.2));
  const auto norm =
      graph.must_add(centred ? graph::Op::LayerNormalization : graph::Op::RMSNormalization, inputs);
  const auto up = graph.must_add(
      graph::Op::Add, {graph.must_add(graph::Op::MatMul, {norm, constant({width, columns}, 0.06)}),
                       constant({columns}, 1)});
  const auto one = [&](double value) { return graph.add_constant(tensor_of(type, {}, {value})); };
  const auto erf =
      graph.must_add(graph::Op::Erf, {graph.must_add(graph::Op::Mul, {up, one(0.70703125)})});
  const auto y = graph.must_add(graph::Op::Mul, {graph.must_add(graph::Op::Mul, {up, one(0.5)}),
                                                 graph.must_add(graph::Op::Add, {erf, one(1)})});
  const auto z = graph.must_add(
      graph::Op::Add,
      {graph.must_add(graph::Op::MatMul, {y, constant({columns, width}, 0.05)}), norm});
  graph.mark_output(z, "z");
  auto folded = passes::fold_norms(
      std::move(graph), [](DType, int64_t, int64_t, int64_t) { return true; },
      [](DType, int64_t, int64_t, int64_t) { return false; });
  CHECK(folded.ok(), "{}", folded.error().text());
  return std::move(*folded);
}

// A norm whose statistics the product behind it joins from what the product before it left; of few
// rows by other tiles, the same bits.
TEST_P(PipelinedGemm, NormsGoThroughProducts) {
  expect_pipelined([](DType type, int64_t rows) { return folded_norm(type, rows, 768, 320, true); },
                   GetParam(), {1, 24, 50, 128, 257}, 3, 1);
  expect_pipelined(
      [](DType type, int64_t rows) { return folded_norm(type, rows, 192, 128, false); }, GetParam(),
      {40, 197, 257, 511}, 3, 1);
}
// Products of two inputs by plain tiles, since k is no multiple of 64, whose stages are longer
// where the last tile has fewer columns: a worker has several tiles, wide ones before narrow ones.
TEST_P(PipelinedGemm, ProductsOfInputsWithANarrowLastTile) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  const DType type = GetParam() == std::string("f16") ? DType::f16 : DType::bf16;
  SKIP_WITHOUT(type);
  std::string skipped;
  int narrow = 0;
  for (const int sms : {4, 8, 12})
    for (const int64_t n : {80, 112, 128}) {
      SCOPED_TRACE(fmt::format("{} columns on {} multiprocessors", n, sms));
      graph::Graph graph;
      const auto a = graph.add_input("a", {type, {5, 128, 1160}}),
                 b = graph.add_input("b", {type, {5, 1160, n}});
      graph.mark_output(graph.must_add(graph::Op::MatMul, {a, b}), "y");
      const machine::Machine device = some_gpu(sms);
      auto program =
          program_by(graph, device,
                     strategy_for(device, {.granularity = machine::Granularity::kStitch}), true);
      for (const auto& list : program->lists)
        for (const ObkTask& task : list)
          narrow += task.c1 == n && task.c0 > 0 && task.c1 - task.c0 < task.c0;
      if (is_not_compiled(n == 80)) {
        skipped = kNotCompiled;
        continue;
      }
      auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
      ASSERT_TRUE(executable.ok()) << executable.error().text();
      auto context = (*executable)->context();
      if (!context.ok()) {
        ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
        skipped = context.error().text();
        continue;
      }
      std::mt19937 random(7);
      const std::vector<Tensor> inputs = {
          random_tensor(graph.type(graph.inputs()[0]), random, 1.0 / 16),
          random_tensor(graph.type(graph.inputs()[1]), random)};
      auto wanted = graph::interpret(graph, inputs);
      ASSERT_TRUE(wanted.ok()) << wanted.error().text();
      auto got = run(**context, *program, inputs);
      ASSERT_TRUE(got.ok()) << got.error().text();
      const double step = type == DType::f16 ? 2e-3 : 1.6e-2;
      for (int64_t k = 0; k < (*got)[0].count(); ++k) {
        const double x = (*got)[0].get_double(k), y = (*wanted)[0].get_double(k);
        ASSERT_LE(std::fabs(x - y), 4 * step * (1 + std::fabs(y))) << "element " << k;
      }
    }
  EXPECT_GT(narrow, 0);
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}

/// How far an answer may be from the interpreter's, a quarter of it, at 1: by the type that is
/// computed with. Of "tf32" the operands are rounded as well.
double step_of(const std::string& type) {
  return type == "bf16" ? 1.6e-2 : type == "tf32" ? 4e-3 : type == "f16" ? 2e-3 : 5e-6;
}

/// The answers of a context, close to what is wanted and the same bits from run to run
/// (OBELISK_GPU_RUNS of them, or three), in `got`.
void expect_answers(Context& context, const Program& program, const std::vector<Tensor>& inputs,
                    const std::vector<Tensor>& wanted, double step, std::vector<Tensor>& got) {
  auto first = run(context, program, inputs);
  ASSERT_TRUE(first.ok()) << first.error().text();
  got = std::move(*first);
  const char* wished = getenv("OBELISK_GPU_RUNS");
  for (int repeat = 0; repeat < (wished ? atoi(wished) : 3); ++repeat) {
    auto again = run(context, program, inputs);
    ASSERT_TRUE(again.ok()) << again.error().text();
    ASSERT_TRUE(same_bits(got, *again)) << "the same input gave other bits";
  }
  for (size_t output = 0; output < got.size(); ++output)
    for (int64_t k = 0; k < got[output].count(); ++k) {
      const double a = got[output].get_double(k), b = wanted[output].get_double(k);
      ASSERT_LE(std::fabs(a - b), 4 * step * (1 + std::fabs(b)))
          << "output " << output << " element " << k;
    }
}

/// A program's answers to random inputs are those of the interpreter, and none of its kernels has
/// registers in memory. `skipped`: why it did not run.
void expect_interpreters_answers(const graph::Graph& graph,
                                 const std::shared_ptr<const Program>& program, double step,
                                 std::string& skipped) {
  auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  for (const KernelReport& kernel : (*(*executable)->device()).kernels)
    EXPECT_EQ(kernel.spill_bytes, 0) << kernel.name;
  auto context = (*executable)->context();
  if (!context.ok()) {
    ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
    skipped = context.error().text();
    return;
  }
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (const graph::ValueId input : graph.inputs())
    inputs.push_back(random_tensor(graph.type(input), random, inputs.empty() ? 1.0 / 16 : 1));
  auto wanted = graph::interpret(graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  std::vector<Tensor> got;
  expect_answers(**context, *program, inputs, *wanted, step, got);
}

/// Products of activations: how many of them have a kernel of their own for so many
/// multiprocessors (0: all).
struct OfActivations {
  const char *name, *text;
  int pipelined, sms = 0;
  int of_tf32 = -1;  // how many in tf32; -1: as many
};
const OfActivations kOfActivations[] = {
    {"one matrix", R"(  in %0 "a": T[1,256,1152]
  in %1 "b": T[1,1152,128]
  %2: T[1,256,128] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"some matrices, an epilogue", R"(  in %0 "a": T[3,197,320]
  in %1 "b": T[3,320,200]
  in %2 "r": T[3,197,200]
  const %3: T[200] = @random
  %4: T[3,197,200] = MatMul(%0, %1)
  %5: T[3,197,200] = Add(%4, %3)
  %6: T[3,197,200] = Relu(%5)
  %7: T[3,197,200] = Add(%6, %2)
  out %7 "y")",
     1},
    {"eight of 256", R"(  in %0 "a": T[8,256,256]
  in %1 "b": T[8,256,256]
  %2: T[8,256,256] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"several tall tiles a multiprocessor, a narrow last one", R"(  in %0 "a": T[6,250,256]
  in %1 "b": T[6,256,232]
  %2: T[6,250,232] = MatMul(%0, %1)
  out %2 "y")",
     1, 4},
    {"several tiles a multiprocessor", R"(  in %0 "a": T[7,60,128]
  in %1 "b": T[7,128,72]
  %2: T[7,60,72] = MatMul(%0, %1)
  out %2 "y")",
     1, 3},
    {"many rows", R"(  in %0 "a": T[1000,512]
  in %1 "b": T[512,392]
  %2: T[1000,392] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"transposed", R"(  in %0 "a": T[8,256,256]
  in %1 "b": T[8,200,256]
  %2: T[8,256,200] = Transpose(%1) {perm = [0, 2, 1]}
  %3: T[8,256,200] = MatMul(%0, %2)
  out %3 "y")",
     1},
    {"transposed, several tall tiles a multiprocessor", R"(  in %0 "a": T[5,200,192]
  in %1 "b": T[5,332,192]
  %2: T[5,192,332] = Transpose(%1) {perm = [0, 2, 1]}
  %3: T[5,200,332] = MatMul(%0, %2)
  out %3 "y")",
     1, 4},
    {"computed", R"(  in %0 "a": T[3,100,128]
  in %1 "b": T[3,128,136]
  %2: T[3,100,128] = Tanh(%0)
  %3: T[3,128,136] = Sin(%1)
  %4: T[3,100,136] = MatMul(%2, %3)
  out %4 "y")",
     1},
    {"one B for all", R"(  in %0 "a": T[3,100,128]
  in %1 "b": T[128,72]
  %2: T[3,100,72] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"one A for all", R"(  in %0 "a": T[1,100,128]
  in %1 "b": T[5,128,72]
  %2: T[5,100,72] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"a matrix and itself", R"(  in %0 "a": T[4,96,192]
  %1: T[4,192,96] = Transpose(%0) {perm = [0, 2, 1]}
  %2: T[4,96,96] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"a square of itself", R"(  in %0 "a": T[4,128,128]
  %1: T[4,128,128] = MatMul(%0, %0)
  out %1 "y")",
     1},
    {"side by side", R"(  in %0 "a": T[40,4,64]
  in %1 "b": T[72,4,64]
  %2: T[4,40,64] = Transpose(%0) {perm = [1, 0, 2]}
  %3: T[4,64,72] = Transpose(%1) {perm = [1, 2, 0]}
  %4: T[4,40,72] = MatMul(%2, %3)
  out %4 "y")",
     1},
    {"side by side, rows of k", R"(  in %0 "a": T[4,40,64]
  in %1 "b": T[64,4,40]
  %2: T[4,64,40] = Transpose(%1) {perm = [1, 0, 2]}
  %3: T[4,40,40] = MatMul(%0, %2)
  out %3 "y")",
     1},
    {"a softmax behind, and a product of that", R"(  in %0 "a": T[3,192,128]
  in %1 "b": T[3,128,192]
  in %2 "c": T[3,192,64]
  %3: T[3,192,192] = MatMul(%0, %1)
  const %4: i64[1] = [2]
  %5: T[3,192,1] = ReduceMax(%3, %4) {keepdims = 1}
  %6: T[3,192,192] = Sub(%3, %5)
  %7: T[3,192,192] = Exp(%6)
  %8: T[3,192,1] = ReduceSum(%7, %4) {keepdims = 1}
  %9: T[3,192,192] = Div(%7, %8)
  %10: T[3,192,64] = MatMul(%9, %2)
  out %10 "y")",
     2},
    {"a long k", R"(  in %0 "a": T[2,100,2048]
  in %1 "b": T[2,2048,64]
  %2: T[2,100,64] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"a long k, transposed", R"(  in %0 "a": T[64,1536]
  in %1 "b": T[200,1536]
  %2: T[1536,200] = Transpose(%1) {perm = [1, 0]}
  %3: T[64,200] = MatMul(%0, %2)
  out %3 "y")",
     1},
    {"k of 72, columns of 36, an odd number of columns", R"(  in %0 "a": T[3,80,72]
  in %1 "b": T[3,72,64]
  in %2 "c": T[3,80,128]
  in %3 "d": T[3,128,36]
  in %4 "e": T[3,35,128]
  %5: T[3,80,64] = MatMul(%0, %1)
  %6: T[3,80,36] = MatMul(%2, %3)
  %7: T[3,128,35] = Transpose(%4) {perm = [0, 2, 1]}
  %8: T[3,80,35] = MatMul(%2, %7)
  out %5 "y"
  out %6 "z"
  out %7 "u"
  out %8 "v")",
     0, 0, 1},
};
/// The same of constant weights in f32, rounded to tf32 or exact: inputs and values that are
/// computed, tiles that are tall, several a multiprocessor, narrow at the end.
const OfActivations kOfWeights[] = {
    {"one matrix", R"(  in %0 "a": T[256,256]
  const %1: T[256,256] = @random
  %2: T[256,256] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"computed, an epilogue", R"(  in %0 "a": T[197,320]
  const %1: T[320,200] = @random
  const %2: T[200] = @random
  %3: T[197,320] = Tanh(%0)
  %4: T[197,200] = MatMul(%3, %1)
  %5: T[197,200] = Add(%4, %2)
  %6: T[197,200] = Relu(%5)
  out %6 "y")",
     1, 4},
    {"many rows", R"(  in %0 "a": T[1000,1152]
  const %1: T[1152,392] = @random
  %2: T[1000,392] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"matrices", R"(  in %0 "a": T[5,120,96]
  const %1: T[5,96,104] = @random
  %2: T[5,120,104] = MatMul(%0, %1)
  out %2 "y")",
     1, 3},
    {"wide", R"(  in %0 "a": T[400,256]
  const %1: T[256,776] = @random
  %2: T[400,776] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"wide, several tiles a multiprocessor, an epilogue", R"(  in %0 "a": T[300,192]
  in %1 "r": T[300,520]
  const %2: T[192,520] = @random
  %3: T[300,520] = MatMul(%0, %2)
  %4: T[300,520] = Add(%3, %1)
  out %4 "y")",
     1, 4},
    {"a long k", R"(  in %0 "a": T[128,3072]
  in %1 "r": T[128,768]
  const %2: T[3072,768] = @random
  %3: T[128,3072] = Tanh(%0)
  %4: T[128,768] = MatMul(%3, %2)
  %5: T[128,768] = Add(%4, %1)
  out %5 "y")",
     1},
    {"a long k, few rows and columns, an odd pitch", R"(  in %0 "a": T[49,2304]
  const %1: T[2304,72] = @random
  %2: T[49,72] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"a long k, several clusters one after another, a narrow last tile", R"(  in %0 "a": T[250,1536]
  const %1: T[1536,200] = @random
  const %2: T[200] = @random
  %3: T[250,200] = MatMul(%0, %1)
  %4: T[250,200] = Add(%3, %2)
  %5: T[250,200] = Relu(%4)
  out %5 "y")",
     1, 8},
};

graph::Graph of_activations(const OfActivations& one, const std::string& type) {
  std::string text = fmt::format("graph \"g\" {{\n{}\n}}", one.text);
  for (size_t at = text.find(": T["); at != std::string::npos; at = text.find(": T[", at))
    text.replace(at + 2, 1, type);
  auto graph = graph::parse_random(text, 1);
  CHECK(graph.ok(), "{}: {}", one.name, graph.error().text());
  return std::move(*graph);
}

/// All of `cases`, in "f16", "bf16", "tf32" or "f32"; weights: B is constant. Of exact f32
/// predicted times decide which have a kernel of their own: half of them at least. In f32, rounded
/// or exact, clusters compute some.
void expect_products(std::span<const OfActivations> cases, const std::string& name, bool weights) {
  const bool tf32 = name == "tf32", exact = name == "f32";
  std::string skipped;
  int all_found = 0, by_clusters = 0;
  for (const OfActivations& one : cases) {
    SCOPED_TRACE(one.name);
    const graph::Graph graph = of_activations(one, tf32 ? "f32" : name);
    const machine::Machine device = some_gpu(one.sms);
    auto program = program_by(
        graph, device,
        strategy_for(device, {.granularity = machine::Granularity::kStitch, .tf32 = tf32}), true);
    int found = 0;
    for (const auto& body : program->bodies)
      if (body.traits.gemm.has_value() && body.traits.gemm->boxes.has_value() != weights)
        ++found, by_clusters += body.traits.gemm->split_k > 1;
    const int wanted_kernels = tf32 && one.of_tf32 >= 0 ? one.of_tf32 : one.pipelined;
    if (exact)
      all_found += found;
    else
      EXPECT_EQ(found, machine::takes_async_mma(device, {}) ? wanted_kernels : 0);
    if (is_not_compiled(one.sms == 4)) {
      skipped = kNotCompiled;
      continue;
    }
    expect_interpreters_answers(graph, program, step_of(name), skipped);
    if (testing::Test::HasFatalFailure()) return;
  }
  if (exact && machine::takes_async_mma(some_gpu(), {})) {
    EXPECT_GE(2 * all_found, static_cast<int>(cases.size()));
  }
  if ((exact || tf32) && machine::takes_async_mma(some_gpu(), {})) {
    EXPECT_GE(by_clusters, weights ? 3 : 2);
  }
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}

/// Products of one to eight rows by an activation with rows of k; `streamed`: how many there are.
struct FewRowsOfActivations {
  const char *name, *text;
  int streamed;
};
const FewRowsOfActivations kFewRowsOfActivations[] = {
    {"one row", R"(  in %0 "a": T[1,1,512]
  in %1 "b": T[1,512,512]
  %2: T[1,1,512] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"many matrices", R"(  in %0 "a": T[150,1,256]
  in %1 "b": T[150,256,512]
  %2: T[150,1,512] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"an odd number of columns", R"(  in %0 "a": T[5,3,101]
  in %1 "b": T[5,101,203]
  %2: T[5,3,203] = MatMul(%0, %1)
  out %2 "y")",
     1},
    {"computed, and an epilogue", R"(  in %0 "a": T[3,8,320]
  in %1 "b": T[3,320,72]
  in %2 "r": T[3,8,72]
  const %3: T[72] = @random
  %4: T[3,320,72] = Tanh(%1)
  %5: T[3,8,72] = MatMul(%0, %4)
  %6: T[3,8,72] = Add(%5, %3)
  %7: T[3,8,72] = Relu(%6)
  %8: T[3,8,72] = Add(%7, %2)
  out %8 "y")",
     1},
    {"one B for all, one after another", R"(  in %0 "a": T[6,600]
  in %1 "b": T[600,40]
  in %2 "c": T[40,136]
  %3: T[6,40] = MatMul(%0, %1)
  %4: T[6,136] = MatMul(%3, %2)
  out %4 "y")",
     2},
    {"side by side, rows of k", R"(  in %0 "a": T[4,2,64]
  in %1 "b": T[64,4,40]
  %2: T[4,64,40] = Transpose(%1) {perm = [1, 0, 2]}
  %3: T[4,2,40] = MatMul(%0, %2)
  out %3 "y")",
     1},
};

/// The program of such products, `streamed` of whose bodies stream B.
std::shared_ptr<const Program> streamed_program(const graph::Graph& graph, const char* granularity,
                                                bool tf32, int streamed, int sms = 0) {
  const machine::Machine device = some_gpu(sms);
  auto program =
      program_by(graph, device,
                 strategy_for(device, {.granularity = *machine::parse_granularity(granularity),
                                       .dataflow = false,
                                       .tf32 = tf32}),
                 true);
  int found = 0;
  for (const auto& body : program->bodies)
    found += body.text.find("OBK_GEMM_STREAMED_TILE") != std::string::npos;
  EXPECT_EQ(found, streamed);
  return program;
}

class StreamedGemm : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(StreamedGemm, EqualsInterpreter) {
  const auto& [name, granularity] = GetParam();
  const bool tf32 = name == std::string("tf32");
  const std::string type = tf32 ? "f32" : name;
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  std::string skipped;
  for (const FewRowsOfActivations& one : kFewRowsOfActivations) {
    SCOPED_TRACE(one.name);
    const graph::Graph graph = of_activations({one.name, one.text, 0}, type);
    const auto program = streamed_program(graph, granularity, tf32, one.streamed);
    if (is_not_compiled(&one == kFewRowsOfActivations + 3)) {
      skipped = kNotCompiled;
      continue;
    }
    expect_interpreters_answers(graph, program, step_of(name), skipped);
    if (testing::Test::HasFatalFailure()) return;
  }
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}

INSTANTIATE_TEST_SUITE_P(Types, StreamedGemm,
                         testing::Combine(testing::Values("f32", "tf32", "f16", "bf16"),
                                          testing::Values("op", "stitch", "mono")),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param)) + "_" +
                                  std::get<1>(one.param);
                         });

// In tf32 so do products of up to 32 rows by weights; for few multiprocessors in wide tiles.
TEST(StreamedTf32, OfWeights) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  std::string skipped;
  for (const auto& [rows, sms] : {std::pair{1, 0}, {8, 0}, {26, 0}, {32, 0}, {1, 4}, {8, 8}})
    for (const char* granularity : {"op", "stitch", "mono"}) {
      SCOPED_TRACE(fmt::format("{} rows, {}, {} multiprocessors", rows, granularity, sms));
      const std::string text = fmt::format(R"(  in %0 "a": T[{0},400]
  const %1: T[400,216] = @random
  const %2: T[216] = @random
  const %3: T[216,1000] = @random
  %4: T[{0},216] = MatMul(%0, %1)
  %5: T[{0},216] = Add(%4, %2)
  %6: T[{0},216] = Relu(%5)
  %7: T[{0},1000] = MatMul(%6, %3)
  out %7 "y")",
                                           rows);
      const graph::Graph graph = of_activations({"of weights", text.c_str(), 0}, "f32");
      const auto program = streamed_program(graph, granularity, true, 2, sms);
      if (is_not_compiled((rows == 26 && granularity == std::string("stitch")) ||
                          (sms == 4 && granularity == std::string("mono")))) {
        skipped = kNotCompiled;
        continue;
      }
      expect_interpreters_answers(graph, program, step_of("tf32"), skipped);
      if (HasFatalFailure()) return;
    }
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}

// Products of two activations have kernels of their own wherever copies can address both, whatever
// stands behind them: right, and the same bits from run to run.
TEST_P(PipelinedGemm, OfActivations) {
  const DType type = GetParam() == std::string("f16") ? DType::f16 : DType::bf16;
  SKIP_WITHOUT(type);
  expect_products(kOfActivations, GetParam(), false);
}
TEST(PipelinedTf32, OfActivations) {
  SKIP_WITHOUT(DType::f16);
  expect_products(kOfActivations, "tf32", false);
}
TEST(PipelinedTf32, OfWeights) {
  SKIP_WITHOUT(DType::f16);
  expect_products(kOfWeights, "tf32", true);
}
TEST(PipelinedF32, OfActivations) {
  SKIP_WITHOUT(DType::f16);
  expect_products(kOfActivations, "f32", false);
}
TEST(PipelinedF32, OfWeights) {
  SKIP_WITHOUT(DType::f16);
  expect_products(kOfWeights, "f32", true);
}

// Both maps follow the caller's memory from run to run, one operand's or both.
TEST_P(PipelinedGemm, OfActivationsWhereverThePortsAre) {
  const DType type = GetParam() == std::string("f16") ? DType::f16 : DType::bf16;
  SKIP_WITHOUT(type);
  if (!first_gpu().ok()) GTEST_SKIP() << first_gpu().error().text();
  const graph::Graph graph = of_activations(kOfActivations[2], GetParam());
  auto program = program_of(graph, "stitch", true, false, true);
  auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  auto context = (*executable)->context();
  ASSERT_TRUE(context.ok()) << context.error().text();
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (const graph::ValueId input : graph.inputs())
    inputs.push_back(random_tensor(graph.type(input), random));
  const auto wanted = run(**context, *program, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  const Driver& d = **load_driver();
  Handle stream = nullptr;
  ASSERT_EQ(d.StreamCreate(&stream, kStreamNonBlocking), 0);
  std::deque<Memory> memory;
  const Memory* at[3] = {};
  for (size_t k = 0; k < 6; ++k) {
    for (size_t p = 0; p < 3; ++p) {
      if (k > 0 && p != k % 3) continue;
      const Tensor& from = p < 2 ? inputs[p] : (*wanted)[0];
      const std::vector<std::byte> zeros(static_cast<size_t>(from.bytes()));
      if (k > 0) {
        ASSERT_EQ(d.CopyToDevice(at[p]->at(), zeros.data(), zeros.size()), 0);
      }
      at[p] = &memory.emplace_back();
      ASSERT_TRUE(
          memory.back().fill(p < 2 ? from.data() : zeros.data(), from.bytes(), "a port").ok());
    }
    const std::vector<const void*> in = {reinterpret_cast<const void*>(at[0]->at()),
                                         reinterpret_cast<const void*>(at[1]->at())};
    const std::vector<void*> out = {reinterpret_cast<void*>(at[2]->at())};
    const Status ran = (*context)->run_on(in, out, stream);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    ASSERT_EQ(d.StreamSynchronize(stream), 0);
    const Tensor& want = (*wanted)[0];
    std::vector<std::byte> got(static_cast<size_t>(want.bytes()));
    ASSERT_EQ(d.CopyToHost(got.data(), at[2]->at(), got.size()), 0);
    EXPECT_EQ(memcmp(got.data(), want.data(), got.size()), 0) << "run " << k;
  }
  d.StreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(Types, PipelinedGemm, testing::Values("f16", "bf16"));

int bodies_with(const Program& program, const std::string& text) {
  return static_cast<int>(
      std::count_if(program.bodies.begin(), program.bodies.end(),
                    [&](const auto& body) { return body.text.find(text) != std::string::npos; }));
}

std::shared_ptr<Program> tall_program(const graph::Graph& graph, int sms, bool tall) {
  const machine::Machine device = some_gpu(sms);
  return program_by(
      graph, device,
      strategy_for(device, {.granularity = machine::Granularity::kStitch, .tall_gemm = tall}),
      true);
}

/// A graph's program for `sms` multiprocessors (0: all), of whose bodies `tall` are tall tiles with
/// sums of `chains` (0: of whichever cost less), in clusters of `parts`: right, the same bits from
/// run to run (OBELISK_GPU_RUNS of them), and where sums have four chains those of the program
/// without tall tiles.
void expect_tall(const graph::Graph& graph, DType type, int sms, int tall, int chains, int parts) {
  SCOPED_TRACE(
      fmt::format("{} for {} multiprocessors", to_string(graph.type(graph.inputs()[0])), sms));
  SKIP_WITHOUT(type);
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (const graph::ValueId input : graph.inputs())
    inputs.push_back(random_tensor(graph.type(input), random));
  std::optional<std::vector<Tensor>> wanted;
  std::vector<Tensor> answers[2];
  for (const bool has_tall : {false, true}) {
    auto program = tall_program(graph, sms, has_tall);
    EXPECT_EQ(bodies_with(*program, "OBK_PIPELINED_GEMM_TALL_"), has_tall ? tall : 0);
    const auto source = device_source(*program);
    ASSERT_TRUE(source.ok()) << source.error().text();
    if (has_tall) {
      EXPECT_NE(source->find(fmt::format("split_k = {}, share", parts)), std::string::npos);
      for (const auto& body : program->bodies) {
        const size_t at = body.text.find("OBK_PIPELINED_GEMM_TALL_");
        if (at == std::string::npos) continue;
        // type, g, stage, chains
        if (chains == 0) continue;
        EXPECT_EQ(
            std::stoi(body.text.substr(body.text.find(", ", body.text.find(", g, ", at) + 5) + 2)),
            chains)
            << body.text.substr(at, 120);
      }
    }
    if (is_not_compiled(has_tall)) continue;
    auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
    ASSERT_TRUE(executable.ok()) << executable.error().text();
    for (const KernelReport& kernel : (*(*executable)->device()).kernels)
      for (size_t k = 0; k < program->bodies.size(); ++k)
        if (kernel.name == fmt::format("obk_kernel_{}", k) &&
            program->bodies[k].text.find("OBK_PIPELINED_GEMM_TALL_") != std::string::npos) {
          EXPECT_EQ(kernel.spill_bytes, 0) << kernel.name;
        }
    auto context = (*executable)->context();
    if (!context.ok()) {
      ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
      continue;
    }
    if (!wanted) {
      auto interpreted = graph::interpret(graph, inputs);
      ASSERT_TRUE(interpreted.ok()) << interpreted.error().text();
      wanted = std::move(*interpreted);
    }
    SCOPED_TRACE(has_tall ? "tall" : "not tall");
    expect_answers(**context, *program, inputs, *wanted, step_of(std::string(to_string(type))),
                   answers[has_tall]);
    if (testing::Test::HasFatalFailure()) return;
  }
  if (answers[1].empty()) GTEST_SKIP() << "compiled, not run";
  if (chains == 4) {
    EXPECT_TRUE(same_bits(answers[0], answers[1])) << "tall tiles have other bits";
  }
}

/// y = tanh(x) W + b, of matrices whose weights differ.
graph::Graph batch_of_products(DType type, int64_t batch, int64_t rows, int64_t depth,
                               int64_t columns) {
  std::mt19937 random(5);
  graph::Graph graph;
  const auto constant = [&](Shape shape) {
    return graph.add_constant(random_tensor({type, shape}, random, 1.0 / 16));
  };
  const auto x = graph.add_input("x", {type, {batch, rows, depth}});
  const auto product = graph.must_add(
      graph::Op::MatMul, {graph.must_add(graph::Op::Tanh, {x}), constant({batch, depth, columns})});
  graph.mark_output(graph.must_add(graph::Op::Add, {product, constant({columns})}), "y");
  return graph;
}

/// y = sigmoid(p) q, [p q] = tanh(x) W: a dual GEMM.
graph::Graph gated(const std::string& type, int64_t rows, int64_t depth, int64_t columns) {
  auto graph = graph::parse_random(fmt::format(R"(graph "gated" {{
  in %0 "x": {0}[{1},{2}]
  const %1: {0}[{2},{4}] = @random
  const %9: i64[2] = [{3}, {3}]
  %2: {0}[{1},{2}] = Tanh(%0)
  %3: {0}[{1},{4}] = MatMul(%2, %1)
  %4: {0}[{1},{3}], %5: {0}[{1},{3}] = Split(%3, %9) {{axis = 1}}
  %6: {0}[{1},{3}] = Sigmoid(%4)
  %7: {0}[{1},{3}] = Mul(%6, %5)
  out %7 "y"
}})",
                                               type, rows, depth, columns, 2 * columns),
                                   0.0625);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

DType type_named(const std::string& name) { return name == "f16" ? DType::f16 : DType::bf16; }

// Of few multiprocessors each has several tiles, and those of up to 128 rows read the weights once:
// whole tiles and ragged ones, one kernel's tiles in one round and in several.
TEST_P(TallGemm, HaveTheBitsOfOtherTiles) {
  const DType type = type_named(GetParam());
  for (const int64_t rows : {120, 128})
    expect_tall(two_products(type, rows, 768, 1536), type, 16, 1, 4, 1);
  expect_tall(two_products(type, 128, 768, 3072), type, 33, 1, 4, 1);
}

// Wider tiles, whose sums have one chain: registers hold no more.
TEST_P(TallGemm, OfOneChain) {
  const DType type = type_named(GetParam());
  for (const int64_t rows : {120, 128})
    expect_tall(two_products(type, rows, 768, 3072), type, 16, 1, 1, 1);
  expect_tall(two_products(type, 128, 768, 3064), type, 33, 1, 0, 1);
  expect_tall(two_products(type, 384, 768, 1536), type, 16, 2, 1, 1);
  expect_tall(two_products(type, 509, 768, 1536), type, 33, 2, 1, 1);
}

// Two sides of B in a tile, the last tile's narrower.
TEST_P(TallGemm, OfTwoSides) {
  const DType type = type_named(GetParam());
  const graph::Graph graph = gated(GetParam(), 384, 768, 760);
  EXPECT_EQ(bodies_with(*tall_program(graph, 16, true), "g.n = 2 * "), 1);
  expect_tall(graph, type, 16, 1, 1, 1);
}

// Matrices one after another, whose last rows are not the next one's.
TEST_P(TallGemm, OfBatches) {
  const DType type = type_named(GetParam());
  expect_tall(batch_of_products(type, 3, 377, 768, 1536), type, 16, 1, 1, 1);
}

// Clusters add parts of a long k in order.
TEST_P(TallGemm, ClustersAddPartsInOrder) {
  const DType type = type_named(GetParam());
  expect_tall(long_sum(type, 128, 3072, 768, 2), type, 16, 1, 4, 2);
  expect_tall(long_sum(type, 384, 3072, 768, 4), type, 16, 1, 4, 4);
  expect_tall(long_sum(type, 117, 1024, 768, 2), type, 16, 1, 4, 2);
}

// Statistics of a norm's rows, joined by the tile.
TEST_P(TallGemm, NormsGoThroughProducts) {
  const DType type = type_named(GetParam());
  expect_tall(folded_norm(type, 128, 768, 1536, true), type, 16, 1, 4, 1);
  expect_tall(folded_norm(type, 128, 768, 3072, true), type, 33, 1, 4, 1);
  expect_tall(folded_norm(type, 384, 768, 1536, false), type, 16, 3, 0, 1);
  expect_tall(folded_norm(type, 600, 768, 1536, true), type, 132, 2, 1, 1);
  expect_tall(folded_norm(type, 520, 768, 2304, false), type, 132, 2, 1, 1);  // one of a long k
}

// 512 rows and more: one chain over k, or over a part of it.
TEST_P(TallGemm, OfManyRows) {
  const DType type = type_named(GetParam());
  expect_tall(two_products(type, 1024, 768, 2304), type, 132, 1, 1, 1);
  expect_tall(two_products(type, 1000, 768, 1544), type, 16, 1, 1, 1);
  expect_tall(long_sum(type, 1024, 3072, 768, 2), type, 132, 1, 1, 2);
  expect_tall(long_sum(type, 600, 3072, 768, 3), type, 132, 1, 1, 3);
}
INSTANTIATE_TEST_SUITE_P(Types, TallGemm, testing::Values("f16", "bf16"));

/// tanh(x) [W + b], the product if `columns` > 0, over `parts` of k.
graph::Graph one_product(int64_t rows, int64_t columns, int64_t depth, int64_t parts) {
  std::mt19937 random(5);
  graph::Graph graph;
  auto y = graph.must_add(graph::Op::Tanh, {graph.add_input("x", {DType::f16, {rows, depth}})});
  const auto constant = [&](Shape shape) {
    return graph.add_constant(random_tensor({DType::f16, shape}, random, 1.0 / 16));
  };
  const auto cast = [&](graph::ValueId value, DType to) {
    ops::Attrs attrs = ops::Attrs().set("to", ops::number_of_dtype(to));
    if (to == DType::f16) attrs.set("loose", int64_t{1});
    return graph.must_add(graph::Op::Cast, {value}, std::move(attrs));
  };
  if (columns > 0) {
    const auto w = constant({depth, columns});
    y = parts == 1
            ? graph.must_add(graph::Op::MatMul, {y, w})
            : cast(graph.must_add(graph::Op::MatMul, {cast(y, DType::f32), cast(w, DType::f32)},
                                  ops::Attrs().set("parts", parts)),
                   DType::f16);
    y = graph.must_add(graph::Op::Add, {y, constant({columns})});
  }
  graph.mark_output(y, "y");
  return graph;
}

// OBELISK_GPU_BENCH=1: device time of a product, less that of a graph without it, with tiles of up
// to 64 rows (a grid's, of many rows), with tall ones by cost, and of many rows with tall ones in
// any case; on OBELISK_GPU_SMS multiprocessors, all without it.
TEST(TallGemmTimes, OfShapes) {
  if (!getenv("OBELISK_GPU_BENCH")) GTEST_SKIP() << "OBELISK_GPU_BENCH is not set";
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  const char* wished = getenv("OBELISK_GPU_SMS");
  const int sms = wished ? atoi(wished) : 0;
  struct Timed {
    double us = -1;
    std::string form = "none";  // how its body calls the tile
  };
  const auto time_of = [&](const graph::Graph& graph, const machine::Machine& device, bool tall) {
    Timed timed;
    const auto program = program_by(
        graph, device,
        strategy_for(device, {.granularity = machine::Granularity::kStitch, .tall_gemm = tall}),
        true, false);
    for (const auto& body : program->bodies)
      for (const char* call : {"OBK_PIPELINED_GEMM_TALL_", "OBK_PIPELINED_GEMM_S",
                               "OBK_CONV_GRID_TILE", "OBK_GEMM_TILE"})
        if (const size_t at = body.text.find(call); at != std::string::npos) {
          timed.form = body.text.substr(at, body.text.find(';', at) - at);
          break;
        }
    const auto executable = load_cuda(program, {.cache_dir = "off"});
    if (!executable.ok()) return timed;
    auto context = (*executable)->context();
    if (!context.ok()) return timed;
    std::mt19937 random(7);
    const std::vector<Tensor> inputs = {random_tensor(graph.type(graph.inputs()[0]), random)};
    if (!run(**context, *program, inputs).ok()) return timed;
    auto times = (*context)->device_us(50);
    if (!times.ok() || times->empty()) return timed;
    std::sort(times->begin(), times->end());
    timed.us = (*times)[times->size() / 2];
    return timed;
  };
  fmt::print("rows x columns x k on {} multiprocessors: us\n",
             sms == 0 ? "all" : std::to_string(sms));
  for (const auto& [rows, columns, k] :
       {std::tuple{128, 768, 768}, std::tuple{128, 2304, 768}, std::tuple{128, 3072, 768},
        std::tuple{128, 768, 3072}, std::tuple{197, 3072, 768}, std::tuple{384, 768, 768},
        std::tuple{384, 2304, 768}, std::tuple{384, 3072, 768}, std::tuple{384, 768, 3072},
        std::tuple{512, 3072, 768}, std::tuple{1024, 768, 768}, std::tuple{1024, 2304, 768},
        std::tuple{1024, 3072, 768}, std::tuple{1024, 768, 3072}, std::tuple{2048, 768, 768},
        std::tuple{2048, 3072, 768}}) {
    const machine::Machine device = some_gpu(sms);
    const auto graph_of = [&, rows = rows, columns = columns, k = k](bool tall) {
      const machine::Strategy strategy =
          strategy_for(device, {.granularity = machine::Granularity::kStitch, .tall_gemm = tall});
      const auto type = static_cast<int32_t>(DType::f16);
      const int64_t parts =
          rows >= stitch::kMostPipelinedRows
              ? schedule::tall_split_k(device, strategy, type, rows, columns, k)
              : kernels::tile_library(device).gemm.split_k->splits(type, columns, k, 0);
      return one_product(rows, columns, k,
                         stitch::splits_meet(device, strategy, rows, columns, parts) ? parts : 1);
    };
    const Timed alone = time_of(one_product(rows, 0, k, 1), device, true);
    if (alone.us < 0) GTEST_SKIP() << "compiled, not run";
    fmt::print("{} x {} x {}\n", rows, columns, k);
    const auto tell = [&](const char* name, const Timed& timed) {
      fmt::print("  {:10} {:7.2f}  {}\n", name, timed.us - alone.us, timed.form);
    };
    tell("without", time_of(graph_of(false), device, false));
    tell("by cost", time_of(graph_of(true), device, true));
    if (rows < stitch::kMostPipelinedRows) continue;
    machine::Machine without_grids = device;
    without_grids.costs.grid_begin = 1e9;
    tell("tall", time_of(graph_of(true), without_grids, true));
  }
}

// In one kernel a product's rows of A come by maps as soon as the wave before has ended: right, the
// same bits from run to run (OBELISK_GPU_RUNS of them), beside others' rows, at each layer of a
// chain that reuses its memory, of tiles that are not whole, of two contexts at once.
TEST_P(AsyncRows, RowsComeByMapsAndKeepTheirBits) {
  const DType type = GetParam() == std::string("f16") ? DType::f16 : DType::bf16;
  SKIP_WITHOUT(type);
  std::string skipped;
  for (const auto& [depth, columns] : {std::pair{256, 1024}, std::pair{384, 1536}}) {
    std::vector<Tensor> before;
    for (const int64_t rows : {24, 121, 197}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}", rows, columns, depth));
      const graph::Graph graph = chain_of_products(type, rows, depth, columns, 2);
      auto program = program_of(graph, "mono", true);
      int issued = 0;
      for (const auto& body : program->bodies) issued += body.traits.async_rows.has_value();
      if (program->target == "sm_90a" && rows != 121) {
        EXPECT_EQ(issued > 0, rows > 48);
      }
      if (is_not_compiled(rows == 197)) {
        skipped = kNotCompiled;
        continue;
      }
      auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
      ASSERT_TRUE(executable.ok()) << executable.error().text();
      auto context = (*executable)->context(), other = (*executable)->context();
      if (!context.ok() || !other.ok()) {
        const Error& error = (context.ok() ? other : context).error();
        ASSERT_EQ(error.code, Code::kDevice) << error.text();
        skipped = error.text();
        continue;
      }
      std::mt19937 random(7);  // the first rows are the same
      const std::vector<Tensor> inputs = {random_tensor(graph.type(graph.inputs()[0]), random)};
      auto wanted = graph::interpret(graph, inputs);
      ASSERT_TRUE(wanted.ok()) << wanted.error().text();
      auto got = run(**context, *program, inputs);
      ASSERT_TRUE(got.ok()) << got.error().text();
      const char* wished = getenv("OBELISK_GPU_RUNS");
      const int runs = wished ? atoi(wished) : 3;
      const auto repeat = [&](Context& in) -> std::string {
        for (int run_number = 0; run_number < runs; ++run_number) {
          auto again = run(in, *program, inputs);
          if (!again.ok()) return again.error().text();
          if (!same_bits(*got, *again))
            return fmt::format("run {} of the same input gave other bits", run_number);
        }
        return "";
      };
      std::string beside;
      std::thread second([&] { beside = repeat(**other); });
      EXPECT_EQ(repeat(**context), "");
      second.join();
      EXPECT_EQ(beside, "");
      const double step = type == DType::f16 ? 2e-3 : 1.6e-2;
      for (size_t output = 0; output < got->size(); ++output)
        for (int64_t k = 0; k < (*got)[output].count(); ++k) {
          const double a = (*got)[output].get_double(k), b = (*wanted)[output].get_double(k);
          ASSERT_LE(std::fabs(a - b), 8 * step * (1 + std::fabs(b)))
              << "output " << output << " element " << k;
        }
      if (!before.empty()) {
        EXPECT_EQ(
            memcmp(before[0].data(), (*got)[0].data(), static_cast<size_t>(before[0].bytes())), 0)
            << "rows have other bits beside more rows";
      }
      before = std::move(*got);
    }
  }
  if (!skipped.empty()) GTEST_SKIP() << "compiled, not run: " << skipped;
}
INSTANTIATE_TEST_SUITE_P(Types, AsyncRows, testing::Values("f16", "bf16"));

/// Each of them is a kernel where a program is a graph of kernels.
int works_with_tasks(const Program& program) {
  std::set<uint32_t> works;
  for (const auto& list : program.lists)
    for (const ObkTask& task : list) works.insert(task.work);
  return static_cast<int>(works.size());
}

bool has_clusters(const Program& program) {
  return std::any_of(program.bodies.begin(), program.bodies.end(), [](const auto& body) {
    return body.traits.form == codegen::BodyTraits::Form::kCluster;
  });
}

class Programs : public testing::TestWithParam<std::tuple<Case, const char*>> {};

TEST_P(Programs, EqualInterpreter) {
  const auto& [test, dtype] = GetParam();
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  const std::string type = std::string(dtype).substr(0, std::string(dtype).find(','));
  const bool tf32 = type == "tf32", tiles = type != dtype || tf32;  // of the tile library
  auto graph = graph::parse(graph::of_type(test.text, tf32 ? "f32" : type));
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (graph::ValueId v : graph->inputs()) inputs.push_back(random_tensor(graph->type(v), random));
  auto wanted = graph::interpret(*graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  const double step = type == "f32" ? 1e-5 : type == "f16" || tf32 ? 2e-3 : 1.6e-2;
  std::string skipped;
  // A gang that writes to its members' shared memory is a kernel of its own.
  const bool own = std::string_view(test.name).starts_with("squeeze_excite");
  for (const char* granularity : {"mono", "stitch", "op"}) {
    if (own && std::string_view(granularity) != "stitch") continue;
    SCOPED_TRACE(granularity);
    auto program = program_of(*graph, granularity, tiles, tf32, own);
    EXPECT_TRUE(!own || has_clusters(*program));
    // gpu.py sanitize: what one run has compiled, the next one finds.
    const char* kept = getenv("OBELISK_GPU_CUBINS");
    auto executable = load_cuda(program, {.cache_dir = kept ? kept : "off", .watchdog = true});
    ASSERT_TRUE(executable.ok()) << executable.error().text();
    const DeviceReport& report = *(*executable)->device();
    EXPECT_GT(report.cubin_bytes, 0);
    EXPECT_EQ(report.launches, std::string(granularity) == "mono" ? 1 : works_with_tasks(*program));
    // A generated body may save a few registers around a call, and so may a called tile.
    for (const KernelReport& kernel : report.kernels)
      EXPECT_LE(kernel.spill_bytes, 256) << kernel.name;
    auto context = (*executable)->context();
    if (!context.ok()) {
      ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
      skipped = context.error().text();
      continue;
    }
    auto got = run(**context, *program, inputs);
    ASSERT_TRUE(got.ok()) << got.error().text();
    for (int repeat = 0; repeat < 3; ++repeat) {
      auto again = run(**context, *program, inputs);
      ASSERT_TRUE(again.ok()) << again.error().text();
      EXPECT_TRUE(same_bits(*got, *again)) << "the same input gave other bits";
    }
    double worst = 0;
    for (size_t o = 0; o < got->size(); ++o) {
      double scale =
          0;  // what products of rounded numbers are off by is of their size, not the sum's
      for (int64_t k = 0; tf32 && k < (*wanted)[o].count(); ++k)
        scale = std::max(scale, std::fabs((*wanted)[o].get_double(k)));
      for (int64_t k = 0; k < (*got)[o].count(); ++k) {
        const double a = (*got)[o].get_double(k), b = (*wanted)[o].get_double(k);
        if (std::isnan(a) && std::isnan(b)) continue;
        const double error = std::fabs(a - b) / (1.0 + std::max(scale, std::fabs(b)));
        ASSERT_LE(error, 4 * step)
            << "output " << o << " element " << k << ": " << a << " wanted " << b;
        worst = std::max(worst, error);
      }
    }
    if (getenv("OBELISK_GPU_FEW")) continue;  // no times: a tool is watching
    auto us = (*context)->device_us(20);
    ASSERT_TRUE(us.ok()) << us.error().text();
    const auto queued = (*context)->device_us(4, Launches::kQueued);
    ASSERT_TRUE(queued.ok()) << queued.error().text();
    EXPECT_EQ(queued->size(), 4U);
    EXPECT_GT(*std::min_element(queued->begin(), queued->end()), 0);
    const auto behind = run(**context, *program, inputs);
    ASSERT_TRUE(behind.ok()) << behind.error().text();
    EXPECT_TRUE(same_bits(*got, *behind)) << "after runs that waited in the stream";
    std::sort(us->begin(), us->end());
    fmt::print(
        "{{\"case\": \"{}\", \"dtype\": \"{}\", \"granularity\": \"{}\", \"launches\": {}, "
        "\"phases\": {}, \"worst\": {:.2e}, \"device_us\": {:.2f}}}\n",
        test.name, dtype, granularity, report.launches, report.phases, worst, (*us)[10]);
  }
  if (!skipped.empty()) GTEST_SKIP() << "compiled for sm_90a, not run: " << skipped;
}

// ---- gangs
// ---------------------------------------------------------------------------------------
/// 10^5 steps of gangs while other SMs stream weights, and four contexts at once: every run gives
/// the bits of the first. OBELISK_GPU_RUNS sets how many runs of 512 steps.
TEST(Gangs, WordsAreRightUnderLoad) {
  if (auto gpu = first_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.error().text();
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  std::string text = R"(graph "g" {
  in %0 "fed": f32[512,2,2048]
  in %1 "r": f16[2,1024,256]
  in %2 "x": f16[64,4096]
  in %3 "w": f16[4096,2048]
  %4: f16[512,2,2,256] = Recurrence(%0, %1) {cell = "lstm", direction = "bidirectional"}
)";
  for (int k = 0; k < 8; ++k) {
    text += fmt::format("  const %{}: f16[] = [{}]\n", 10 + 3 * k, k + 1);
    text += fmt::format("  %{}: f16[64,4096] = Mul(%2, %{})\n", 11 + 3 * k, 10 + 3 * k);
    text += fmt::format("  %{}: f16[64,2048] = MatMul(%{}, %3)\n", 12 + 3 * k, 11 + 3 * k);
  }
  text += "  out %4 \"y\"\n";
  for (int k = 0; k < 8; ++k) text += fmt::format("  out %{} \"z{}\"\n", 12 + 3 * k, k);
  auto graph = graph::parse(text + "}");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  std::mt19937 random(11);
  std::vector<Tensor> inputs;
  for (graph::ValueId v : graph->inputs()) inputs.push_back(random_tensor(graph->type(v), random));
  Tensor& r = inputs[1];
  for (int64_t k = 0; k < r.count(); ++k) r.set_double(k, r.get_double(k) / 16);
  const char* wished = getenv("OBELISK_GPU_RUNS");
  const int runs = wished ? atoi(wished) : 200;
  std::optional<std::vector<Tensor>> wanted;
  for (const char* granularity : {"mono", "stitch"}) {
    SCOPED_TRACE(granularity);
    auto program = program_of(*graph, granularity, true);
    auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
    ASSERT_TRUE(executable.ok()) << executable.error().text();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    if (!wanted) {
      auto context = (*executable)->context();
      ASSERT_TRUE(context.ok()) << context.error().text();
      auto first = run(**context, *program, inputs);
      ASSERT_TRUE(first.ok()) << first.error().text();
      wanted = *first;
    }
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        auto context = (*executable)->context();
        if (!context.ok()) return void(++wrong);
        for (int k = 0; k < runs / 4; ++k) {
          auto got = run(**context, *program, inputs);
          if (!got.ok() || !same_bits(*got, *wanted)) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

// ---- contexts
// ------------------------------------------------------------------------------------
/// A token of a decoder with a fixed cache, which attention reads while it is updated: at the first
/// and the last key, by an index that counts from the end, and by one that names no key.
class FixedCache : public testing::TestWithParam<DType> {};
TEST_P(FixedCache, EqualInterpreterWhereverTheNewRowIs) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  const DType type = GetParam();
  constexpr int64_t kKeys = 333;
  auto graph = passes::merge_gates(graph::decoder_step(type, {.keys = kKeys, .fixed_cache = true}));
  ASSERT_TRUE(graph.ok());
  auto program = program_of(*graph, "mono", true);
  ASSERT_TRUE(program->dataflow);
  auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  auto quick = load_cuda(program, {.cache_dir = "off"});
  ASSERT_TRUE(quick.ok()) << quick.error().text();
  for (const KernelReport& kernel : (*(*quick)->device()).kernels)
    EXPECT_LE(kernel.spill_bytes, 64) << kernel.name << " spills registers to local memory";
  auto context = (*executable)->context();
  if (!context.ok()) {
    ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
    GTEST_SKIP() << "compiled, not run: " << context.error().text();
  }
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (graph::ValueId v : graph->inputs()) inputs.push_back(random_tensor(graph->type(v), random));
  const char* wished = getenv("OBELISK_GPU_RUNS");
  for (const int64_t place : {int64_t{0}, int64_t{100}, kKeys - 1, int64_t{-1}, kKeys + 5}) {
    SCOPED_TRACE(place);
    for (size_t k = 0; k < inputs.size(); ++k)
      if (inputs[k].dtype() == DType::i64) inputs[k].set_int(0, place);
    auto wanted = graph::interpret(*graph, inputs);
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    auto got = run(**context, *program, inputs);
    ASSERT_TRUE(got.ok()) << got.error().text();
    for (size_t output = 0; output < got->size(); ++output)
      for (int64_t k = 0; k < (*got)[output].count(); ++k) {
        const double a = (*got)[output].get_double(k), b = (*wanted)[output].get_double(k);
        if (std::isnan(b)) {
          ASSERT_TRUE(std::isnan(a)) << "output " << output << ", element " << k;
          continue;
        }
        ASSERT_LE(std::fabs(a - b), (type == DType::f16 ? 1e-2 : 8e-2) * (1 + std::fabs(b)))
            << "output " << output << ", element " << k;
      }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        auto mine = (*executable)->context();
        if (!mine.ok()) return void(++wrong);
        for (int k = 0; k < (wished ? atoi(wished) : 50); ++k) {
          auto again = run(**mine, *program, inputs);
          if (!again.ok() || !same_bits(*got, *again)) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}
INSTANTIATE_TEST_SUITE_P(Types, FixedCache, testing::Values(DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

/// A token of a decoder whose words carry their readiness from SM to SM (schedule/dataflow.h):
/// right, and the same bits from run to run (OBELISK_GPU_RUNS of them) and in several contexts at
/// once.
class Dataflow : public testing::TestWithParam<const char*> {};
TEST_P(Dataflow, EqualInterpreterInAllContexts) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  const std::string name = GetParam();
  const DType type = name.starts_with("f16") ? DType::f16 : DType::bf16;
  auto early = passes::copy_early_pieces(
      graph::decoder_step(type, {.past = name.ends_with("narrow") ? type : DType::f32,
                                 .words = name.ends_with("words") ? 1003 : 0}));
  ASSERT_TRUE(early.ok());
  auto graph = passes::merge_gates(std::move(*early));
  ASSERT_TRUE(graph.ok());
  auto program = program_of(*graph, "mono", true);
  ASSERT_TRUE(program->dataflow);
  auto executable = load_cuda(program, {.cache_dir = "off", .watchdog = true});
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  EXPECT_EQ((*executable)->device()->barriers, 0);
  auto quick = load_cuda(program, {.cache_dir = "off"});
  ASSERT_TRUE(quick.ok()) << quick.error().text();
  for (const KernelReport& kernel : (*(*quick)->device()).kernels)
    EXPECT_LE(kernel.spill_bytes, 64) << kernel.name << " spills registers to local memory";
  auto context = (*executable)->context();
  if (!context.ok()) {
    ASSERT_EQ(context.error().code, Code::kDevice) << context.error().text();
    GTEST_SKIP() << "compiled, not run: " << context.error().text();
  }
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (graph::ValueId v : graph->inputs()) inputs.push_back(random_tensor(graph->type(v), random));
  auto wanted = graph::interpret(*graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  auto got = run(**context, *program, inputs);
  ASSERT_TRUE(got.ok()) << got.error().text();
  for (int64_t k = 0; k < (*got)[0].count(); ++k) {
    const double a = (*got)[0].get_double(k), b = (*wanted)[0].get_double(k);
    ASSERT_LE(std::fabs(a - b), (type == DType::f16 ? 1e-2 : 8e-2) * (1 + std::fabs(b)))
        << "element " << k;
  }
  const char* wished = getenv("OBELISK_GPU_RUNS");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      auto mine = (*executable)->context();
      if (!mine.ok()) return void(++wrong);
      for (int k = 0; k < (wished ? atoi(wished) : 50); ++k) {
        auto again = run(**mine, *program, inputs);
        if (!again.ok() || !same_bits(*got, *again)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}
INSTANTIATE_TEST_SUITE_P(Types, Dataflow,
                         testing::Values("f16", "bf16", "f16, past narrow", "f16, uneven words"));

class Contexts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (auto gpu = first_gpu(); !gpu.ok()) GTEST_SKIP() << gpu.error().text();
    if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
    auto parsed = graph::parse(kChain);
    ASSERT_TRUE(parsed.ok()) << parsed.error().text();
    program = program_of(*parsed, GetParam());
    auto loaded = load_cuda(program, {.cache_dir = "off", .watchdog = true});
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    executable = *loaded;
    std::mt19937 random(3);
    for (int set = 0; set < 4; ++set) {
      inputs.emplace_back();
      for (graph::ValueId v : parsed->inputs())
        inputs.back().push_back(random_tensor(parsed->type(v), random));
      auto context = executable->context();
      ASSERT_TRUE(context.ok()) << context.error().text();
      auto alone = run(**context, *program, inputs.back());
      ASSERT_TRUE(alone.ok()) << alone.error().text();
      wanted.push_back(*alone);
    }
  }
  std::shared_ptr<Program> program;
  std::shared_ptr<const Executable> executable;
  std::vector<std::vector<Tensor>> inputs, wanted;
};

TEST_P(Contexts, SeveralAtOnceAnswerAsAlone) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      auto context = executable->context();
      if (!context.ok()) return void(++wrong);
      for (int k = 0; k < 200; ++k) {
        auto got = run(**context, *program, inputs[(t + k) % 4]);
        if (!got.ok() || !same_bits(*got, wanted[(t + k) % 4])) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(Contexts, DevicePointersAreUsedInPlaceOnTheCallersStream) {
  const Driver& d = **load_driver();
  auto context = executable->context();
  ASSERT_TRUE(context.ok()) << context.error().text();
  Handle streams[2];
  for (Handle& stream : streams) ASSERT_EQ(d.StreamCreate(&stream, kStreamNonBlocking), 0);
  size_t before = 0, after = 0, total = 0;
  bool took_none = false;         // other processes take memory, too, while this one runs
  for (int k = 0; k < 12; ++k) {  // other memory and another stream each time
    const std::vector<Tensor>& from = inputs[k % 4];
    std::vector<Memory> memory(4);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (size_t p = 0; p < 2; ++p) {
      ASSERT_TRUE(memory[p].fill(from[p].data(), from[p].bytes(), "an input").ok());
      in.push_back(reinterpret_cast<const void*>(memory[p].at()));
    }
    for (size_t p = 0; p < 2; ++p) {
      ASSERT_TRUE(memory[2 + p].reserve(program->outputs[p].type.bytes(), "an output").ok());
      out.push_back(reinterpret_cast<void*>(memory[2 + p].at()));
    }
    d.MemInfo(&before, &total);
    Status ran = (*context)->run_on(in, out, streams[k % 2]);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    d.MemInfo(&after, &total);
    took_none = took_none || (k >= 4 && before == after);
    ASSERT_EQ(d.StreamSynchronize(streams[k % 2]), 0);
    for (size_t p = 0; p < 2; ++p) {
      Tensor got = Tensor::allocate(program->outputs[p].type);
      ASSERT_EQ(
          d.CopyToHost(got.mutable_data(), memory[2 + p].at(), static_cast<size_t>(got.bytes())),
          0);
      EXPECT_EQ(memcmp(got.data(), wanted[k % 4][p].data(), static_cast<size_t>(got.bytes())), 0)
          << "run " << k << " output " << p;
    }
  }
  EXPECT_TRUE(took_none) << "each run after the first took memory";
  // One of them moves from run to run, and zeros lie where it was; the others stay.
  std::deque<Memory> memory;
  const Memory* at[4] = {};
  for (size_t k = 0; k < 8; ++k) {
    for (size_t p = 0; p < 4; ++p) {
      if (k > 0 && p != k % 4) continue;
      const auto& type = p < 2 ? inputs[0][p].type() : program->outputs[p - 2].type;
      const std::vector<std::byte> zeros(static_cast<size_t>(type.bytes()));
      if (k > 0) {
        ASSERT_EQ(d.CopyToDevice(at[p]->at(), zeros.data(), zeros.size()), 0);
      }
      at[p] = &memory.emplace_back();
      const void* from = p < 2 ? inputs[0][p].data() : zeros.data();
      ASSERT_TRUE(memory.back().fill(from, type.bytes(), "a port").ok());
    }
    const std::vector<const void*> in = {reinterpret_cast<const void*>(at[0]->at()),
                                         reinterpret_cast<const void*>(at[1]->at())};
    const std::vector<void*> out = {reinterpret_cast<void*>(at[2]->at()),
                                    reinterpret_cast<void*>(at[3]->at())};
    const Status ran = (*context)->run_on(in, out, streams[0]);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    ASSERT_EQ(d.StreamSynchronize(streams[0]), 0);
    for (size_t p = 0; p < 2; ++p) {
      const Tensor& want = wanted[0][p];
      std::vector<std::byte> got(static_cast<size_t>(want.bytes()));
      ASSERT_EQ(d.CopyToHost(got.data(), at[2 + p]->at(), got.size()), 0);
      EXPECT_EQ(memcmp(got.data(), want.data(), got.size()), 0) << "run " << k << " output " << p;
    }
  }
  std::vector<const void*> host = {inputs[0][0].data(), inputs[0][1].data()};
  std::vector<void*> nowhere = {nullptr, nullptr};
  Status refused = (*context)->run_on(host, nowhere, streams[0]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
  EXPECT_NE(refused.error().message.find("'x'"), std::string::npos) << refused.error().message;
  std::vector<Memory> odd(2);
  for (size_t p = 0; p < 2; ++p) {
    ASSERT_TRUE(odd[p].reserve(static_cast<int64_t>(inputs[0][p].bytes()) + 16, "an input").ok());
    host[p] = reinterpret_cast<const void*>(odd[p].at() + (p == 0 ? 4 : 0));
  }
  refused = (*context)->run_on(host, nowhere, streams[0]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
  EXPECT_NE(refused.error().message.find("no multiple of 16"), std::string::npos)
      << refused.error().message;
  for (Handle stream : streams) d.StreamDestroy(stream);
}

// The graph's runs have memory of their own: others of the same context go on beside them.
TEST_P(Contexts, ARunOnACapturedStreamIsAPartOfItsGraph) {
  const Driver& d = **load_driver();
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto begin =
      reinterpret_cast<int (*)(Handle, int)>(dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<int (*)(Handle, Handle*)>(dlsym(library, "cuStreamEndCapture"));
  ASSERT_TRUE(begin && end);
  auto context = executable->context();
  ASSERT_TRUE(context.ok()) << context.error().text();
  Handle streams[2];
  for (Handle& stream : streams) ASSERT_EQ(d.StreamCreate(&stream, kStreamNonBlocking), 0);
  struct Ports {
    Memory memory[4];
    std::vector<const void*> in;
    std::vector<void*> out;
  } ports[2];
  for (Ports& each : ports)
    for (size_t p = 0; p < 4; ++p) {
      const auto& type = p < 2 ? inputs[0][p].type() : program->outputs[p - 2].type;
      ASSERT_TRUE(each.memory[p].reserve(type.bytes(), "a port").ok());
      void* const at = reinterpret_cast<void*>(each.memory[p].at());
      if (p < 2)
        each.in.push_back(at);
      else
        each.out.push_back(at);
    }
  ASSERT_EQ(begin(streams[0], 0), 0);
  for (int twice = 0; twice < 2; ++twice) {
    const Status ran = (*context)->run_on(ports[0].in, ports[0].out, streams[0]);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
  }
  Handle graph = nullptr, ready = nullptr;
  ASSERT_EQ(end(streams[0], &graph), 0);
  ASSERT_EQ(d.GraphInstantiate(&ready, graph, 0), 0);
  for (size_t k = 0; k < 40; ++k) {
    for (size_t side = 0; side < 2; ++side)
      for (size_t p = 0; p < 2; ++p) {
        const Tensor& from = inputs[(k + 2 * side) % 4][p];
        ASSERT_EQ(d.CopyToDeviceAsync(ports[side].memory[p].at(), from.data(),
                                      static_cast<size_t>(from.bytes()), streams[side]),
                  0);
      }
    ASSERT_EQ(d.GraphLaunch(ready, streams[0]), 0);
    const Status ran = (*context)->run_on(ports[1].in, ports[1].out, streams[1]);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    for (size_t side = 0; side < 2; ++side) {
      ASSERT_EQ(d.StreamSynchronize(streams[side]), 0);
      for (size_t p = 0; p < 2; ++p) {
        const Tensor& want = wanted[(k + 2 * side) % 4][p];
        std::vector<std::byte> got(static_cast<size_t>(want.bytes()));
        ASSERT_EQ(d.CopyToHost(got.data(), ports[side].memory[2 + p].at(), got.size()), 0);
        ASSERT_EQ(memcmp(got.data(), want.data(), got.size()), 0)
            << (side ? "a run beside the graph, " : "the graph, ") << k << " output " << p;
      }
    }
  }
  d.GraphExecDestroy(ready), d.GraphDestroy(graph);
  for (Handle stream : streams) d.StreamDestroy(stream);
}

TEST_P(Contexts, TimesOfTasksFollowThePhases) {
  auto context = executable->context();
  ASSERT_TRUE(context.ok());
  ASSERT_TRUE(run(**context, *program, inputs[0]).ok());
  auto times = (*context)->task_times();
  ASSERT_TRUE(times.ok()) << times.error().text();
  ASSERT_EQ(static_cast<int64_t>(times->size()), program->task_count());
  std::vector<double> begins(program->waves, 1e300), ends(program->waves, 0);
  for (const TaskTime& time : *times) {
    EXPECT_LE(time.start_us, time.end_us);
    begins[time.wave] = std::min(begins[time.wave], time.start_us);
    ends[time.wave] = std::max(ends[time.wave], time.end_us);
  }
  for (int wave = 1; wave < program->waves; ++wave) EXPECT_LE(ends[wave - 1], begins[wave] + 0.1);
}

// More lists than CTAs that run at once would wait for one another for ever: refused before
// anything runs.
TEST_P(Contexts, MoreCtasThanRunAtOnceAreRefused) {
  if (GetParam() != std::string("mono"))
    GTEST_SKIP() << "kernels of a graph take as many as there are";
  auto many = std::make_shared<Program>(*program);
  many->sms *= 64;
  many->lists.resize(static_cast<size_t>(many->sms));
  auto refused = load_cuda(many, {.cache_dir = "off"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kDevice);
  EXPECT_NE(refused.error().message.find("can run it at once"), std::string::npos)
      << refused.error().text();
}

TEST_P(Contexts, AMemoryLimitIsKept) {
  auto limited = load_cuda(program, {.cache_dir = "off", .memory_limit = 64_KiB});
  ASSERT_FALSE(limited.ok());
  EXPECT_EQ(limited.error().code, Code::kMemory);
  EXPECT_NE(limited.error().message.find("64.0 KiB"), std::string::npos) << limited.error().message;
}

INSTANTIATE_TEST_SUITE_P(Gpu, Contexts, testing::Values("mono", "stitch", "op"));

/// What rounds its operands: products with strides of every kind, attention with and without a
/// rule.
const Case kTf32Cases[] = {
    {"products", R"(graph "g" {
  in %0 "x": FLOAT[2,70,96]
  in %1 "w": FLOAT[96,40]
  in %2 "u": FLOAT[2,50,40]
  %3: FLOAT[2,70,40] = MatMul(%0, %1)
  %4: FLOAT[2,70,40] = Relu(%3)
  %5: FLOAT[2,40,50] = Transpose(%2) {perm = [0, 2, 1]}
  %6: FLOAT[2,70,50] = MatMul(%4, %5)
  out %6 "z"
})"},
    {"attention", R"(graph "g" {
  in %0 "q": FLOAT[2,4,70,64]
  in %1 "k": FLOAT[2,4,90,64]
  in %2 "v": FLOAT[2,4,90,40]
  %3: FLOAT[2,4,70,40] = Attention(%0, %1, %2)
  %4: FLOAT[2,4,70,40] = Attention(%0, %1, %2) {is_causal = 1}
  %5: FLOAT[2,4,70,40] = Add(%3, %4)
  out %5 "z"
})"},
};
/// Heads as rows, the last block of whose queries is smaller: there are more tasks than a grid has
/// rectangles.
const Case kHeads[] = {{"heads_of_uneven_rows", R"(graph "g" {
  in %0 "q": FLOAT[1,3,197,64]
  in %1 "k": FLOAT[1,3,197,64]
  in %2 "v": FLOAT[1,3,197,64]
  %3: FLOAT[1,3,197,64] = Attention(%0, %1, %2)
  out %3 "z"
})"}};
INSTANTIATE_TEST_SUITE_P(Heads, Programs,
                         testing::Combine(testing::ValuesIn(kHeads),
                                          testing::Values("f16, tiles", "bf16, tiles")));
INSTANTIATE_TEST_SUITE_P(Tf32, Programs,
                         testing::Combine(testing::ValuesIn(kTf32Cases), testing::Values("tf32")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name);
                         });
const auto name_of = [](const auto& info) {
  return fmt::format("{}_{}", std::get<0>(info.param).name, std::get<1>(info.param));
};
INSTANTIATE_TEST_SUITE_P(Bodies, Programs,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values("f32", "f16", "bf16")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Adapted, Programs,
                         testing::Combine(testing::ValuesIn(graph::kAdaptedGroups),
                                          testing::Values("f32", "f16", "bf16")),
                         name_of);

}  // namespace
}  // namespace obelisk::runtime::cuda
