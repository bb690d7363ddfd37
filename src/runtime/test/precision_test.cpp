// Numbers of every width through the whole pipeline: networks of f32 in other precisions, networks
// of 16 and 64 bits as they are.
#include <gtest/gtest.h>

#include <cmath>

#include "passes/passes.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

using graph::Graph;
using passes::Precision;

struct How {
  int sms = 2;
  bool stitching = true, tiles = true, tf32 = false;
};

Graph lowered(Graph graph, Precision precision) {
  for (const passes::Pass& pass : passes::table({.precision = precision})) {
    auto next = pass.run(std::move(graph));
    CHECK(next.ok(), "{}", next.error().text());
    graph = std::move(*next);
  }
  return graph;
}

stitch::Plan planned(const Graph& graph, const How& how) {
  stitch::Options options;
  options.stitch = how.stitching, options.tiles = how.tiles;
  return stitch::plan(graph, machine::cpu(how.sms), {.tf32 = how.tf32}, options);
}

std::vector<Tensor> answers(const Graph& graph, const std::vector<Tensor>& inputs, const How& how) {
  const machine::Machine device = machine::cpu(how.sms);
  const stitch::Plan plan = planned(graph, how);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
  const Status valid = schedule::validate(graph, plan, tasks);
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().text());
  const Status shadow = schedule::shadow_run(graph, plan, tasks);
  EXPECT_TRUE(shadow.ok()) << (shadow.ok() ? "" : shadow.error().text());
  auto program = std::make_shared<Program>(
      assemble(graph, plan, tasks, codegen::emit(graph, plan, tasks, kernels::kCpuTiles), "cpu"));
  auto executable = load_cpu(program);
  if (!executable.ok()) {
    ADD_FAILURE() << executable.error().text();
    return {};
  }
  auto context = (*executable)->context(1);  // threads are other tests' matter
  EXPECT_TRUE(context.ok());
  std::vector<const void*> in;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const Port& port : program->outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  const Status status = (*context)->run(in, out);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
  return outputs;
}

/// The largest difference, relative to the largest wanted magnitude of its output; infinite when
/// NaN stands where a number is wanted.
double distance(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  double worst = 0;
  for (size_t o = 0; o < wanted.size(); ++o) {
    double scale = 1e-30, most = 0;
    for (int64_t k = 0; k < wanted[o].count(); ++k) {
      const double g = got[o].get_double(k), w = wanted[o].get_double(k);
      if (std::isnan(g) && std::isnan(w)) continue;
      if (std::isfinite(w)) scale = std::max(scale, std::fabs(w));
      most = std::max(most, std::isnan(g) || std::isnan(w) ? INFINITY : std::fabs(g - w));
    }
    worst = std::max(worst, most / scale);
  }
  return worst;
}

double allowed(DType dtype) {
  return dtype == DType::bf16 ? 5e-2 : dtype == DType::f16 ? 6e-3 : 1e-9;
}

/// `@random` stands for the values of a constant.
Graph parsed(std::string text) {
  graph::Random random(11);
  for (size_t at; (at = text.find("@random")) != std::string::npos;) {
    const size_t open = text.rfind('[', at), close = text.rfind(']', at);
    int64_t count = 1;
    for (size_t k = open + 1, value = 0; k <= close; ++k) {
      if (text[k] == ',' || text[k] == ']')
        count *= static_cast<int64_t>(value), value = 0;
      else
        value = value * 10 + static_cast<size_t>(text[k] - '0');
    }
    std::string values = "[";
    for (int64_t k = 0; k < count; ++k)
      values += (k ? ", " : "") + fmt::format("{:.4f}", random.normal() / 8);
    text.replace(at, 7, values + "]");
  }
  auto graph = graph::parse(text);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

const char* const kBlock = R"(graph "block" {
  in %0 "x": f32[2,9,32]
  in %1 "mask": b1[2,1,1,9]
  const %2: f32[32,32] = @random
  const %3: f32[32,32] = @random
  const %4: f32[32] = @random
  const %5: f32[32,64] = @random
  const %6: f32[64,32] = @random
  const %7: f32[32] = @random
  const %8: i64[4] = [2, 9, 4, 8]
  const %9: i64[3] = [2, 9, 32]
  const %10: f32[] = -3.4028234663852886e+38
  const %11: f32[] = 0.35
  %20: f32[2,9,32] = MatMul(%0, %2)
  %21: f32[2,9,32] = MatMul(%0, %3)
  %22: f32[2,9,4,8] = Reshape(%20, %8)
  %23: f32[2,4,9,8] = Transpose(%22) {perm = [0, 2, 1, 3]}
  %24: f32[2,9,4,8] = Reshape(%21, %8)
  %25: f32[2,4,8,9] = Transpose(%24) {perm = [0, 2, 3, 1]}
  %26: f32[2,4,9,9] = MatMul(%23, %25)
  %27: f32[2,4,9,9] = Mul(%26, %11)
  %28: f32[2,4,9,9] = Where(%1, %27, %10)
  %29: f32[2,4,9,9] = Softmax(%28) {axis = -1}
  %30: f32[2,4,9,8] = MatMul(%29, %23)
  %31: f32[2,9,4,8] = Transpose(%30) {perm = [0, 2, 1, 3]}
  %32: f32[2,9,32] = Reshape(%31, %9)
  %33: f32[2,9,32] = Add(%32, %0)
  %34: f32[2,9,32] = LayerNormalization(%33, %4, %7) {axis = -1}
  %35: f32[2,9,64] = MatMul(%34, %5)
  %36: f32[2,9,64] = Gelu(%35)
  %37: f32[2,9,32] = MatMul(%36, %6)
  %38: f32[2,9,32] = Add(%37, %34)
  %39: f32[2,9,32] = LayerNormalization(%38, %4, %7) {axis = -1}
  out %39 "y"
})";

const char* const kImage = R"(graph "image" {
  in %0 "x": f32[2,3,14,14]
  const %1: f32[24,3,3,3] = @random
  const %2: f32[24,1,3,3] = @random
  const %3: f32[16,12,1,1] = @random
  const %4: f32[24] = @random
  const %5: f32[16,10] = @random
  const %6: i64[2] = [2, 16]
  %10: f32[2,24,14,14] = Conv(%0, %1, %4) {pads = [1, 1, 1, 1]}
  %11: f32[2,24,14,14] = Relu(%10)
  %12: f32[2,24,14,14] = Conv(%11, %2) {group = 24, pads = [1, 1, 1, 1]}
  %13: f32[2,24,14,14] = HardSwish(%12)
  %14: f32[2,16,14,14] = Conv(%13, %3) {group = 2}
  %15: f32[2,16,7,7] = MaxPool(%14) {kernel_shape = [2, 2], strides = [2, 2]}
  %16: f32[2,16,1,1] = GlobalAveragePool(%15)
  %17: f32[2,16] = Reshape(%16, %6)
  %18: f32[2,10] = MatMul(%17, %5)
  %19: f32[2,10] = LogSoftmax(%18) {axis = -1}
  out %19 "y"
})";

const char* const kSequence = R"(graph "sequence" {
  in %0 "x": f32[5,2,8]
  const %1: f32[2,48,8] = @random
  const %2: f32[2,48,12] = @random
  const %3: f32[2,96] = @random
  const %4: f32[1,36,24] = @random
  const %5: f32[1,36,12] = @random
  const %6: i64[3] = [5, 2, 24]
  %10: f32[5,2,2,12], %11: f32[2,2,12], %12: f32[2,2,12] = LSTM(%0, %1, %2, %3) {direction = "bidirectional", hidden_size = 12}
  %13: f32[5,2,2,12] = Transpose(%10) {perm = [0, 2, 1, 3]}
  %14: f32[5,2,24] = Reshape(%13, %6)
  %15: f32[5,1,2,12], %16: f32[1,2,12] = GRU(%14, %4, %5) {hidden_size = 12}
  out %15 "y"
  out %12 "c"
})";

// Positions beyond what 16 bits can count, an epsilon that is nothing in them, squares that
// overflow.
const char* const kNumbers = R"(graph "numbers" {
  in %0 "x": f32[2,64]
  in %1 "at": i64[2,1]
  const %2: f32[64] = @random
  const %3: f32[] = 1e-12
  const %4: i64[1] = [-1]
  const %5: f32[] = 2.0
  const %6: f32[] = 3000.0
  const %7: i64[2,1] = [4099, 60001]
  const %8: f32[] = 1e-09
  %10: i64[2,1] = Add(%1, %7)
  %11: f32[2,1] = Cast(%10) {to = 1}
  %12: f32[2,64] = Mul(%11, %2)
  %13: f32[2,64] = Sin(%12)
  %14: f32[2,64] = Add(%0, %13)
  %15: f32[2,64] = Mul(%14, %6)
  %16: f32[2,64] = Pow(%15, %5)
  %17: f32[2,1] = ReduceMean(%16, %4) {keepdims = 1}
  %18: f32[2,1] = Add(%17, %3)
  %19: f32[2,1] = Sqrt(%18)
  %20: f32[2,64] = Div(%15, %19)
  %21: f32[2,64] = Sub(%20, %20)
  %22: f32[2,1] = ReduceL2(%21, %4) {keepdims = 1}
  %23: f32[2,1] = Max(%22, %8)
  %24: f32[2,64] = Div(%21, %23)
  %25: f32[2,64] = Add(%24, %20)
  out %25 "y"
})";

TEST(Precision, NetworksOfF32InEveryPrecision) {
  for (const char* text : {kBlock, kImage, kSequence, kNumbers}) {
    const Graph graph = parsed(text);
    SCOPED_TRACE(graph.name);
    std::vector<Tensor> inputs = graph::random_inputs(graph, 3);
    // a row whose keys are all masked: uniform in f32, and no NaN in any type
    if (graph.name == "block")
      for (int64_t k = 0; k < 9; ++k) inputs[1].set_int(k, 0), inputs[1].set_int(9 + k, k % 2 == 0);
    const auto wanted = graph::interpret(graph, inputs, {.exact = true});
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
      const DType dtype = *passes::dtype_of(precision);
      const Graph converted = lowered(graph, precision);
      std::vector<How> hows{How{7}};
      if (precision == Precision::kFp16)
        hows.insert(hows.end(), {How{1}, How{2, false}, How{2, true, false}});
      for (const How& how : hows) {
        const std::vector<Tensor> got = answers(converted, inputs, how);
        ASSERT_EQ(got.size(), wanted->size());
        EXPECT_LT(distance(got, *wanted), allowed(dtype))
            << to_string(dtype) << ", " << how.sms << " SMs, stitching " << how.stitching
            << ", tiles " << how.tiles;
      }
    }
  }
}

/// Groups whose tile rounds to tf32, and those of f32 whose tile does not.
std::pair<int, int> rounding_tiles(const stitch::Plan& plan) {
  int rounds = 0, exact = 0;
  for (const stitch::Group& group : plan.groups) {
    const int32_t type = group.kind == stitch::GroupKind::kProduct     ? group.product.tile_type()
                         : group.kind == stitch::GroupKind::kConv      ? group.conv.tile_type()
                         : group.kind == stitch::GroupKind::kAttention ? group.attention.tile_type()
                                                                       : -1;
    rounds += type == kObkTf32, exact += type == kObkF32;
  }
  return {rounds, exact};
}

TEST(Precision, Tf32RoundsWhatTilesMultiplyAndNothingElse) {
  for (const char* text : {kBlock, kImage, kSequence, kNumbers}) {
    const Graph graph = parsed(text);
    SCOPED_TRACE(graph.name);
    const Graph lower = lowered(graph, Precision::kTf32);
    std::vector<Tensor> inputs = graph::random_inputs(graph, 3);
    if (graph.name == "block")
      for (int64_t k = 0; k < 9; ++k) inputs[1].set_int(k, 0), inputs[1].set_int(9 + k, k % 2 == 0);
    const auto wanted = graph::interpret(graph, inputs, {.exact = true});
    ASSERT_TRUE(wanted.ok());
    const std::vector<Tensor> f32 = answers(lower, inputs, {2});
    for (const How& how : {How{2, true, true, true}, How{7, false, true, true}}) {
      const std::vector<Tensor> got = answers(lower, inputs, how);
      EXPECT_LT(distance(got, *wanted), 4e-3);
      const auto [rounds, exact] = rounding_tiles(planned(lower, how));
      EXPECT_EQ(exact, graph.name == "image" ? 1 : 0) << "the depthwise convolution is exact";
      if (graph.name == "numbers") {
        EXPECT_EQ(rounds, 0);
      }
      // One has no product; the others' differ by more than the order of sums.
      EXPECT_EQ(distance(got, f32) < 1e-6, graph.name == "numbers") << distance(got, f32);
    }
  }
}

TEST(Precision, TextsOfTf32NameItsTile) {
  const Graph graph = lowered(parsed(kBlock), Precision::kTf32);
  const How how{2, true, true, true};
  const stitch::Plan plan = planned(graph, how);
  EXPECT_NE(stitch::print(graph, plan).find(", tf32"), std::string::npos);
  for (const kernels::TileLibrary* tiles : {&kernels::kCpuTiles, &kernels::kCudaTiles}) {
    const auto device = *machine::device(tiles == &kernels::kCpuTiles ? "cpu" : "sm_90a", 4);
    stitch::Options options;
    const stitch::Plan own = stitch::plan(graph, device, {.tf32 = true}, options);
    const schedule::TaskGraph tasks = schedule::build(graph, own, device);
    int named = 0, exact = 0;
    for (const codegen::BodyText& body : codegen::emit(graph, own, tasks, *tiles).bodies) {
      named += body.text.find("kObkTf32") != std::string::npos;
      exact += body.text.find("kObkF32") != std::string::npos;
    }
    EXPECT_GT(named, 2);
    EXPECT_EQ(exact, 0);
  }
}

TEST(Precision, ANetworkOfF16InF32) {
  std::string text = kImage;
  for (size_t at; (at = text.find("f32[")) != std::string::npos;) text.replace(at, 3, "f16");
  const Graph graph = parsed(text);
  const std::vector<Tensor> inputs = graph::random_inputs(graph, 4);
  const auto wanted = graph::interpret(graph, inputs, {.exact = true});
  ASSERT_TRUE(wanted.ok());
  const Graph converted = lowered(graph, Precision::kFp32);
  EXPECT_EQ(converted.type(converted.outputs()[0]).dtype, DType::f16);
  // one rounding, at the port
  EXPECT_LT(distance(answers(converted, inputs, {3}), *wanted), 0x1p-10);
}

TEST(Precision, RandomGraphsOfEveryFloat) {
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    for (uint64_t seed = 50; seed < 52; ++seed) {
      const Graph graph = graph::random_graph(seed, {.dtype = dtype});
      const std::vector<Tensor> inputs = graph::random_inputs(graph, seed);
      const auto wanted = graph::interpret(graph, inputs, {.exact = true});
      ASSERT_TRUE(wanted.ok());
      const std::vector<Tensor> got = answers(lowered(graph, Precision::kKeep), inputs, {3});
      EXPECT_LT(distance(got, *wanted), allowed(dtype)) << "seed " << seed << graph::print(graph);
    }
  }
}

/// Roundings to 16 bits that bodies make before they store.
int roundings(const stitch::Plan& plan) {
  int count = 0;
  for (const stitch::Group& group : plan.groups)
    for (ops::ExprId id = 0; id < group.body.exprs.size(); ++id) {
      const ops::Expr& expr = group.body.exprs[id];
      count += expr.scalar == ops::Scalar::kCast &&
               (expr.dtype == DType::f16 || expr.dtype == DType::bf16);
    }
  return count;
}

TEST(Precision, ValuesInsideABodyStayWide) {
  for (const char* text : {kBlock, kImage, kSequence, kNumbers}) {
    const Graph graph = parsed(text);
    const Graph converted = lowered(graph, Precision::kFp16);
    EXPECT_EQ(roundings(planned(converted, {})), 0) << graph.name;
    // The same count finds them where the model asks for them.
    const Graph asks = parsed(R"(graph "asks" {
  in %0 "x": f32[4]
  %1: f16[4] = Cast(%0) {to = 10}
  %2: f32[4] = Cast(%1) {to = 1}
  out %2 "y"
})");
    EXPECT_EQ(roundings(planned(lowered(asks, Precision::kKeep), {})), 1);
  }
}

TEST(Precision, ProductsOfSixteenBitsAreTiles) {
  for (const char* text : {kBlock, kSequence}) {
    const Graph converted = lowered(parsed(text), Precision::kBf16);
    const stitch::Plan plan = planned(converted, {});
    int products = 0;
    for (const stitch::Group& group : plan.groups) {
      if (group.kind != stitch::GroupKind::kProduct) continue;
      ++products;
      EXPECT_EQ(group.product.a_type, DType::bf16);
      EXPECT_EQ(group.product.b_type, DType::bf16);
    }
    int nodes = 0;
    for (graph::NodeId id : converted.order()) nodes += converted.node(id).op == ops::Op::MatMul;
    EXPECT_EQ(products, nodes) << converted.name;
  }
}

}  // namespace
}  // namespace obelisk::runtime
